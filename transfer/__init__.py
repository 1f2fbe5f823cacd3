"""The commands: the only place that reads argv, writes records and draws tables.

`run`, `pretrain` and `features` are modules here; `sweep`, `report`, `verify` and `doctor` are rooms of their own.
Models and the training loop live in `backbones`, what is measured on them in `tasks`.
"""

from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

for _room in ("backbones", "tasks"):
    # `python -m` puts the working directory first on the path, where a user's own folder of that name may lie.
    _found = find_spec(_room)
    _places = [Path(place).resolve() for place in (_found.submodule_search_locations or [])] if _found else []
    if ROOT / _room not in _places:
        raise SystemExit(
            f"error: `{_room}` is imported from {_places[0] if _places else 'nowhere'}, not from {ROOT / _room}; "
            "rename that folder or start from another one"
        )

from backbones.runtime.threads import wait_asleep  # noqa: E402

wait_asleep()  # torch reads it when it is imported, later than this package
