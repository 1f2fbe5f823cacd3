import warnings

import pytest

from tests.support import context
from transfer.core.errors import Notice
from transfer.evaluation.evaluator import _notices


def test_a_notice_is_one_line_and_a_note_of_each_run(capsys: pytest.CaptureFixture[str]) -> None:
    for run in (context(), context()):
        with _notices(run):
            for _ in range(2):
                warnings.warn(Notice("runs as blocks"), stacklevel=1)
        assert run.notes == ["runs as blocks"]
    assert capsys.readouterr().err == "runs as blocks\n" * 2
