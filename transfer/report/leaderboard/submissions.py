"""The runs of bundles and folders of several groups, each verified, with the source that it came from.

A run whose verification finds anything wrong is refused. Of one run that several groups made, the first is taken.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from zipfile import is_zipfile

from backbones.errors import UserError
from backbones.runtime.files import file_sha256
from transfer.records.bundle_file import unpacked
from transfer.records.store import Record, Run, merged, same_result, store_in
from transfer.share.strip_paths import without_paths
from transfer.verify.verification import Verdict, verify

SUFFIXES = (".zip", ".bundle")
"""Suffixes of the files in a folder that are taken for bundles, besides those that are zip archives."""


class Status(Enum):
    """How far a run was verified, the most first."""

    RECOMPUTED = "recomputed"
    """Nothing was changed, and the scores follow to the bit from the per-sample results, computed anew here."""
    SEALED = "sealed"
    """Nothing was changed, but the scores could not be computed anew here."""
    UNVERIFIED = "unverified"
    """The record is of a version that kept too little to be verified."""


@dataclass(frozen=True)
class Submission:
    """A run, and who sent it.

    Attributes:
        run: the run, its record without paths.
        sources: names of the bundles or folders that hold this result, the first one first.
        status: how far it was verified.
        notes: what verification could not check, and repetitions with another result.
    """

    run: Run
    sources: tuple[str, ...]
    status: Status
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Refused:
    """What is not shown.

    Attributes:
        source: name of the bundle or folder.
        run: id of the run; empty for the whole source.
        reasons: what is wrong with it.
    """

    source: str
    run: str
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Source:
    """A bundle or folder of runs.

    Attributes:
        name: last part of its path, with the folder's where two are called the same.
        path: the file or folder.
        sha256: of a bundle's bytes; empty for a folder.
    """

    name: str
    path: Path
    sha256: str = ""


@dataclass
class Submissions:
    """All runs of all sources: those that are shown, and those that are not."""

    sources: list[Source]
    taken: list[Submission] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)
    """Number of runs that are not shown although nothing is wrong, by their mark: "smoke", "dirty"."""

    def leave_out(self, mark: str, marked: Callable[[Record], bool]) -> None:
        """Leave out the runs whose records are `marked`."""
        kept = [submission for submission in self.taken if not marked(submission.run.record)]
        self.left_out[mark] = len(self.taken) - len(kept)
        self.taken = kept

    def of_source(self, source: Source) -> tuple[int, int]:
        """Return how many runs of a source are shown, and how many are refused."""
        taken = sum(source.name in submission.sources for submission in self.taken)
        return taken, sum(refused.source == source.name for refused in self.refused)


def submissions(paths: Sequence[Path], opened: ExitStack) -> Submissions:
    """Return the verified runs of bundles, folders of runs, and folders with bundles.

    Args:
        paths: files that `--bundle` wrote, folders of runs or sweeps, or folders with either.
        opened: keeps the unpacked bundles until it is closed.

    Raises:
        UserError: a path does not exist, or holds neither runs nor bundles.
    """
    sources = _named([place for path in paths for place in _places(path)])
    result = Submissions(sources)
    copies: list[Submission] = []
    for source in sources:
        try:
            folder = opened.enter_context(unpacked(source.path)) if source.path.is_file() else source.path
        except UserError as error:
            result.refused.append(Refused(source.name, "", (_without(error, source.path, source.name),)))
            continue
        for run in _run_folders(folder):
            taken = _checked(run, source.name)
            if isinstance(taken, Refused):
                result.refused.append(taken)
            else:
                copies.append(taken)
    result.taken = sorted(_merged(copies), key=lambda submission: submission.run.record.run_id)
    return result


def _places(path: Path) -> Iterator[Path]:
    """Yield the bundles and folders of runs that a path means."""
    if path.is_file():
        yield path
        return
    if not path.is_dir():
        raise UserError(f"--leaderboard {path}: there is no such bundle or folder")
    if _run_folders(path):
        yield path
    entries = sorted(entry for entry in path.iterdir() if not entry.name.startswith("."))
    inner = [entry for entry in entries if entry.is_file() and (entry.suffix in SUFFIXES or is_zipfile(entry))]
    runs = {folder.name for folder in _run_folders(path)}
    others = (entry for entry in entries if entry.is_dir() and entry.name != "runs" and entry.name not in runs)
    inner += [entry for entry in others if _run_folders(entry)]
    found = [entry for entry in inner if entry.name not in runs]
    if not found and not runs:
        raise UserError(
            f"--leaderboard {path}: holds neither runs nor bundles; `python -m transfer.report RUNS --bundle FILE` "
            "writes one"
        )
    yield from found


def _run_folders(folder: Path) -> list[Path]:
    try:
        return store_in(folder).recorded()
    except UserError:
        return []


def _named(paths: Sequence[Path]) -> list[Source]:
    """Return sources with names that tell them apart, without the folders of this machine where that is possible."""
    unique = list(dict.fromkeys(path.resolve() for path in paths))
    names = [path.name for path in unique]
    several = {name for name, count in Counter(names).items() if count > 1}
    names = [f"{path.parent.name}/{path.name}" if path.name in several else path.name for path in unique]
    seen: Counter[str] = Counter()
    sources = []
    for name, path in zip(names, unique, strict=True):
        seen[name] += 1
        number = f" ({seen[name]})" if seen[name] > 1 else ""
        sources.append(Source(name + number, path, file_sha256(path) if path.is_file() else ""))
    return sorted(sources, key=lambda source: source.name)


def _without(error: object, path: Path, name: str) -> str:
    """Return a message that names a source as the site does."""
    return str(error).replace(str(path), name)


def _checked(folder: Path, source: str) -> Submission | Refused:
    """Return a run if nothing is wrong with it."""
    verdict = verify(folder, name=f"{folder.name} of {source}")
    record = verdict.record
    if verdict.wrong or record is None:
        return Refused(source, folder.name, tuple(_without(text, folder, folder.name) for text in verdict.wrong))
    try:
        shared = record if record.shared else without_paths(record)
    except UserError as error:
        return Refused(source, folder.name, (_without(error, folder, folder.name),))
    return Submission(Run(folder, shared), (source,), _status(verdict, record), tuple(verdict.notes))


def _status(verdict: Verdict, record: Record) -> Status:
    if not verdict.right:
        return Status.UNVERIFIED
    return Status.RECOMPUTED if verdict.rescored or not record.scores else Status.SEALED


def _merged(copies: Sequence[Submission]) -> Iterator[Submission]:
    """Yield each run once, with all sources of its result; a repetition with another result is noted, not shown."""
    by_run: dict[str, list[Submission]] = {}
    for copy in copies:
        by_run.setdefault(copy.run.record.run_key, []).append(copy)
    for same in by_run.values():
        (kept,), _ = merged([copy.run for copy in same])
        first = next(copy for copy in same if copy.run is kept)
        equal = [copy for copy in same if same_result(copy.run.record, kept.record)]
        names = dict.fromkeys([*first.sources, *(name for copy in equal for name in copy.sources)])
        others = [copy for copy in same if copy not in equal]
        repeats = [f"repeated in {copy.sources[0]} with {_result(copy.run.record)}" for copy in others]
        yield replace(first, sources=tuple(names), notes=(*first.notes, *repeats))


def _result(record: Record) -> str:
    if record.training_failed:
        return str(record.outcome["status"])
    return f"{record.primary} {record.shown(record.primary):.2f}"
