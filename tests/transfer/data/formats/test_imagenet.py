import json
import shutil

import numpy as np
import pytest
from scipy.io import savemat

from tests.transfer.data.layouts import encoded, spec, write_images
from transfer.core.errors import UserError
from transfer.data.classification import open_classification
from transfer.data.formats.imagenet import wnids
from transfer.data.layouts import SOLUTION
from transfer.data.spec import resolve_dataset

WNIDS = ("n01440764", "n01443537", "n02123045")
TRUTH = [2, 0, 1, 2]


def write_train(root):
    for label, wnid in enumerate(WNIDS):
        write_images(root / "train" / wnid, 2, label)
    return root


def write_flat(folder):
    folder.mkdir(parents=True)
    for number in range(1, 5):
        (folder / f"ILSVRC2012_val_{number:08d}.JPEG").write_bytes(encoded(100, number))


def write_solution(path, second=WNIDS[1]):
    listed = (WNIDS[0], second, WNIDS[2])
    lines = [f"ILSVRC2012_val_{number:08d},{listed[TRUTH[number - 1]]} 1 2 3 4 \n" for number in (3, 1, 4, 2)]
    path.write_text("ImageId,PredictionString\n" + "".join(lines), encoding="utf-8-sig")


def write_devkit(folder):
    """The devkit numbers its classes in an order of its own and has more synsets than classes."""
    folder.mkdir(parents=True)
    numbered = [WNIDS[1], WNIDS[2], WNIDS[0], "n00001740"]
    kind = [("ILSVRC2012_ID", object), ("WNID", object), ("num_children", object)]
    synsets = np.array([(number, wnid, 0) for number, wnid in enumerate(numbered, start=1)], dtype=kind)
    savemat(folder / "meta.mat", {"synsets": synsets.reshape(-1, 1)})
    lines = [str(numbered.index(WNIDS[label]) + 1) for label in TRUTH]
    (folder / "ILSVRC2012_validation_ground_truth.txt").write_text("\n".join(lines) + "\n")


def opened(root, kind="imagenet", classes=3):
    return open_classification(spec(kind, root, **({"classes": classes} if classes else {})), None)


@pytest.mark.parametrize("layout", ["csv", "devkit", "kaggle", "kaggle, named below", "val alone"])
def test_flat_validation(tmp_path, layout):
    images = tmp_path / "ILSVRC/Data/CLS-LOC" if layout.startswith("kaggle") else tmp_path
    write_flat(write_train(images) / "val")
    if layout == "devkit":
        write_devkit(tmp_path / "ILSVRC2012_devkit_t12" / "data")
    else:
        write_solution(tmp_path / SOLUTION)
    if layout == "val alone":
        shutil.rmtree(tmp_path / "train")
    data = opened(images if layout == "kaggle, named below" else tmp_path, classes=None if "alone" in layout else 3)
    assert (data.train is None) == (layout == "val alone")
    assert [data.classes[label] for label in data.val.labels] == [WNIDS[label] for label in TRUTH]
    assert data.val.names[0] == "ILSVRC2012_val_00000001.JPEG"
    assert data.val.encoded(2) == encoded(100, 3)


def test_a_subset_of_the_classes_leaves_out_validation_images_of_others(tmp_path):
    write_flat(write_train(tmp_path) / "val")
    write_solution(tmp_path / SOLUTION)
    shutil.rmtree(tmp_path / "train" / WNIDS[0])
    with pytest.raises(UserError, match=r"YAML file with `format: imagenet`, `root: .*` and `classes: 2`$"):
        opened(tmp_path, classes=None)
    assert "val: 1 of 4 images of other classes left out" in opened(tmp_path, classes=2).notes


def devkit(root):
    write_devkit(root / "ILSVRC2012_devkit_t12" / "data")
    (root / "ILSVRC2012_devkit_t12" / "data" / "ILSVRC2012_validation_ground_truth.txt").write_text("1\n77\n")
    (root / SOLUTION).unlink()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda root: (root / SOLUTION).unlink(), f"neither {SOLUTION} .* nor ILSVRC2012_devkit_t12"),
        (lambda root: (root / "val" / "x.JPEG").write_bytes(encoded(3)), f"{SOLUTION}: it gives .*x.JPEG no class"),
        (lambda root: write_solution(root / SOLUTION, "n09999999"), "n09999999, which is not one of the 3"),
        (devkit, "ground_truth.txt: not the list .*77"),
        (lambda root: write_images(root / "train" / "cats", 1), "4 class folders in .* but `classes` is 3"),
        (lambda root: (root / "val").rename(root / "x") and write_images(root / "val/dog", 1), "folder.* not .*: dog"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, spoil, said):
    write_flat(write_train(tmp_path) / "val")
    write_solution(tmp_path / SOLUTION)
    spoil(tmp_path)
    with pytest.raises(UserError, match=said):
        opened(tmp_path)


@pytest.mark.parametrize(
    ("classes", "listed", "kind"), [(1000, True, "imagenet"), (1000, False, "image_folder"), (3, True, "image_folder")]
)
def test_a_folder_of_any_name_with_validation_images_in_no_folders(tmp_path, classes, listed, kind):
    root = write_train(tmp_path / "any" / "CLS-LOC")
    write_flat(root / "val")
    for wnid in wnids("imagenet1k")[:classes]:
        (root / "train" / wnid).mkdir(exist_ok=True)
    if listed:
        write_solution(tmp_path / SOLUTION)
    assert resolve_dataset(str(root)).format == kind


def test_the_full_list_of_21k_keeps_its_labels(tmp_path):
    root = tmp_path / "set"
    for wnid in ("n02123045", "n01440764"):
        write_images(root / wnid, 2)
    data = opened(root, "imagenet21k", classes=None)
    google = wnids("imagenet21k_goog")
    assert data.classes == google
    assert data.val is None
    assert data.train.labels.tolist() == [google.index("n01440764")] * 2 + [google.index("n02123045")] * 2
    assert data.counts["train"] == {"images": 4, "classes": 2}
    write_images(root / "n04399382", 1)
    with pytest.raises(UserError, match=r"1 folder.s. are not among the classes: n04399382[\s\S]*`classes: N`"):
        opened(root, "imagenet21k", classes=None)
    assert opened(root, "imagenet21k", classes=3).train.labels.tolist() == [0, 0, 1, 1, 2]


@pytest.mark.parametrize("subset", [False, True])
def test_a_test_set_has_a_folder_for_each_class_or_its_number(tmp_path, subset):
    root, ours, published = tmp_path / "set", [0, 10, 130], wnids("imagenet1k")
    for label in ours:
        write_images(root / (published[label] if subset else str(label)), 2, label)
    data = opened(root, "imagenet_test", classes=3 if subset else None)
    assert [data.classes[label] for label in data.val.labels] == [published[label] for label in ours for _ in range(2)]
    assert (data.train, len(data.classes)) == (None, 3 if subset else 1000)
    write_images(root / "n00000000", 1)
    with pytest.raises(UserError, match=r"4 class folders in .* but `classes` is 3" if subset else "n00000000"):
        opened(root, "imagenet_test", classes=3 if subset else None)


def test_images_may_have_several_reassessed_labels_or_none(tmp_path):
    write_flat(write_train(tmp_path) / "val")
    write_solution(tmp_path / SOLUTION)
    reassessed, digests = spec("imagenet", tmp_path, classes=3, labels="real.json"), set()
    with pytest.raises(UserError, match="not found; get it from google-research/reassessed-imagenet"):
        open_classification(reassessed, None)
    for third in ([1, 2], [1, 0]):
        (tmp_path / "real.json").write_text(json.dumps([[2], [], third, [0, 1, 2]]))
        data = open_classification(reassessed, None)
        digests |= {data.digest}
    assert len(digests) == 2
    assert data.train is None
    assert [name[-6] for name in data.val.names] == ["1", "3", "4"]
    assert data.val.labels.tolist() == [2, 1, 0]
    assert data.val.select(np.array([2, 0])).true_labels.tolist() == [[0, 1, 2], [2, -1, -1]]
    assert "val: 1 of 4 images without a label in real.json left out" in data.notes
    assert data.counts["val"] == {"images": 3}  # so that no chance level is shown
    (tmp_path / "real.json").write_text(json.dumps([[2], [], [2, 1], [2]]))
    assert f"val: no image of 1 of 3 classes: {data.classes[0]}" in open_classification(reassessed, None).notes
    wrong = {
        "[[0], [1]]": "IndexError",
        "[[0], [9], [2], [-1]]": "labels: -1, 9; they must be from 0 to 2",
        "no JSON": "Expecting value",
    }
    for text, said in wrong.items():
        (tmp_path / "real.json").write_text(text)
        with pytest.raises(UserError, match=rf"^\S+real\.json: it must have a list .* in \S+val \(.*{said}.*\)$"):
            open_classification(reassessed, None)
