"""What a run trained, used on images: the numbers of its evaluation, files of each kind, and what cannot work."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from backbones.backbone import Backbone
from backbones.diagnostics.maps import token_maps
from backbones.pretrain.accuracy import true_class_ranks
from tasks.ranking.metrics import rank
from transfer import Run, load
from transfer.core.errors import UserError
from transfer.core.options import from_plain
from transfer.data.loading.augment import eval_transform
from transfer.data.loading.images import to_floats
from transfer.data.spec import resolve_dataset
from transfer.predict.__main__ import main
from transfer.run import main as run
from transfer.task import load_task

Captured = pytest.CaptureFixture[str]

WORDS = ["--backbone", "tiny", "--smoke", "--threads", "1", "--workers", "0"]
SHORT = ["--epochs", "1", "--warmup-epochs", "0"]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of tasks that take no time; `classify` of what `finetune` left."""
    out = tmp_path_factory.mktemp("predict")
    words = [*WORDS, "--out", str(out / "runs")]
    assert run(["finetune", *words, "--subset", "20", "--epochs", "2", "--lr", "2e-3"]) == 0
    weights = ["--weights", str(run_of(out, "finetune").folder)]
    assert run(["classify", *words, *weights]) == 0
    assert run(["linear", *words, *weights, "--subset", "40", "--epochs", "2", "--lrs", "0.01", "0.1"]) == 0
    assert run(["reid", *words, *SHORT]) == 0
    assert run(["finetune", *words, *SHORT, "--subset", "4", "--seeds", "1", "--save-weights", "none"]) == 0
    return out


def run_of(out: Path, task: str) -> Run:
    """The first run of a task."""
    return load(out / "runs").filter(task=task, seed=0)[0]


def data_of(run: Run) -> Any:
    """The dataset of a run, as its evaluation opened it."""
    task, spec = load_task(run.task), resolve_dataset(run.record.dataset["name"])
    options = from_plain(task.options, run.record.options)
    return task.open(spec, options, root=None, subset=run.record.subset, drop_corrupt=False)


def save_turned(image: Image.Image, path: Path) -> None:
    """Save an image on its side, with the orientation of EXIF that says so."""
    exif = Image.Exif()
    exif[274] = 6
    image.rotate(90, expand=True).save(path, exif=exif)


@pytest.mark.parametrize("task", ["finetune", "classify", "linear"])
def test_classes_are_those_of_the_evaluation_to_the_bit(task: str, out: Path) -> None:
    run = run_of(out, task)
    split, kept = data_of(run).val, run.per_sample()
    found = run.predict([split.path(index) for index in range(len(split))]).arrays
    ranks = true_class_ranks(torch.from_numpy(found["logits"]), torch.from_numpy(split.labels)).numpy()
    np.testing.assert_array_equal(ranks, np.stack([kept["rank"], kept["ties"]], axis=1))
    assert found["classes"].tolist() == list(map(str, range(10)))
    np.testing.assert_allclose(found["scores"].sum(1), 1, rtol=1e-5)


READER = """import numpy as np

def read(root):
    names = [(path, path.stem[0]) for path in sorted(root.glob("*.npy"))]
    return {"train": names[::2], "val": names[1::2], "decode": lambda path: np.load(path) / np.float32(50)}
"""


def test_arrays_are_read_by_the_reader_of_the_run(tmp_path: Path) -> None:
    for number, name in enumerate(("a0", "a1", "a2", "a3", "b0", "b1", "b2", "b3")):
        pixels = np.random.default_rng(number).integers(50, size=(32, 32, 5), dtype=np.uint8)
        np.save(tmp_path / f"{name}.npy", pixels)
    (tmp_path / "reader.py").write_text(READER)
    (tmp_path / "arrays.yaml").write_text(f"format: reader.py:read\nroot: {tmp_path}\n")
    words = ["--backbone", "tiny", "--weights", "random", "--in-chans", "5", "--threads", "1", "--workers", "0"]
    words += ["--dataset", str(tmp_path / "arrays.yaml"), "--size", "32", "--resize", "32", "--batch-size", "4"]
    assert run(["linear", *words, *SHORT, "--out", str(tmp_path / "runs")]) == 0
    (ran,) = load(tmp_path / "runs")
    found = ran.predict([tmp_path / name for name in ("a1.npy", "a3.npy", "b1.npy", "b3.npy")]).arrays
    ranks = true_class_ranks(torch.from_numpy(found["logits"]), torch.tensor([0, 0, 1, 1]))
    np.testing.assert_array_equal(ranks[:, 0], ran.per_sample()["rank"])
    (tmp_path / "reader.py").write_text(READER.replace("50", "60"))
    with pytest.raises(UserError, match="the file has changed since"):
        ran.predict(tmp_path / "a1.npy")


OWN_TASK = """from dataclasses import dataclass

from backbones.backbone import create
from transfer import api

@dataclass(kw_only=True)
class Options:
    size: int = 32
    eval_precision: str = "fp32"

class Norms(api.Classification):
    name, options, primary, metrics = "norms", Options, "norm", {"norm": api.Metric(bounds=(0, 100))}

    def run(self, spec, dataset, options, context):
        backbone = create(spec, img_size=options.size).eval()
        images = api.SplitDataset(dataset.val, api.eval_transform(options.size))
        rows = api.extract(backbone.pooled, images, context, batch_size=8, label="norms")
        outcomes = api.image_outcomes(dataset.val) | {"norm": rows.norm(dim=1).double().numpy()}
        return self.rescore(outcomes), outcomes

    def rescore(self, outcomes):
        return {"norm": float(outcomes["norm"].mean())}

TASK = Norms()
"""


def test_a_task_of_the_users_needs_no_options_of_batches(out: Path, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN_TASK)
    words = ["--backbone", "tiny", "--weights", str(run_of(out, "finetune").folder), "--dataset", "toy_digits"]
    words += ["--subset", "2"]
    assert run([f"{tmp_path / 'own.py'}:TASK", *words, "--threads", "1", "--out", str(tmp_path / "runs")]) == 0
    (ran,) = load(tmp_path / "runs")
    data = load_task("knn").open(resolve_dataset("toy_digits"), None, root=None, subset=2, drop_corrupt=False)
    found = ran.predict([data.val.path(index) for index in range(len(data.val))]).arrays["features"]
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), ran.per_sample()["norm"], rtol=1e-5)


def test_a_batch_may_have_fewer_images_than_in_the_run(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, normalised = list[int](), Backbone.normalised
    monkeypatch.setattr(Backbone, "normalised", lambda self, x: sizes.append(len(x)) or normalised(self, x))
    run = run_of(out, "finetune")
    run.predict(data_of(run).val.path(0), gallery=[data_of(run).val.path(index) for index in range(4)])
    assert sizes == [1, 4]
    run.predict([data_of(run).val.path(index) for index in range(4)], eval_batch_size=2)
    assert sizes[2:] == [2, 2]


def test_features_rank_as_in_the_evaluation_to_the_bit_and_neighbors_are_the_nearest(out: Path) -> None:
    run = run_of(out, "reid")
    data, kept = data_of(run), run.per_sample()
    lists = data.query, data.gallery
    paths = [[sample.path for sample in samples] for samples in lists]
    features = [run.predict(of).arrays["features"] for of in paths]
    labels = [np.array([getattr(one, kind) for one in of]) for kind in ("identity", "camera") for of in lists]
    outcomes = rank(*map(torch.from_numpy, features), *labels).outcomes()
    assert outcomes.keys() <= kept.keys()
    assert all(np.array_equal(values, kept[name], equal_nan=True) for name, values in outcomes.items())

    near = run.predict(paths[0], gallery=paths[1])
    length = [np.linalg.norm(of.astype(float), axis=1) for of in features]
    cosine = features[0].astype(float) @ features[1].astype(float).T / np.outer(*length)
    np.testing.assert_allclose(near.arrays["similarity"], cosine, atol=1e-12)
    np.testing.assert_array_equal(near.arrays["gallery_features"], features[1])
    table = near.to_frame(top=3)
    assert table["score"].tolist() == np.sort(near.arrays["similarity"])[:, :-4:-1].ravel().tolist()
    assert table["nearest"][0] == near.arrays["gallery"][near.arrays["similarity"][0].argmax()]

    among = run.predict(paths[0][:2], gallery=paths[0][:3])  # no image is its own neighbor
    assert np.isnan(among.arrays["similarity"]).tolist() == [[True, False, False], [False, True, False]]
    assert among.to_frame()["rank"].tolist() == [1, 2, 1, 2]


def test_features_and_maps_of_a_detector_are_those_of_its_maps(tmp_path: Path, capfd: Captured) -> None:
    words = ["--detector", "faster_rcnn_light", "--subset", "4", "--relative", "--window", "3"]
    assert run(["detect", *WORDS, *SHORT, *words, "--out", str(tmp_path / "runs")]) == 0
    trained = run_of(tmp_path, "detect")
    image = data_of(trained).val.paths()[0]
    capfd.readouterr()
    assert main([str(trained.folder), image, "--to", str(tmp_path / "x.npz"), "--maps", str(tmp_path / "maps")]) == 0
    assert capfd.readouterr().out == f"1 image, 64 features each: {tmp_path}/x.npz; maps: {tmp_path}/maps/\n"
    assert main([str(trained.folder), image, "--to", str(tmp_path / "found.json"), "--pictures", str(tmp_path)]) == 0
    count = len(json.loads((tmp_path / "found.json").read_text())["annotations"])
    said = f"1 image, {count} detections with a score of at least 0.05: {tmp_path}/found.json; pictures: {tmp_path}/\n"
    assert capfd.readouterr().out == said
    learner: Any = trained.model()
    pixels = to_floats(eval_transform(224)(Image.open(image).convert("RGB"))[None])
    with torch.inference_mode(), np.load(tmp_path / "x.npz") as arrays:
        np.testing.assert_allclose(arrays["features"], learner.maps(pixels)[-1].mean((2, 3)), rtol=1e-5, atol=1e-6)
    assert len([*(tmp_path / "maps").iterdir()]) == 2


@pytest.mark.nightly
def test_detections_are_those_of_the_evaluation_to_the_bit(tmp_path: Path) -> None:
    from pycocotools.coco import COCO

    assert run(["detect", *WORDS, "--out", str(tmp_path / "runs")]) == 0
    trained = run_of(tmp_path, "detect")
    val, kept = data_of(trained).val, json.loads((trained.folder / "detections.json").read_text())
    files = ["--to", str(tmp_path / "found.json"), "--pictures", str(tmp_path / "drawn"), "--maps", str(tmp_path)]
    assert main([str(trained.folder), *val.paths(), *files]) == 0
    found = COCO(str(tmp_path / "found.json"))
    ids = {image["id"]: val.images[place].id for place, image in enumerate(found.dataset["images"])}
    assert [Path(image["file_name"]).name for image in found.imgs.values()] == [Path(one).name for one in val.paths()]
    rows = [{name: item[name] for name in kept[0]} for item in found.dataset["annotations"]]
    assert [row | {"image_id": ids[row["image_id"]]} for row in rows] == kept
    items = found.anns.values()
    assert [item["area"] for item in items] == [found.annToMask(item).sum() for item in items]
    assert len([*(tmp_path / "drawn").glob("*.png")]) == len(val.paths())
    assert len(trained.predict(val.paths()).to_frame()) == len(kept)
    assert type(trained.model()).__name__ == "DetectionLearner"

    file = trained.folder / "export" / "export.json"  # now as of a training with `exif: apply`
    facts = json.loads(file.read_text())
    assert facts["upright"] is False
    file.write_text(json.dumps(facts | {"upright": True}))
    upright = Image.open(val.paths()[0]).convert("RGB").crop((0, 0, 60, 40))
    upright.save(tmp_path / "upright.png")
    save_turned(upright, tmp_path / "turned.png")
    one, other = (trained.predict(tmp_path / name).arrays["coco"] for name in ("upright.png", "turned.png"))
    assert one["annotations"] == other["annotations"]
    assert [(image["width"], image["height"]) for image in other["images"]] == [(60, 40)]


def test_images_are_turned_by_the_task_that_did_and_by_no_other_on_its_weights(out: Path, tmp_path: Path) -> None:
    file = run_of(out, "finetune").folder / "export" / "pretrain.json"
    content = file.read_text()
    noise = np.random.default_rng(0).integers(0, 255, (40, 30, 3), dtype=np.uint8)
    save_turned(Image.fromarray(noise), tmp_path / "turned.png")
    runs = [run_of(out, "finetune"), run_of(out, "classify")]
    stored = [run.predict(tmp_path).arrays["logits"] for run in runs]
    file.write_text(json.dumps(json.loads(content) | {"upright": True}))
    turned = [run.predict(tmp_path).arrays["logits"] for run in runs]
    file.write_text(content)
    assert [np.array_equal(*pair) for pair in zip(stored, turned)] == [False, True]


def test_images_of_a_folder_a_pattern_and_a_list_and_files_of_each_kind(out: Path, tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    noise = np.random.default_rng(0).integers(0, 255, (40, 30, 3), dtype=np.uint8)
    Image.fromarray(noise[..., 0].astype(np.uint16) * 257).save(tmp_path / "grey.png")
    Image.fromarray(noise).convert("CMYK").save(tmp_path / "cmyk.jpg")
    save_turned(Image.fromarray(noise), tmp_path / "below" / "turned.jpg")
    Image.new("RGB", (1, 1)).save(tmp_path / "dot.png")
    (tmp_path / "broken.png").write_bytes((tmp_path / "grey.png").read_bytes()[:200])
    trained = run_of(out, "finetune")
    names = ["below/turned.jpg", "cmyk.jpg", "dot.png", "grey.png"]
    with pytest.raises(UserError, match=r"1 of 5 images cannot be read:\n.*broken\.png"):
        trained.predict(tmp_path)
    with pytest.raises(UserError, match=r"^no readable image in .*: broken\.png; name images"):
        trained.predict(tmp_path / "broken.png", drop_corrupt=True)
    folder = trained.predict(str(tmp_path), drop_corrupt=True)
    for given in (f"{tmp_path}/**/*[dtky].*g", [tmp_path / name for name in names]):
        found = trained.predict(given)
        assert list(found.images.names) == list(folder.images.names) == names
        np.testing.assert_array_equal(found.arrays["logits"], folder.arrays["logits"])

    words = [str(trained.folder), str(tmp_path / "*.jpg"), str(tmp_path / "dot.png"), "--top", "2"]
    for suffix, read in ((".csv", pd.read_csv), (".parquet", pd.read_parquet), (".json", pd.read_json)):
        assert main([*words, "--to", str(tmp_path / f"to/x{suffix}")]) == 0
        table = read(tmp_path / f"to/x{suffix}")
        assert table[["image", "rank"]].values.tolist() == [[name, k] for name in names[1:3] for k in (1, 2)]
        np.testing.assert_allclose(table["score"][::2], folder.arrays["scores"].max(1)[1:3], rtol=1e-6)
    assert main([*words, "--to", str(tmp_path / "x.npz"), "--maps", str(tmp_path / "maps")]) == 0
    assert main([*words, "--to", str(tmp_path / "x.parquet"), "--features"]) == 0
    with np.load(tmp_path / "x.npz") as arrays:
        table = pd.read_parquet(tmp_path / "x.parquet")
        np.testing.assert_array_equal(arrays["features"], table.drop(columns="image"))
        assert arrays["names"].tolist() == names[1:3]
    drawn = sorted(path.name for path in (tmp_path / "maps").iterdir())
    assert drawn == [f"{name}.{kind}.png" for name in names[1:3] for kind in ("attention", "similarity")]


def test_maps_are_the_attention_of_the_class_token_and_the_cosine_with_the_mean_token(out: Path) -> None:
    backbone: Any = run_of(out, "finetune").model()
    images = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        maps, entries = token_maps(backbone, images), backbone.tokens(images)
        block = backbone.model.blocks[-1]
        q, k, _ = block.attn.qkv(block.norm1(entries[-2])).unflatten(2, (3, block.attn.num_heads, -1)).unbind(2)
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
        attention = scores.softmax(-1).mean(1)[:, 0, 1:]
        patches = entries[-1][:, 1:]
        cosine = torch.cosine_similarity(patches, patches.mean(1, keepdim=True), dim=-1)
    torch.testing.assert_close(maps["attention"].flatten(1), attention)
    torch.testing.assert_close(maps["similarity"].flatten(1), cosine)


def test_what_cannot_work_is_one_line(out: Path, tmp_path: Path, capfd: Captured) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    image, finetuned = str(tmp_path / "a.png"), run_of(out, "finetune")
    without = load(out / "runs").filter(seed=1)[0].folder
    cases = {
        "export; it was made with --save-weights none": [str(without), image],
        "no images found": [str(finetuned.folder), str(tmp_path / "*.jpg")],
        "must end in .json, .csv, .parquet, .npz": [str(finetuned.folder), image, "--to", "x.txt"],
        "is supported by detect and segment": [str(finetuned.folder), image, "--pictures", str(tmp_path)],
        "no record.json": [str(tmp_path), image],
        "left: interrupted (the same command restarts: nothing was saved)": [str(tmp_path / "left"), image],
    }
    (tmp_path / "left").mkdir()
    (tmp_path / "left" / "options.yaml").touch()
    for said, words in cases.items():
        assert main(words) in (1, 2)
        assert said in capfd.readouterr().err.strip().splitlines()[-1]
    with pytest.raises(UserError, match=r"export; it trained no backbone$"):
        _ = run_of(out, "classify").weights
    weights = finetuned.folder / "export" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"abcd")
    with pytest.raises(UserError, match="not the file that was exported"):
        finetuned.predict(image)
