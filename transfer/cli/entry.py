"""How every command begins and ends: usage, `--version` and `--list`, and errors as one line. Imports no torch."""

import os
import sys
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version

from backbones.archs import timm_names
from transfer.core import __version__, user_code
from transfer.core.errors import print_safe, unknown
from transfer.core.exports import shipped_names
from transfer.core.files import with_home
from transfer.core.machine_errors import in_one_line
from transfer.core.process import INTERRUPTED, end_with_parent
from transfer.core.settings import config_names

LISTINGS: dict[str, Callable[[], Iterable[str]]] = {
    **{kind: partial(config_names, kind) for kind in ("tasks", "backbones", "datasets", "detectors", "sweeps")},
    **{f"{part}s": partial(user_code.builtin_names, part) for part in user_code.VARIED_PARTS},
    "recipes": partial(config_names, "pretrain"),
    "weights": shipped_names,
}
"""Kind of names -> what lists them."""


def listing(kinds: Iterable[str]) -> str:
    """Return the names of each kind below its title; one kind alone has none. Raises UsageError for an unknown kind."""
    chosen = list(kinds)
    for kind in chosen:
        if kind not in LISTINGS:
            raise unknown("kind of name", kind, LISTINGS)
    if len(chosen) == 1:
        return "\n".join(LISTINGS[chosen[0]]())
    parts = [f"{kind}:\n  " + "\n  ".join(LISTINGS[kind]()) for kind in chosen]
    timm_models = f"Any of timm's {len(timm_names())} models is a backbone too."
    return "\n".join([*parts, f"--list KIND lists one of {', '.join(LISTINGS)}. {timm_models}"])


def package_version(name: str) -> str | None:
    """Return the version of an installed distribution, or None when it is not installed."""
    try:
        return __version__ if name == "vit-transfer" else version(name)  # the metadata of a checkout may be old
    except PackageNotFoundError:
        return None


def installed_versions() -> str:
    """Return the versions of the suite and of what its numbers depend on most."""
    return ", ".join(f"{name} {package_version(name) or 'not installed'}" for name in ("vit-transfer", "torch", "timm"))


def exit_on_user_error(
    main: Callable[[list[str]], int], argv: list[str] | None, *, usage: str = "", listed: tuple[str, ...] = ()
) -> int:
    """Run the body of a command; any error becomes one line on stderr and an exit status. See `end_with_parent`.

    Args:
        main: the body, which returns the exit status.
        argv: its arguments, by default those of the process; `--debug` among them shows the traceback of an error, too.
        usage: the text that a command which needs arguments prints without any, or for `--help` as the first one.
        listed: the kinds of names that `--list` shows, see `LISTINGS`; by default all.
    """
    end_with_parent()
    status = _status(main, sys.argv[1:] if argv is None else argv, usage, listed)
    if getattr(sys.modules.get("torch.distributed"), "is_initialized", bool)():
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        # the other ranks may be inside a collective, for whose end NCCL would wait; torchrun ends them
        os._exit(status)
    return status


def _status(main: Callable[[list[str]], int], words: list[str], usage: str, listed: tuple[str, ...]) -> int:
    debug, argv = "--debug" in words, [with_home(word) for word in words if word != "--debug"]
    try:
        if usage and (not argv or argv[0] in ("-h", "--help")):
            print_safe(usage)
            return 0 if argv else 2
        if argv[:1] == ["--version"]:
            print_safe(installed_versions())
            return 0
        if argv[:1] == ["--list"]:
            print_safe(listing(argv[1:] or listed))
            return 0
        status = main(argv)
        sys.stdout.flush()  # here a full disk can still be told in one line
        return status
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    except BrokenPipeError:
        # The reader of the output has closed it, as `head` does.
        sys.stderr.close()
        return 0
    except KeyboardInterrupt:
        print_safe("stopped by Ctrl-C", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        if debug:
            print_safe(traceback.format_exc(), file=sys.stderr)
        if isinstance(error, OSError):
            with suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else the interpreter would try again, and complain
        reported = in_one_line(error)
        print_safe(f"error: {reported}", file=sys.stderr)
        return reported.exit_status
