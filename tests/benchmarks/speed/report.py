"""Time of reading many records and printing their table, as a whole process.

python -m tests.benchmarks report RUNS [--records 10000] [--repeats 5]
RUNS holds a few finished runs, of smoke runs too. They are copied with other seeds, rates and backbones, and so other
identities, into a temporary folder; the copies pass for full runs, which no report leaves out.
"""

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import islice, product
from pathlib import Path

from transfer.records.checksums import with_checksum
from transfer.records.record import Record, RunKey
from transfer.records.store import RECORD, Store

RATES = [round(1e-4 * 1.2**step, 7) for step in range(24)]
SEEDS = range(5)
BACKBONES = [f"backbone{number}" for number in range(100)]


def copies(records: list[Record]) -> Iterator[Record]:
    """All seeds of one run, rate and backbone after the other; the seed shifts the scores a little."""
    for backbone, rate, record, seed in product(BACKBONES, RATES, records, SEEDS):
        options = {**record.options, "lr": rate, "seeds": [seed], "backbone": backbone, "smoke": False}
        spec = {**record.backbone, "name": backbone}
        content = {**record.run_key_content, "backbone": spec, "seed": seed, "smoke": False}
        content["options"] = {**content.get("options", {}), "lr": rate}
        run_key = RunKey({**content, "copy_of": record.run_key})
        yield replace(
            record,
            run_id=run_key.run_id(record.task, record.dataset["name"], backbone),
            run_key=run_key.digest,
            config_digest=run_key.without("seed").digest,
            run_key_content=content if record.run_key_content else {},
            options=options,
            backbone=spec,
            seed=seed,
            smoke=False,
            scores={name: score * (1 - seed / 100) for name, score in record.scores.items()},
            environment={**record.environment, "dirty": False},
        )


def make(source: Path, target: Path, number: int) -> None:
    """Writes the copies as a store does, but for the wait until each is on the disk."""
    runs, problems = Store(source).runs()
    if not runs:
        raise SystemExit(f"{source}: no finished runs {problems}")
    for record in islice(copies([run.record for run in runs]), number):
        folder = target / record.run_id
        folder.mkdir()
        (folder / RECORD).write_bytes(with_checksum(asdict(record)))
    sizes = [path.stat().st_size for path in target.glob(f"*/{RECORD}")]
    print(f"{len(sizes)} records, {statistics.mean(sizes):.0f} bytes each, from {len(runs)} runs", flush=True)


def seconds(words: list[str]) -> tuple[float, float, int]:
    """Of a process: by the clock and of the processor; and how many lines it printed."""
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, *words], check=True, capture_output=True, text=True)
    taken, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return taken, busy, done.stdout.count("\n")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        make(options.runs, Path(folder), options.records)
        read = f"from pathlib import Path; from transfer.records.store import Store; Store(Path({folder!r})).runs()"
        commands = {
            "import of the report command": ["-c", "import transfer.report, transfer.report.tables.scores, pandas"],
            "reading the records": ["-c", read],
            "report": ["-m", "transfer.report", folder],
            "report --per-run": ["-m", "transfer.report", folder, "--per-run"],
        }
        for name, words in commands.items():
            times, busy, lines = zip(*(seconds(words) for _ in range(options.repeats)), strict=True)
            taken = f"{statistics.median(times):.2f} s, {statistics.median(busy):.2f} s of processor time"
            print(f"{name}: {taken} ({lines[0]} lines)", flush=True)
    return 0
