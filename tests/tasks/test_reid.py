"""ReID: losses; lists and pictures that a run keeps; the state that validations on split-off identities keep."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageColor

from backbones.spec import resolve
from tasks.reid.pictures import FRAME, GAP, HEIGHT, QUERY, RIGHT, SHOWN_PLACES, WRONG, picture, save_pictures
from tasks.reid.task import TASK
from tasks.reid.training import BNNeck, _rank, batch_hard_triplet
from tests.processes import run_by_ranks
from tests.runs import assert_equal_runs, history, outcomes, record
from tests.support import context, stopped_after
from tests.tasks.support import smoke_options
from transfer.core.errors import UsageError, UserError
from transfer.core.pictures import RANKED, RankedLists
from transfer.data.reid.dataset import open_reid, split_off
from transfer.data.reid.market1501 import Sample
from transfer.data.spec import resolve_dataset
from transfer.engine.extract import NotFinite
from transfer.run import main


def plain(features: list[list[float]], labels: list[int], margin: float | None) -> float:
    """The definition, with loops."""
    total = 0.0
    for i, anchor in enumerate(features):
        positives = [math.dist(anchor, other) for j, other in enumerate(features) if labels[j] == labels[i]]
        negatives = [math.dist(anchor, other) for j, other in enumerate(features) if labels[j] != labels[i]]
        gap = max(positives) - min(negatives)
        total += math.log1p(math.exp(gap)) if margin is None else max(gap + margin, 0.0)
    return total / len(features)


@pytest.mark.parametrize("margin", [None, 0.0, 0.3, 2.0])
@pytest.mark.parametrize(("identities", "instances", "dim"), [(2, 2, 3), (4, 4, 8), (5, 3, 1)])
def test_the_loss_is_its_definition(identities: int, instances: int, dim: int, margin: float | None) -> None:
    generator = torch.Generator().manual_seed(identities)
    features = torch.randn(identities * instances, dim, generator=generator, dtype=torch.float64)
    labels = torch.arange(identities).repeat_interleave(instances)
    order = torch.randperm(len(labels), generator=generator)
    loss = batch_hard_triplet(features[order], labels[order], margin)
    assert loss.item() == pytest.approx(plain(features.tolist(), labels.tolist(), margin), abs=1e-9)


@pytest.mark.parametrize("offset", [10.0, 100.0, 1000.0])
def test_an_offset_of_all_features_changes_neither_loss_nor_gradient(offset: float) -> None:
    generator = torch.Generator().manual_seed(0)
    near = 0.05 * torch.randn(32, 384, generator=generator) + offset
    labels = torch.arange(8).repeat_interleave(4)
    found, exact = (near.clone().to(dtype).requires_grad_() for dtype in (torch.float32, torch.float64))
    for rows in (found, exact):
        batch_hard_triplet(rows, labels).backward()
    assert (found.grad - exact.grad).norm() < 1e-4 * exact.grad.norm()


def test_equal_features_give_ln_2_and_finite_gradients() -> None:
    features = torch.ones(4, 3, requires_grad=True)
    loss = batch_hard_triplet(features, torch.tensor([0, 0, 1, 1]))
    loss.backward()
    assert loss.item() == pytest.approx(math.log(2), abs=1e-6)
    assert torch.isfinite(features.grad).all()


def test_the_neck_standardises_and_classifies_without_shift_or_bias() -> None:
    neck, features = BNNeck(5, 7), torch.randn(16, 5) * 3 + 2
    after, logits = neck(features)
    expected = (features - features.mean(0)) / (features.var(0, unbiased=False) + 1e-5).sqrt()
    assert torch.allclose(after, expected, atol=1e-5)
    assert torch.allclose(logits, after @ neck.classifier.weight.T)
    trained = {name for name, parameter in neck.named_parameters() if parameter.requires_grad}
    assert trained == {"norm.weight", "classifier.weight"}
    assert 5e-4 < neck.classifier.weight.std().item() < 2e-3
    with torch.autocast("cpu", dtype=torch.bfloat16):
        after, logits = neck(features.bfloat16())
    assert after.dtype == logits.dtype == torch.float32


WORDS = ["reid", "--backbone", "tiny", "--smoke", "--threads", "1", "--workers", "0", "--epochs"]
ONE = [*WORDS, "1", "--warmup-epochs", "0"]
VALIDATED = [*WORDS, "5", "--lr", "0.2", "--warmup-epochs", "1", "--precision", "fp32", "--subset", "24"]
VALIDATED += ["--validate-at", "1", "2", "3", "5"]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one epoch."""
    folder = tmp_path_factory.mktemp("runs")
    assert main([*ONE, "--out", str(folder)]) == 0
    return folder


def test_the_lists_kept_are_those_that_were_scored(out: Path) -> None:
    folder = out / record(out).run_id
    lists = RankedLists.load(folder / RANKED)
    data = open_reid(resolve_dataset("toy_market"), None)
    kept = outcomes(out)
    assert lists.query.tolist() == kept["sample"].tolist()
    assert lists.query_identity.tolist() == kept["cluster"].tolist()
    assert lists.places.shape == (len(data.query), SHOWN_PLACES)
    shown = {data.name_of(sample): (sample.identity, sample.camera) for sample in data.gallery}
    for place, name in enumerate(lists.gallery):
        assert shown[str(name)] == (lists.gallery_identity[place], lists.gallery_camera[place])
    same_camera = lists.gallery_camera[lists.places] == lists.query_camera[:, None]
    assert not (lists.right & same_camera).any(), "junk has no place in a list"
    # without ties the first match stands where the outcomes count it
    hits = kept["hits"] > 0
    single = hits & (kept["tied"] == 1) & (kept["before"] < SHOWN_PLACES)
    assert single.any()
    assert (lists.right[single].argmax(1) == kept["before"][single]).all()
    assert not lists.right[hits & (kept["before"] >= SHOWN_PLACES)].any()


def test_a_feature_that_is_not_finite_is_named_and_never_ranked(monkeypatch: pytest.MonkeyPatch) -> None:
    data = open_reid(resolve_dataset("toy_market"), None)
    options = smoke_options("reid")

    def features(learner: object, samples: list[Sample], *rest: object) -> torch.Tensor:
        found = torch.nn.functional.normalize(torch.rand(len(samples), 4), dim=1)
        if len(samples) == len(data.gallery):
            found[5] = torch.nan
        return found

    monkeypatch.setattr("tasks.reid.training.features", features)
    with pytest.raises(NotFinite) as error:
        _rank(None, data, options, context())  # type: ignore[arg-type]
    assert str(error.value) == f"features of the gallery split: not finite for {data.name_of(data.gallery[5])}"


def test_pictures_are_drawn_of_a_finished_run_and_change_nothing(out: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = out / record(out).run_id
    assert not (folder / "pictures").exists()
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert main([*ONE, "--out", str(out), "--save-pictures", "3"]) == 0
    assert "has a record, reused" in capfd.readouterr().err
    pictures = sorted(path.name for path in (folder / "pictures").glob("*.jpg"))
    assert pictures == ["query-00000.jpg", "query-00024.jpg", "query-00047.jpg"]
    with Image.open(folder / "pictures" / pictures[0]) as image:
        assert image.format == "JPEG"
        assert image.width > 8 * image.height / 2
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


def test_queries_without_a_match_are_counted(tmp_path: Path) -> None:
    data = open_reid(resolve_dataset("toy_market"), None)
    person = data.query[0].identity
    alone = replace(data, gallery=[sample for sample in data.gallery if sample.identity == person])
    options, here = smoke_options("reid", "--epochs", "0"), context(tmp_path)
    scores, _ = TASK.run(resolve("tiny"), alone, options, here)
    others = sum(sample.identity != person for sample in data.query)
    assert scores["mAP"] == 1
    assert here.notes[-1].startswith(f"{others} of {len(data.query)} queries have no match in the gallery")


@pytest.fixture(scope="module")
def best(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("best")
    assert main([*VALIDATED, "--keep", "best", "--out", str(out)]) == 0
    return out


def test_the_best_state_is_exported(best: Path) -> None:
    validations = {line["epoch"]: line["mAP"] for line in history(best) if "mAP" in line}
    kept = max(validations, key=lambda epoch: validations[epoch])
    assert list(validations) == [1, 2, 3, 5]
    assert kept < 5, "else the last state would do, too"
    run = record(best)
    assert run.details["validation"] == {"identities": 2, "kept_epoch": kept}
    assert run.notes[-1] == f"2 training identities were validated on, not trained on; kept: epoch {kept}"
    held = split_off(open_reid(resolve_dataset("toy_market"), None, subset=24), 0.1, seed=0)
    options, export = smoke_options("reid", "--epochs", "0"), next(best.glob("*/export"))
    scores, _ = TASK.run(resolve("tiny", weights=str(export)), held, options, context())
    assert scores["mAP"] == validations[kept]


def test_a_resumed_training_keeps_the_same_state(best: Path, tmp_path: Path) -> None:
    words = [*VALIDATED, "--keep", "best", "--out", str(tmp_path)]
    for step in (3, 9):
        with stopped_after(step):
            assert main(words) == 143
    assert main(words) == 0
    assert_equal_runs(tmp_path, best)


def test_the_last_state_is_the_default(best: Path, tmp_path: Path) -> None:
    assert main([*VALIDATED, "--out", str(tmp_path)]) == 0
    assert (history(tmp_path), record(tmp_path).details["validation"]["kept_epoch"]) == (history(best), 5)


@pytest.mark.nightly
def test_two_ranks_keep_the_state_of_one_process(best: Path, tmp_path: Path) -> None:
    words = [*VALIDATED, "--keep", "best", "--sync-bn", "--drop-path", "0"]
    assert main([*words, "--out", str(tmp_path / "one")]) == 0
    run_by_ranks("transfer.run", [*words, "--out", str(tmp_path / "two")], tmp_path / "log")
    one, two = ([line["mAP"] for line in history(tmp_path / name) if "mAP" in line] for name in ("one", "two"))
    assert one == pytest.approx(two, abs=0.02)
    assert record(tmp_path / "one").details["validation"] == record(tmp_path / "two").details["validation"]


QUERIES = [("q/a.jpg", 7, 1), ("q/b.jpg", 8, 2)]
GALLERY = [("g/a.jpg", 7, 2), ("g/never.jpg", 7, 3), ("g/c.jpg", 8, 1), ("g/d.jpg", -1, 1)]
NEAREST = np.array([[2, 0, 3], [3, 2, -1]])


def lists() -> RankedLists:
    return RankedLists.from_ranking(NEAREST, QUERIES, GALLERY, NEAREST / 7)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The images of the lists, each in one color."""
    for name, _, _ in (*QUERIES, *GALLERY):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (32, 64), (0, 120, 0)).save(tmp_path / name, "PNG")
    return tmp_path


def test_a_picture_shows_the_query_and_marks_each_place(root: Path) -> None:
    pixels = np.asarray(picture(lists(), 0, root))
    width = HEIGHT // 2 + 2 * FRAME
    starts = [0, *(2 * GAP + width + place * (width + GAP) for place in range(3))]
    for start, color in zip(starts, (QUERY, WRONG, RIGHT, WRONG)):
        assert tuple(pixels[1, start + 1]) == ImageColor.getrgb(color)
        assert tuple(pixels[FRAME + HEIGHT // 2, start + width // 2]) == (0, 120, 0)
    assert picture(lists(), 1, root).width == picture(lists(), 0, root).width - width - GAP


def test_what_keeps_pictures_from_being_drawn(root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    with pytest.raises(UserError, match=r"ranked\.npz: cannot be read"):
        save_pictures(folder, root, 2)
    lists().save(folder / RANKED)
    (root / "g/a.jpg").unlink()
    with pytest.raises(UserError, match=r"a\.jpg: cannot be read"):
        save_pictures(folder, root, 1)


def test_micro_batches_of_one_identity_have_no_triplets() -> None:
    data, spec = open_reid(resolve_dataset("toy_market"), None), resolve("tiny", weights="random")
    options = smoke_options("reid", "--num-identities", "4", "--grad-accum-steps", "4")
    with pytest.raises(UsageError, match=r"--grad-accum-steps 4: one identity has no triplets; set .* to 2 at most"):
        TASK.check(spec, data, options, context())
    TASK.check(spec, data, replace(options, triplet_weight=0), context())
