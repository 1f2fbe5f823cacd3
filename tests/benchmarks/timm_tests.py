"""timm's own generic tests of models, run on our architectures and on variants of their parts.

    pip download --no-binary :all: --no-deps timm==VERSION && tar xf timm-VERSION.tar.gz
    python -m tests.benchmarks timm_tests --checkout timm-VERSION

VERSION is that of the installed timm. The tests that timm runs on each of its models, `tests/test_models.py`, run on
ours, and some that it runs on a few models alone; three models of timm's own run beside them. Ends with pytest's
summary, where XFAIL is a failure of ours for one of `REASONS`, or of timm's own; exits with 1 where ours fail for no
reason, or pass in spite of one. Takes three minutes on a core. `vit_b` and `vit_l`, which differ from `vit_s` in
nothing but numbers, take longer and are left out.

Needs timm's source package.
"""

import itertools
import re
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import timm
from timm.models import generate_default_cfgs, register_model
from torch import nn

import backbones.vit  # noqa: F401  (registers them)
from backbones.archs import ARCHS
from tests.benchmarks.options import read
from transfer.core.errors import UserError

ALSO = (
    "test_forward_after_prune_intermediate_layers",
    "test_model_init_weights_after_to_empty",
    "test_prune_intermediate_layers_params_used",
    "test_pruned_features_torchscript",
)
"tests that timm runs on a few of its models, though they hold for any"

_NO_TORCHSCRIPT = (
    "torch.jit.script is not supported: parts are Python objects chosen by name, and functions ask for sizes, devices "
    "and autocast; torch itself deprecates it for torch.compile and torch.export"
)
_FIXED = "positions of `pos: sincos2d` are fixed, so that they have no gradient"
REASONS = {
    ("test_*_torchscript", "*"): _NO_TORCHSCRIPT,
    ("test_model_*_fx", "*"): "FX tracing is not supported: the stem compares sizes of its images",
    ("test_model_forward_intermediates", "vit_tiny"): "it has two blocks, and the test wants three",
    ("test_model_backward*", "*_sincos2d"): _FIXED,
    ("test_prune_intermediate_layers_params_used", "*_sincos2d"): _FIXED,
}
"why a model of ours fails a test, by patterns of both names"

CONTROLS = ("test_vit", "deit_tiny_patch16_224", "volo_d1_224")
"models of timm's own: what they fail is not ours to mend"
PARTS: dict[str, tuple[Any, ...]] = {
    "stem": ("conv", "conv_gelu", "conv_srelu", "conv_ibn", "3Conv+3LN+3GELU+1Proj", "proj_bn_relu", "xiao"),
    "attention": ("relu", "gelu", "softplus", "identity", "sigmoid", "relu_sum"),
    "ffn": ("relu", "conv1d", "conv1d_bn", "no_norm"),
    **{"qk_norm": (True,), "gate": ("silu",), "pool": ("gap", "mean"), "pos": ("sincos2d",)},
    **{"cls_pos_embed": (False,), "pre_logits": (True,), "init": ("bigvision",)},
}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *(("vit_tiny", {name: value}) for name, values in PARTS.items() for value in values),
    *(("vit_tiny", {"attention": "relu", **other}) for other in ({"alpha": "learned"}, {"length": "train"})),
    *(("volo_tiny", options) for options in ({"stem": "conv"}, {"ffn": "conv1d_bn"})),
]

default_cfgs: dict[str, Any] = {}


def registered(arch: str, options: dict[str, Any]) -> str:
    """Make a variant a model of timm; return its name."""
    blocks = {"depth": 3} if arch == "vit_tiny" else {}  # timm's tests want three at least

    def entry(pretrained: bool = False, **given: Any) -> nn.Module:
        model: nn.Module = timm.model_entrypoint(arch)(pretrained, **(blocks | options | given))
        return model

    entry.__name__ = re.sub(r"\W", "_", "_".join(map(str, [arch, *itertools.chain(*options.items())])))
    default_cfgs.update(generate_default_cfgs({entry.__name__: {"classifier": "head"}}))
    return register_model(entry).__name__


OURS = (*ARCHS, *(registered(*variant) for variant in VARIANTS))
USUAL = [name for name in (*OURS, *CONTROLS) if name not in ("vit_b", "vit_l")]


def list_models(filter: str | Iterable[str] = "*", *, pretrained: bool = False, **given: Any) -> list[str]:
    """Ours and the controls in place of all of timm's models: a function instead of `timm.list_models`."""
    wanted, excluded = [filter] if isinstance(filter, str) else [*filter], given.get("exclude_filters", ())
    names = [] if pretrained else [name for name in (*OURS, *CONTROLS) if any(fnmatch(name, one) for one in wanted)]
    return [name for name in names if not any(fnmatch(name, one) for one in excluded)]


class Plugin:
    """Of pytest: has the tests run on `USUAL` models, and tells it which failures have a reason."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Give the tests of `ALSO` our models in place of those that timm lists there."""
        if metafunc.function.__name__ not in ALSO:
            return
        marks = metafunc.definition.own_markers
        names = ["model_name", *(["kwargs"] if "kwargs" in metafunc.fixturenames else [])]
        values = [(model, {})[: len(names)] for model in (*OURS, *CONTROLS)]
        marks[:] = [mark for mark in marks if mark.name != "parametrize"]
        marks.append(pytest.mark.parametrize(names, values).mark)

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Leave out the cases of other models, and the tests that run on none of ours."""
        cases = [(one, one.callspec.params.get("model_name")) for one in items if hasattr(one, "callspec")]
        generic = {one.originalname for one, model in cases if model in OURS}
        items[:] = [one for one, model in cases if model in USUAL and one.originalname in generic]
        for one in items:
            model = one.callspec.params["model_name"]
            known = (
                why for test, why in REASONS.items() if fnmatch(one.originalname, test[0]) and fnmatch(model, test[1])
            )
            if model in CONTROLS:
                one.add_marker(pytest.mark.xfail(reason="timm's own"))
            elif why := next(known, ""):
                one.add_marker(pytest.mark.xfail(reason=why, strict=True))


def main(argv: Sequence[str]) -> int:
    """Run the tests; return the exit status, 1 if one of ours fails for no known reason."""
    file = source_file(read(argv, __doc__, checkout=Path).checkout)
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(timm, "list_models", list_models):
        shutil.copy(file, folder)  # away from a package `tests` that is not ours
        options = ["-q", "--tb=no", "-rfEx", "--disable-warnings", "-p", "no:cacheprovider"]
        words = [folder, "-c", "/dev/null", "--rootdir", folder, *options]
        return int(pytest.main(words, plugins=[Plugin()]))


def source_file(checkout: Path) -> Path:
    """Return timm's file of tests. Raises UserError if it is missing, or belongs to another version of timm."""
    file, version = checkout / "tests" / "test_models.py", checkout / "timm" / "version.py"
    if not file.is_file() or timm.__version__ not in (version.read_text() if version.is_file() else ""):
        fetch = f"pip download --no-binary :all: --no-deps timm=={timm.__version__}, and unpack it"
        raise UserError(f"{checkout} is no source package of timm {timm.__version__}, which is installed; {fetch}")
    return file
