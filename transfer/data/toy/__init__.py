"""Bundled datasets for smoke runs and tests, in published layouts: digits of scikit-learn; drawn people, scenes,
shapes.

They are written to the cache folder when they are first used.
"""

from pathlib import Path


def bundled_folder(name: str) -> Path:
    """Return the folder of a bundled set, which is drawn on first use. Raises UserError if that fails."""
    from transfer.data.toy import digits, people, scenes

    return (digits.GENERATORS | people.GENERATORS | scenes.GENERATORS)[name]()
