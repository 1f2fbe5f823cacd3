"""The campaign of faults, for a while; and that it finds a reader that checks nothing."""

import hashlib
import random
from pathlib import Path

import pytest

from tests.faults import __main__ as faults
from tests.faults.damaged import DamagedFiles, Target
from tests.faults.data import Found
from tests.faults.trial import NotHeldError


def digest(folder: Path) -> str:
    return hashlib.sha256((folder / "file").read_bytes()).hexdigest()


def test_another_result_in_silence_is_found(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    (tmp_path / "whole" / "file").write_bytes(bytes(1000))
    told = Target("told", tmp_path / "whole", ("file",), lambda folder: Found([], digest(folder)))
    assert DamagedFiles(tmp_path, [told]).trial(random.Random(0), tmp_path / "a") == "told: another dataset"
    for read in (digest, lambda folder: Found([digest(folder)], "the same")):
        kind = DamagedFiles(tmp_path, [Target("weights", tmp_path / "whole", ("file",), read)])
        with pytest.raises(NotHeldError, match=r"weights \(file\): another result in silence"):
            kind.trial(random.Random(0), tmp_path / read.__qualname__.replace("<", "").replace(">", ""))


@pytest.mark.nightly
@pytest.mark.parametrize("kind", faults.KINDS)
def test_faults_of_each_kind_do_no_harm(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert faults.main([kind, "--seconds", "8", "--seed", "1"]) == 0, capsys.readouterr().out
