"""The commands and the Python interface (`evaluate`, `pretrain`, `load`, `compare`), and the framework below them.

`core`, `statistics`, `data` and `engine` know neither models nor tasks; `backbones` and `tasks` stand on them. The
other folders run, record and show tasks, which they find by name. Importing this package imports no torch.
"""

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent


def _refusal(reason: str) -> Exception:
    """Return the error that `python -m` prints as one line, an ImportError of this name; a console script ends here."""
    if Path(sys.argv[0]).name.split("-")[0] == "transfer":  # a console script would print it with a traceback
        sys.exit(f"error: {reason}")
    return ImportError(reason, name=__name__)


if sys.version_info < (3, 11):  # noqa: UP036  # in a checkout, where pip has not looked
    raise _refusal(f"Python {sys.version.split()[0]} is too old: use 3.11 or newer")

from transfer.core import __version__ as __version__  # noqa: E402
from transfer.core.lazy import lazy_names  # noqa: E402
from transfer.core.process import wait_asleep  # noqa: E402


def _import_own(package: str) -> None:
    """Import `backbones` or `tasks` from beside this package, whatever a folder of the user's is called.

    The working directory stands first on the path of `python -m` and of notebooks. An installed package of the same
    name overwrites our `__init__.py`.
    """
    sys.path.insert(0, str(ROOT))
    try:
        places = [str(Path(place).resolve()) for place in importlib.import_module(package).__path__]
    except Exception as error:
        from importlib.metadata import packages_distributions

        others = set(packages_distributions().get(package, ())) - {"vit-transfer"}
        state = f"is of another package, {', '.join(sorted(others))}" if others else "cannot be imported"
        fix = f"uninstall what else installs `{package}`, or use another environment; then reinstall the suite"
        place = ROOT / package / "__init__.py"
        raise _refusal(f"{place} {state} ({type(error).__name__}: {error}): {fix}") from error
    finally:
        sys.path.remove(str(ROOT))
    if str(ROOT / package) not in places:
        raise _refusal(f"`{package}` is that of {places}, not of {ROOT}; import `transfer` first")


for _package in ("backbones", "tasks"):
    _import_own(_package)


wait_asleep()  # torch reads it when it is imported, later than this package

if TYPE_CHECKING:
    from transfer import testing
    from transfer.api import RunsFailed, evaluate, pretrain
    from transfer.core.errors import MachineError, MissingInput, UsageError, UserError
    from transfer.runs import Run, RunSet, compare, load, measure_cost

_MODULES = {
    "transfer.core.errors": ("MachineError", "MissingInput", "UsageError", "UserError"),
    "transfer.runs": ("Run", "RunSet", "compare", "load", "measure_cost"),
    "transfer.api": ("RunsFailed", "evaluate"),
}
"""Module -> names of the interface; besides `pretrain`, a module that can be called, and the package `testing`."""
_part = lazy_names(__name__, _MODULES)
__all__ = [
    "MachineError", "MissingInput", "Run", "RunSet", "RunsFailed", "UsageError", "UserError",
    "compare", "evaluate", "load", "measure_cost", "pretrain", "testing",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a part of the interface when it is first asked for."""
    return importlib.import_module(f"transfer.{name}") if name in ("pretrain", "testing") else _part(name)


def __dir__() -> list[str]:
    """Return the names of the interface, for completion."""
    return sorted({*globals(), *__all__})
