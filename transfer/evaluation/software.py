"""Versions of packages, and the state of the suite's own files. Imports no torch."""

import subprocess
from functools import cache
from pathlib import Path

from transfer.core.settings import CONFIGS

PACKAGES = ("vit-transfer", "torch", "torchvision", "timm", "triton", "numpy", "pillow")


@cache
def source_state() -> tuple[str | None, bool | None]:
    """Return the commit of the suite's checkout and whether files differ from it; (None, None) outside a checkout."""
    if not (CONFIGS.parent / ".git").exists():
        return None, None
    try:
        commit = _git(CONFIGS.parent, "rev-parse", "HEAD")
        return commit, bool(_git(CONFIGS.parent, "status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):
        return None, None


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    process = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    return process.stdout.strip()
