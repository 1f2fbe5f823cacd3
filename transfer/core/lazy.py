"""Names of a package that are imported from its modules when they are first asked for (PEP 562)."""

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, modules: Mapping[str, Iterable[str]]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package, by module the names that it hands on."""
    homes = {name: module for module, names in modules.items() for name in names}

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes[name]), name)

    return find
