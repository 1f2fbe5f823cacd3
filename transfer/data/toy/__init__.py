"""Bundled datasets for smoke runs and tests, in published layouts: digits of scikit-learn; drawn people, scenes,
shapes.

They are written to the cache folder when they are first used.
"""

from pathlib import Path

TOY_VERSION = 1
"""Counts up with every change of what is drawn: results on other images are results on another dataset."""


def bundled_folder(name: str) -> Path:
    """Return the folder of a bundled set, which is drawn on first use. Raises UserError if that fails."""
    from transfer.core.cache import make_once
    from transfer.data.toy import digits, people, scenes

    writers = digits.WRITERS | {
        "digits": digits.write_digits,
        "market": people.write_market,
        "msmt17": people.write_msmt17,
        "coco": scenes.write_scenes,
        "masks": scenes.write_shapes,
    }
    return make_once(f"{name}-{TOY_VERSION}", writers[name.removeprefix("toy_")])
