"""ImageNet-1k and ImageNet-21k in the layouts they are published in: classes are WordNet ids."""

from pathlib import Path

from backbones.data.folders import Found
from backbones.data.spec import DatasetSpec


def imagenet(spec: DatasetSpec, data: Path | None) -> Found:
    raise NotImplementedError


def imagenet21k(spec: DatasetSpec, data: Path | None) -> Found:
    raise NotImplementedError
