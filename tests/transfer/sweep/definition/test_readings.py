"""Both readings of a printed rate: what a sweep runs, and what is matched."""

from collections import Counter
from pathlib import Path

import pytest

from backbones.errors import UsageError
from transfer.published.rows import rows_of, used_values
from transfer.sweep.definition.grid import SweepJob, expand
from transfer.sweep.definition.sweep_file import read_sweep


def jobs(table: str, readings: str | None, tier: str = "full") -> list[SweepJob]:
    found = expand(read_sweep(f"scaled_relu_table{table}", tier, readings=readings))
    return [job for job in found if job.seed == 0 and job.step.name in ("deit", "finetune")]


@pytest.mark.parametrize("table", ["1", "5"])
def test_a_sweep_runs_one_reading_or_both(table: str) -> None:
    rates = {
        row["label"]: used_values(row[step]["lr"])
        for row in rows_of("scaled_relu", table)
        for step in ("deit", "finetune")
        if step in row
    }
    assert all(len(used) == 2 for used in rates.values())
    once, twice = jobs(table, None), jobs(table, "both")
    assert Counter(job.options["lr"] for job in once) == Counter(used[0] for used in rates.values())
    assert {(job.label, job.options["lr"]) for job in once} == {(label, used[0]) for label, used in rates.items()}
    assert {job.options["lr"] for job in twice} == {rate for used in rates.values() for rate in used}
    assert {job.name for job in once} < {job.name for job in twice}, "what is done is done for both"
    assert [job.name for job in once] == [job.name for job in jobs(table, "one")]


def test_a_file_says_which_readings(tmp_path: Path) -> None:
    text = """
paper: scaled_relu
table: "3"
readings: both
steps:
  deit: {pretrain: deit, backbone: deit_s16, dataset: imagenet1k, seeds: [0]}
"""
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    assert len(expand(read_sweep(str(path), "full"))) == 16
    assert len(expand(read_sweep(str(path), "full", readings="one"))) == 8
    path.write_text(text.replace("both", "boht"))
    with pytest.raises(UsageError, match="`readings` is one or both, not 'boht'; did you mean 'both'"):
        read_sweep(str(path), "full")
