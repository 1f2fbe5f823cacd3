"""The command that runs the benchmarks lists them, and each can be asked what it does. Of these none runs."""

import sys
from pathlib import Path

import pytest
import torch

from tests.benchmarks import cpu, gpu
from tests.benchmarks.__main__ import BENCHMARKS, main
from transfer.doctor.__main__ import COMMANDS
from transfer.engine.device import device_name

ROW = "| part | result |\n|---|---|\n| step of DeiT-S | 1,234 images/s, 1.10 [1.05, 1.15] times timm's |"


def test_the_list_says_what_each_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    listed = capsys.readouterr().out
    assert all(f"\n{name}\n  " in listed for name in BENCHMARKS)
    assert "  Needs facebookresearch/deit" in listed
    assert main(["coco_scorin"]) == 2
    assert "did you mean 'coco_scoring'" in capsys.readouterr().err


@pytest.mark.nightly
@pytest.mark.parametrize("name", BENCHMARKS)
def test_it_says_what_it_does(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["tests"])
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert f"python -m tests.benchmarks {name}" in capsys.readouterr().out


def test_figures_of_a_gpu_go_into_the_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{gpu.ROOT}")
    for name, rate in ("fast", "1,234.50"), ("slow", "7"):
        line = f"figure, {name}      {rate} images/s  1.2 x another;"
        (tmp_path / f"trivial_{name}.py").write_text(
            f"print('a line of 2 words'); print({line!r}); print({ROW!r})", encoding="utf-8"
        )
    (tmp_path / "trivial_broken.py").write_text("1 / 0", encoding="utf-8")
    table, file = ("trivial_fast", "trivial_slow"), tmp_path / "measured.csv"
    machine = {"machine": "card", "torch": "2", "commit": "a"}
    assert gpu.measure_all(table, machine, file, 0.0) == 0
    assert gpu.measure_all(["trivial_broken"], machine, file, 1.0) == 1
    assert not file.exists(), "the minutes are over, or the command failed"
    assert gpu.measure_all(table[:1], machine, file, 1.0) == 0
    assert gpu.measure_all(table, machine, file, 1.0) == 0
    rows = [(row["command"], row["figure"], row["value"], row["unit"]) for row in gpu.rows_of(file)]
    assert rows[0] == ("trivial_fast", "figure, fast", "1234.50", "images/s")
    assert rows[1] == ("trivial_fast", "step of DeiT-S", "1,234 images/s, 1.10 [1.05, 1.15] times timm's", "")
    assert [row[1] for row in rows[2:]] == ["duration", "figure, slow", "step of DeiT-S", "duration"]
    assert gpu.measure_all(table[:1], machine | {"commit": "b"}, file, 1.0) == 0
    assert len(gpu.rows_of(file)) == 9, "another version of the code is measured again"


def test_without_a_gpu_it_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpu"]) == 1
    assert capsys.readouterr().err.startswith("error: --device cuda: ")


TABLE = """
| command | ratio | unit | One | Two |
|---|---|---|---|---|
| `python -m trivial_one` | ours / theirs | x | 1.20 | 3 |
| | memory / features | fold | 2.0 | |
| `python -m trivial_two --checkout CHECKOUT` | ours / theirs | x | | 9 |

| command | measured |
"""


def test_a_ratio_below_the_table_is_marked() -> None:
    one, memory, two = cpu.ratios(TABLE, "CPU One, 2.0 GHz")
    assert [one.known, memory.known, two.known] == [1.2, 2.0, None]
    assert (memory.command, two.command) == ("trivial_one", "trivial_two --checkout CHECKOUT")
    assert [one.state(value) for value in (1.1, 1.19, 1.3, None)] == ["FELL", "holds", "rose", "not measured"]
    assert [memory.state(value) for value in (1.8, 2.05, 2.2)] == ["rose", "holds", "FELL"], "less is better"
    assert two.state(1.0) == "new"


def test_the_exit_status_says_whether_a_ratio_fell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{gpu.ROOT}")
    monkeypatch.setattr(cpu, "ROOT", tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/measured.md").write_text(TABLE.replace("One", device_name(torch.device("cpu"))))
    for number, (ratio, unit, said) in enumerate(
        [("1.19", "fold", ""), ("1.0", "fold", "FELL"), ("1.2", "s", "NOT PR")]
    ):
        (tmp_path / "trivial_one.py").write_text(
            f"print('ours / theirs  {ratio} x'); print('memory / features  2.0 {unit}')"
        )
        assert main(["cpu", "--out", str(tmp_path / f"{number}.csv")]) == bool(said)
        printed = capsys.readouterr().out
        assert said in printed
        assert "trivial_two --checkout CHECKOUT: not started, the folder is not given" in printed


def test_the_tables_of_ratios_name_benchmarks_and_figures() -> None:
    known = cpu.ratios((gpu.ROOT / "docs" / "measured.md").read_text(encoding="utf-8"), "AMD EPYC Xeon")
    assert len({(one.command, one.name) for one in known}) == len(known)
    assert all(one.known and one.unit in ("x", "fold") and " / " in one.name for one in known)


def test_the_table_of_a_gpu_names_what_there_is() -> None:
    named = {"tests.benchmarks": BENCHMARKS, "transfer.doctor": COMMANDS}
    assert all(name in named[module] for module, name, *_ in map(str.split, gpu.TABLE))
