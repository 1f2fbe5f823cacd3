"""Names of timm's architectures, without importing timm."""

import re
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path


@lru_cache
def timm_names() -> tuple[str, ...]:
    """timm's architectures, read from its sources (milliseconds; importing timm takes seconds)."""
    return _names("*.py")


@lru_cache
def plain_vits() -> frozenset[str]:
    """Those of them that are plain vision transformers, with positions for the patches of one grid."""
    return frozenset(_names("vision_transformer.py") + _names("deit.py"))


def _names(pattern: str) -> tuple[str, ...]:
    package = find_spec("timm")
    assert package is not None
    assert package.origin is not None
    entry = re.compile(r"^@register_model\s*\n(?:@.*\n)*def (\w+)", re.MULTILINE)
    files = sorted((Path(package.origin).parent / "models").glob(pattern))
    return tuple(sorted({name for file in files for name in entry.findall(file.read_text(encoding="utf-8"))}))
