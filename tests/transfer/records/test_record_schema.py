"""Records of others: whatever stands in one, it is refused by name, or every report can be made of it."""

import hashlib
import json
import random
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backbones.errors import UserError
from tests.transfer.records.recorded import made, trained
from tests.transfer.report.test_command import store
from transfer.records.checksums import with_checksum
from transfer.records.per_sample import UnusableOutcomes, read
from transfer.records.record import Record
from transfer.records.record_schema import entries_with_odd_texts
from transfer.report.__main__ import main

VALUES: tuple[Any, ...] = (None, {"a": 1}, [1], "x", 5, -1, 1e308, True, "", ["x"], {}, [])


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = changed(value[path[0]], path[1:], new)
    return copy


def parsed(content: dict[str, Any]) -> Record | None:
    """The record, if it is accepted."""
    with suppress(UserError):
        return Record.parse(with_checksum(content), Path("x/record.json"))
    return None


def test_any_value_anywhere_is_refused_or_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Resealed records, one entry changed each: a report of the folder is made, with or without that run."""
    details = {"accuracy": {"standard_error": 0.01}, "layers": [{"place": "stem", "similarity": 0.5}]}
    details["support"] = {"classes_with_fewer": {"10": 2}}
    whole = made(weights_id="sha256:a", details=details, user_code={"task": {"file": "t.py:T", "sha256": 64 * "0"}})
    source = json.loads(json.dumps(asdict(whole)))
    folder = Path(store(tmp_path / "runs", made(seed=1), made(stem="conv"), trained("sha256:a")))
    (folder / "odd").mkdir()
    rng, refused, shown = random.Random(0), 0, 0
    everything = [path for path in places(source) if path]
    for path in rng.sample(everything, min(len(everything), 120)):
        content = changed(source, path, rng.choice(VALUES))
        (folder / "odd" / "record.json").write_bytes(with_checksum(content))
        accepted = parsed(content) is not None
        assert main([str(folder), "--smoke", "--dirty"]) == 0, path
        told = capsys.readouterr()
        assert accepted or "left out: " in told.err, path
        shown, refused = shown + accepted, refused + (not accepted)
    assert shown > 20
    assert refused > 20


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("export", {"a": 1}),
        ("subset", "8"),
        ("seed", True),
        ("seed", -1),
        ("run_id", "../outside"),
        ("notes", [{}]),
        ("dataset", {"name": ["toy"]}),
        ("files", {"x": 1}),
        ("metrics", {"mAP": {"bounds": 3}}),
        ("environment", {"versions": 5}),
        ("seed", 10**30),
        ("subset", 10**30),
        ("cost", {"params": 0.5}),
        ("cost", {"gflops": -0.5}),
        ("cost", {"gflops": 1e308}),
        ("scores", {"mAP": -1e308}),
        ("dataset", {"a": {"name": "toy", "digest": "sha256:a"}}),
        ("environment", {"started": "=1+1"}),
        ("environment", {"started": "9999-12-31T23:59:59+00:00"}),
        ("details", {"stem": {"last_activation": -1}}),
        ("details", {"stem": {"last_activation": {"weights": [{"balance": 1.0}]}}}),
        ("details", {"layers": [{"similarity": 0.5}]}),
        ("details", {"detector": json.loads("[" * 100 + "]" * 100)}),
        ("weights_id", "x" * 100_000),
    ],
)
def test_an_entry_of_another_type_is_named(entry: str, value: Any) -> None:
    content = json.loads(json.dumps(asdict(made()))) | {entry: value}
    with pytest.raises(UserError, match=rf"not a readable record \({entry}"):
        Record.parse(with_checksum(content), Path("record.json"))


def test_any_finite_bounds_of_a_metric_are_read() -> None:
    content = json.loads(json.dumps(asdict(made()))) | {"metrics": {"mAP": {"bounds": [-1e308, 1e308]}}}
    assert parsed(content) is not None


OLDER = sorted(Path(__file__).with_name("older").glob("*.json"))
NOT_FINITE = (float("nan"), float("inf"), float("-inf"))


def older(file: Path, path: tuple[Any, ...], value: Any) -> bytes:
    """A record of an older schema with another value somewhere, and the digest of that."""
    content = json.loads(file.read_text())
    del content["digest"]
    return resealed(changed(content, path, "-here-"), b'"-here-"', json.dumps(value).encode())


@pytest.mark.parametrize("file", OLDER, ids=lambda file: file.stem)
@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (("export",), {"a": 1}, "export"),
        (("seed",), -1, "seed"),
        (("options",), [], "options"),
        (("outcome", "status"), "fine", "outcome"),
        (("identity",), 5, "run_key"),
        (("protocol",), {}, "config_digest"),
        (("identity_content", "options"), ["lr"], "run_key_content"),
        *((("identity_content", "seed"), number, "run_key_content") for number in NOT_FINITE),
    ],
)
def test_a_bad_entry_of_an_older_record_is_named_as_today(
    file: Path, path: tuple[str, ...], value: Any, named: str
) -> None:
    with pytest.raises(UserError, match=rf"^record\.json: not a readable record \({named}[,)]"):
        Record.parse(older(file, path, value), Path("record.json"))


@pytest.mark.parametrize("file", OLDER, ids=lambda file: file.stem)
def test_any_value_anywhere_in_an_older_record_is_refused_or_has_a_key_of_today(file: Path) -> None:
    """Its options get today's names, and its key is computed anew from whatever stands there."""
    rng, refused, accepted = random.Random(0), 0, 0
    everything = [path for path in places(json.loads(file.read_text())) if path and path != ("digest",)]
    for path in rng.sample(everything, 200):
        raw = older(file, path, rng.choice((*VALUES, *NOT_FINITE)))
        try:
            assert len(Record.parse(raw, Path("record.json")).current_run_key) > 0, path
            accepted += 1
        except UserError:
            refused += 1
    assert min(refused, accepted) > 20


def resealed(content: dict[str, Any], replaced: bytes, by: bytes) -> bytes:
    """The record with a piece of its bytes replaced by what `with_checksum` cannot write, and the digest of that."""
    body, entry, _ = with_checksum(content).replace(replaced, by).rpartition(b',\n "digest": "')
    return body + entry + hashlib.sha256(body).hexdigest().encode() + b'"\n}\n'


def in_utf_16(raw: bytes) -> bytes:
    return raw.decode().encode("utf-16-le")


def test_half_of_a_surrogate_pair_is_refused_and_a_whole_pair_is_a_character() -> None:
    """No file can hold the half, so that no report could be written."""
    content = json.loads(json.dumps(asdict(made(weights_id="here"))))
    with pytest.raises(UserError, match=r"not a readable record \(.*weights_id"):
        Record.parse(resealed(content, b'"here"', b'"\\ud83d"'), Path("record.json"))
    whole = Record.parse(resealed(content, b'"here"', b'"\\ud83d\\ude00"'), Path("record.json"))
    assert whole.weights_id == "\N{GRINNING FACE}"


@pytest.mark.parametrize("encode", [lambda raw: raw.replace(b'"here"', b'"\xed\xa0\x80"'), in_utf_16])
def test_a_record_that_is_not_utf_8_is_refused(encode: Callable[[bytes], bytes]) -> None:
    """The three bytes are half of a surrogate pair, which Python's own JSON reader lets pass."""
    body, _, _ = with_checksum(json.loads(json.dumps(asdict(made(weights_id="here"))))).rpartition(b',\n "digest": "')
    changed = encode(body)
    raw = changed + encode(b',\n "digest": "' + hashlib.sha256(changed).hexdigest().encode() + b'"\n}\n')
    with pytest.raises(UserError, match="not a readable record"):
        Record.parse(raw, Path("record.json"), edited=True)


def test_a_schema_of_any_length_is_named_in_short() -> None:
    with pytest.raises(UserError) as refused:
        Record.parse(json.dumps({"schema": "x" * 100_000}).encode(), Path("record.json"))
    assert len(str(refused.value)) < 200


def test_outcomes_that_would_fill_the_memory_are_not_unpacked(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "outcomes.npz", sample=np.array(["a"]), cluster=np.zeros(40_000_000))
    assert (tmp_path / "outcomes.npz").stat().st_size < 400_000
    with pytest.raises(UnusableOutcomes, match="would unpack to 3200"):
        read(tmp_path / "outcomes.npz")


def test_outcomes_in_a_compression_that_unpacks_at_once_are_refused(tmp_path: Path) -> None:
    """Of bzip2, Python unpacks all that it has read, a thousand times as much."""
    with zipfile.ZipFile(tmp_path / "outcomes.npz", "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("sample.npy", b"")
    with pytest.raises(UnusableOutcomes, match="numpy does not write"):
        read(tmp_path / "outcomes.npz")


@pytest.mark.parametrize("text", [10_001 * "x", 110 * (99 * "y" + '"'), 5_001 * '\\"', "\udc00"])
def test_a_text_that_no_table_takes_is_found_whatever_stands_in_it(text: str) -> None:
    content = {"sound": 300 * ["short"], "odd": {"note": text}}
    assert entries_with_odd_texts(json.dumps(content).encode(), content) == ["odd"]
