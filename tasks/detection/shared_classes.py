"""Scores on a dataset whose classes agree only in part with those that a detector was trained for."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from backbones.checkpoints.exports import export_folder, pretraining_facts
from backbones.errors import UserError, shortened
from backbones.spec import BackboneSpec
from tasks.data.coco import CocoData


@dataclass(frozen=True)
class SharedClasses:
    """Classes of equal names in training and in a dataset."""

    names: tuple[str, ...]
    """Those that both have, in the order of the dataset."""
    only_trained: tuple[str, ...]
    """Those that the dataset lacks; detections of them are dropped."""
    only_in_data: tuple[str, ...]
    """Those that the detector does not know; their objects are left out of the truth."""
    left_out: int
    """Number of objects left out, crowds included."""
    truth: CocoData
    """The dataset with the shared classes alone, without a training split."""
    predicted: CocoData
    """The dataset with the classes of the detector; those that it lacks have the id `dropped`."""
    dropped: int
    """Category id of detections to drop."""

    def facts(self) -> dict[str, Any]:
        """Return the mapping for the record."""
        return {
            "shared": list(self.names),
            "only_trained": list(self.only_trained),
            "only_in_data": list(self.only_in_data),
            "objects_left_out": self.left_out,
        }

    def __str__(self) -> str:
        """Return one sentence for the user."""
        text = f"scored are the {len(self.names)} classes that training and {self.truth.name} share by name "
        text += f"({shortened(self.names)})"
        if self.only_trained:
            text += f"; only trained: {shortened(self.only_trained)}"
        if self.only_in_data:
            text += (
                f"; only in {self.truth.name}, left out with {self.left_out} objects: {shortened(self.only_in_data)}"
            )
        return text


def shared_classes(spec: BackboneSpec, data: CocoData) -> SharedClasses | None:
    """Return the classes that the trained detector in `spec.weights` shares with a dataset; None if all are the same.

    Raises:
        UserError: they share none.
    """
    trained = pretraining_facts(export_folder(spec.weights) or Path(spec.weights)).get("classes")
    if trained is None or list(trained) == list(data.classes):
        return None
    names = tuple(name for name in data.classes if name in trained)
    if not names:
        raise UserError(
            f"{spec.weights}: the detector was trained for {len(trained)} classes ({shortened(trained, 3)}), of which "
            f"{data.name} has none by name; its {len(data.classes)} are {shortened(data.classes, 3)}"
        )
    assert data.val is not None
    truth = with_classes(data, names)
    assert truth.val is not None
    id_of, dropped = dict(zip(data.classes, data.category_ids)), min(data.category_ids) - 1
    return SharedClasses(
        names=names,
        only_trained=tuple(name for name in trained if name not in names),
        only_in_data=tuple(name for name in data.classes if name not in names),
        left_out=len(data.val.ids) - len(truth.val.ids),
        truth=truth,
        predicted=replace(
            data, classes=tuple(trained), category_ids=tuple(id_of.get(name, dropped) for name in trained)
        ),
        dropped=dropped,
    )


def with_classes(data: CocoData, names: Sequence[str]) -> CocoData:
    """Return a dataset with the validation objects of some classes alone; images without any stay.

    Args:
        data: with a validation split.
        names: classes of the dataset, in its order.
    """
    assert data.val is not None
    places = [data.classes.index(name) for name in names]
    new_label = np.full(len(data.classes), -1)
    new_label[places] = np.arange(len(places))
    val = data.val.select_objects(new_label[data.val.label] >= 0)
    ids = tuple(data.category_ids[place] for place in places)
    return replace(
        data, classes=tuple(names), category_ids=ids, train=None, val=replace(val, label=new_label[val.label])
    )
