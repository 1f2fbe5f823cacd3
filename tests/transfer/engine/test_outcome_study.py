"""The rule on the committed trainings: its errors are those that the guide states."""

from tests.benchmarks.outcomes import Training, errors, read

STATED = {"even": (5, 70, 6, 60), "odd": (3, 42, 4, 48)}
"""Dead called alive, of how many; alive called dead, of how many: supervised and ReID, as in `docs/measured.md`."""


def counted(trainings: list[Training]) -> tuple[int, int, int, int]:
    found = errors(trainings)
    of = {truth: sum(count for (is_true, _), count in found.items() if is_true == truth) for truth in ("dead", "alive")}
    return found["dead", "alive"], of["dead"], found["alive", "dead"], of["alive"]


def test_errors_are_those_stated() -> None:
    trainings = [one for one in read() if one.values["method"] != "dino"]
    halves = {name: [one for one in trainings if one.reported == (name == "odd")] for name in STATED}
    assert {name: counted(part) for name, part in halves.items()} == STATED


def test_what_lives_is_never_called_dead_from_a_hundred_steps_on() -> None:
    long = [one for one in read() if one.values["method"] != "dino" and one.steps >= 100]
    assert counted(long)[2:] == (0, 40)
