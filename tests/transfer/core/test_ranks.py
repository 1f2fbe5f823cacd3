"""What the environment says of a distributed job, also where a cluster has left variables behind."""

import pytest

from transfer.core.errors import UsageError
from transfer.core.process import Ranks, ranks_from_environment

JOB = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
JOB |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "29700"}


def _ranks(patch: pytest.MonkeyPatch, variables: dict[str, str]) -> Ranks:
    for name in JOB:
        patch.delenv(name, raising=False)
    for name, value in variables.items():
        patch.setenv(name, value)
    return ranks_from_environment()


@pytest.mark.parametrize(
    ("left", "ranks"),
    [
        ({}, Ranks()),
        (dict.fromkeys(JOB, ""), Ranks()),
        ({"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "29700"}, Ranks()),
        ({"RANK": "3", "LOCAL_RANK": "3"}, Ranks()),
        ({"SLURM_NTASKS": "2", "SLURM_PROCID": "1", "OMPI_COMM_WORLD_SIZE": "2"}, Ranks()),
        (JOB, Ranks(1, 2, 1, 2)),
    ],
)
def test_a_job_of_torchrun_and_none(left: dict[str, str], ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _ranks(monkeypatch, left) == ranks


@pytest.mark.parametrize(
    ("left", "said"),
    [
        ({"WORLD_SIZE": "2"}, "^WORLD_SIZE=2, but not RANK, MASTER_ADDR, MASTER_PORT, is set; for one process `unset"),
        ({"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": ""}, "^WORLD_SIZE=2, but not MASTER_ADDR, MASTER_PORT, is"),
        ({"WORLD_SIZE": "abc", "LOCAL_RANK": "0"}, "variable WORLD_SIZE=abc describes no distributed job"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE=0"),
        (JOB | {"RANK": "2"}, "RANK=2"),
        (JOB | {"LOCAL_RANK": "-1"}, "LOCAL_RANK=-1"),
    ],
)
def test_no_job(left: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=said):
        _ranks(monkeypatch, left)
