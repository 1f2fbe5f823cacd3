"""Files of claims are read whole, and everything wrong with them is said with file, row and fix."""

from pathlib import Path
from typing import Any

import pytest

from transfer.core.errors import UsageError
from transfer.core.files import ROOT
from transfer.core.settings import config_names, write_yaml
from transfer.experiments.claims import RULES, Claims, read_claims

ROW: dict[str, Any] = {
    "id": "P1", "claim": "a is better", "where": "Table 1", "kind": "difference", "expect": "a > b",
    "runs": "task=knn", "a": "stem=conv", "b": ["stem=patchify", "stem=other"], "metric": "top1", "margin": 1,
}  # fmt: skip


def write(folder: Path, *rows: dict[str, Any], **top: Any) -> Path:
    file = folder / "claims.yaml"
    file.write_text(write_yaml({"title": "T", "about": "A.", **top, "claims": list(rows)}))
    return file


def read(folder: Path, *rows: dict[str, Any], **top: Any) -> Claims:
    return read_claims(str(write(folder, *rows, **top)))


@pytest.mark.parametrize("name", config_names("claims"))
def test_every_row_of_a_study_says_what_its_paper_prints_or_is_the_suite_s_own(name: str) -> None:
    for claim in read_claims(name).claims:
        assert claim.own or (claim.where.startswith("arXiv") and claim.printed and claim.authors), claim.id
        assert not (claim.own and claim.printed), claim.id


def test_rows_stand_for_pairs_of_selectors_with_the_conditions_of_all_runs(tmp_path: Path) -> None:
    pairs = {key: value for key, value in ROW.items() if key not in "ab"} | {"pairs": [["lr=1", "lr=2"]], "id": "P2"}
    missing = {"id": "X", "claim": "c", "where": "w", "not_run": {"why": "no", "gpu_hours": 3, "command": "x"}}
    one, two, three = read(tmp_path, ROW, pairs, missing).claims
    assert one.comparisons == [("stem=conv", f"stem={other}") for other in ("patchify", "other")]
    assert two.comparisons == [("lr=1", "lr=2")]
    assert one.selector("stem=conv") == "task=knn,stem=conv"
    assert three.not_run["gpu_hours"] == 3


WRONG = [
    ({"metrc": "top1"}, "unknown key 'metrc'; did you mean 'metric'?"),
    ({"kind": "differences"}, "`kind` must be one of difference, equivalence"),
    ({"expect": "a = b"}, "`expect` must be one of a > b, a < b, not 'a = b'"),
    ({"margin": None}, "a row of kind 'difference' with these keys needs `margin`"),
    ({"margin": "one"}, "`margin` must be a number from 0 on, not 'one'"),
    ({"margin": float("nan")}, "`margin` must be a number from 0 on, not nan"),
    ({"seeds": 0}, "`seeds` must be a whole number from 1 on, not 0"),
    ({"claim": ""}, "`claim` must be text, not ''"),
    ({"choose": "lr"}, "needs `chosen_by`"),
    ({"choose": "lr", "chosen_by": "top1"}, "must be a validation metric, not `metric` itself"),
    ({"kind": "half-score rate"}, "needs `over`"),
    ({"own": "yes"}, "`own` must be true or false, not 'yes'"),
    ({"floor": []}, "floor: expected `key: value` pairs with text keys, not []"),
    ({"floor": {"value": "ten", "what": "pixels"}}, "`value` of `floor` must be a number, not 'ten'"),
    ({"untrained": {"stem=c": "x"}}, "must have each side of the comparisons and no other key; see 'stem=c'"),
    ({"floor": {"value": 1, "what": "x"}, "kind": "half-score rate", "over": "lr"}, "without `choose`"),
    ({"pairs": [["lr=1", "lr=2"]]}, "give `pairs`, or `a` and `b`"),
    ({"a": None, "b": None, "pairs": [["lr=1"]]}, "a list of two selectors, not ['lr=1']"),
    ({"reading": {"yes": "no"}}, "reading: unknown key 'yes'"),
    ({"changed": [{"date": "2030-12-31"}]}, "changed: `what` is missing"),
    ({"not_run": {"why": "no"}}, "not_run: `gpu_hours` is missing"),
]


@pytest.mark.parametrize(("change", "said"), WRONG)
def test_what_is_wrong_with_a_row_is_said_with_its_place(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    row = {key: value for key, value in (ROW | change).items() if value is not None}
    with pytest.raises(UsageError) as error:
        read(tmp_path, {"id": "X", "claim": "c", "where": "w"}, row)
    lines = str(error.value).splitlines()
    assert any(f"{tmp_path}/claims.yaml: row 2 (P1)" in line and said in line for line in lines), lines
    assert "row 1 (X): `kind` must be" in lines[0]  # all rows at once


def test_a_missing_key_a_double_id_and_an_unknown_one_are_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="row 1: `id` is missing"):
        read(tmp_path, {"claim": "c", "where": "w"})
    with pytest.raises(UsageError, match=r"row 2: the id 'P1' is duplicated; rename one"):
        read(tmp_path, ROW, ROW)
    with pytest.raises(UsageError, match="unknown key 'titel'"):
        read(tmp_path, ROW, titel="x")


def test_every_kind_is_documented() -> None:
    text = (ROOT / "docs/guide/claims.md").read_text()
    assert [kind for kind in RULES if f"\n- {kind} (" not in text] == []
