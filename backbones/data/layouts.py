"""The layouts that data sets come in: what each looks like on disk, and which YAML keys it knows. Imports no torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Format:
    """How a layout looks on disk, and which YAML keys beyond the common ones it understands.

    `trees` are alternatives: a folder has the layout when it holds every entry of one of them ("/" marks folders).
    Without trees any folder will do, and the reader of the format judges it.
    """

    trees: tuple[tuple[str, ...], ...] = ()
    keys: tuple[str, ...] = ()


MSMT17_LISTS = ("list_train.txt", "list_query.txt", "list_gallery.txt")
CUB_LISTS = ("images.txt", "image_class_labels.txt", "train_test_split.txt", "classes.txt")
CARS = ("cars_train/", "cars_test/", "devkit/cars_train_annos.mat", "devkit/cars_meta.mat")
CIFAR10 = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta")
TISSUES = ("01_TUMOR", "02_STROMA", "03_COMPLEX", "04_LYMPHO", "05_DEBRIS", "06_MUCOSA", "07_ADIPOSE", "08_EMPTY")
STORAGE_KEYS = ("hub", "generator")
"""Keys of the published layouts: `hub` names the same set on the Hugging Face hub (`formats/storage_variants.py`)."""

FORMATS = {
    "market1501": Format(
        (("bounding_box_train/", "query/", "bounding_box_test/"), ("query/", "bounding_box_test/")),
        ("train", "query", "gallery", "pattern", "cameras", "generator"),
    ),
    "msmt17": Format(
        (("train/", "test/", *MSMT17_LISTS), ("mask_train_v2/", "mask_test_v2/", *MSMT17_LISTS)), ("generator",)
    ),
    "reid_lists": Format(
        keys=("train", "query", "gallery", "columns", "header", "images", "cameras", "split"),
    ),
    "torchreid": Format(keys=("set", "split", "cameras")),
    "image_folder": Format((("train/",), ("val/",)), ("train", "val", "generator")),
    "imagenet": Format(
        (("train/",), ("val/",), ("ILSVRC/Data/CLS-LOC/train/",), ("ILSVRC/Data/CLS-LOC/val/",)), ("classes",)
    ),
    "imagenet21k": Format((("n01440764/",),), ("classes",)),
    "parquet": Format(keys=("train", "val", "image", "label")),
    "hf": Format(keys=("hub", "revision", "config", "train", "val", "image", "label")),
    "cub200": Format((("images/", *CUB_LISTS),), STORAGE_KEYS),
    "caltech101": Format((("101_ObjectCategories/",), ("BACKGROUND_Google/",)), STORAGE_KEYS),
    "stanford_cars": Format((CARS,), STORAGE_KEYS),
    "cifar": Format((("train", "test", "meta"), CIFAR10), STORAGE_KEYS),
    "dtd": Format((("images/", "labels/"),), ("partition", *STORAGE_KEYS)),
    "colorectal_histology": Format((tuple(f"{name}/" for name in TISSUES),), ("train_images", *STORAGE_KEYS)),
    "oxford_pets": Format((("images/", "annotations/trainval.txt", "annotations/test.txt"),), STORAGE_KEYS),
    "uc_merced": Format((("Images/",),), ("train_images", *STORAGE_KEYS)),
    "coco": Format(keys=("train_annotations", "train_images", "val_annotations", "val_images", "exif", "generator")),
}
