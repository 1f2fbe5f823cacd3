"""Stems: what turns an image into a token map, in the words of the tables of "Scaled ReLU Matters" (arXiv 2109.03810).

A stem is a component string with strides, `3Conv+3BN+3ReLU+1Proj@2,1,1,8`. Norms and activations that are fewer than
the convolutions belong to the last ones; what stands after `Proj` is applied to the token map. Strides, kernels
(`@k7,3,3,8`) and widths (`@w64,64,64`, or parts of the token width: `@wD/4,D/2`) follow in any order; left out, they
are those of the paper. It does not say whether convolutions without a norm have a bias: here they have none. This file
imports no torch; `stem_layers.py` builds the modules.
"""

import math
import re
from dataclasses import dataclass, replace
from itertools import groupby, repeat
from typing import Any

from transfer.core.errors import UsageError, did_you_mean, unknown

STEMS: dict[str, str] = {
    "patchify": "1Proj",
    "conv": "3Conv+3BN+3ReLU+1Proj",  # the full stem, VOLO's (arXiv 2106.13112)
    "conv_gelu": "3Conv+3BN+3GELU+1Proj",  # Table 5, "ReLU->GELU in conv-stem"
    "conv_bn": "3Conv+3BN+1Proj",
    "conv_relu": "3Conv+3ReLU+1Proj",
    "conv_linear": "3Conv+1Proj",
    "conv_linear_relu": "3Conv+1Proj+1ReLU",
    "proj_relu": "1Proj+1ReLU",
    "proj_bn_relu": "1Proj+1BN+1ReLU",
    "conv_2222": "3Conv+3BN+3ReLU+1Proj@2,2,2,2",  # Table 3, patch 16 only
    "conv_linear_2222": "3Conv+1Proj@2,2,2,2",
    "conv_linear_relu_2222": "3Conv+1Proj+1ReLU@2,2,2,2",
    "conv_srelu": "3Conv+3SReLU+1Proj",  # the paper's scaled ReLU by itself, without a norm
    "conv_ibn": "3Conv+2IBN+1BN+3ReLU+1Proj",  # TransReID-SSL (arXiv 2111.12084)
    # Xiao et al. (arXiv 2106.14881, section 4), patch 16; their models also drop one encoder block: depth 11 for 12
    "xiao": "4Conv+4BN+4ReLU+1Proj@2,2,2,2,1@k3,3,3,3,1@wD/8,D/4,D/2,D",
}

STEM_NORMS = ("BN", "LN", "IBN")
ACTIVATIONS = ("ReLU", "GELU", "SReLU")
STEM_COMPONENTS = ("Conv", *STEM_NORMS, *ACTIVATIONS, "Proj")


@dataclass(frozen=True)
class ConvLayer:
    """One convolution with what follows it; `norm` and `activation` are component names or empty."""

    inputs: int
    outputs: int
    kernel: int
    stride: int
    norm: str
    activation: str

    @property
    def padding(self) -> int:
        """Pixels of padding: every padding of the paper, and a map of exactly H / stride."""
        return max(0, (self.kernel - self.stride + 1) // 2)


@dataclass(frozen=True)
class StemSpec:
    """A parsed stem: one entry per convolution, the projection last. Empty strides, kernels, widths: the defaults."""

    norms: tuple[str, ...]
    activations: tuple[str, ...]
    strides: tuple[int, ...] = ()
    kernels: tuple[int, ...] = ()
    widths: tuple[str, ...] = ()

    def __str__(self) -> str:
        convs = len(self.norms) - 1
        body = [f"{convs}Conv"] if convs else []
        body += _run_lengths(self.norms[:-1]) + _run_lengths(self.activations[:-1])
        body += ["1Proj", *_run_lengths(self.norms[-1:]), *_run_lengths(self.activations[-1:])]
        text = "+".join(body)
        for letter, values in (("", self.strides), ("k", self.kernels), ("w", self.widths)):
            if values:
                text += "@" + letter + ",".join(map(str, values))
        return text

    def sized(self, patch: int) -> "StemSpec":
        """Return the canonical form at a patch size: strides filled in, kernels and widths that are the defaults left
        out.

        Raises:
            UsageError: the strides do not multiply to the patch size.
        """
        convs = len(self.norms) - 1
        strides = self.strides or ((2, *[1] * (convs - 1), patch // 2) if convs else (patch,))
        if (product := math.prod(strides)) != patch:
            text = ",".join(map(str, strides))
            raise UsageError(f"stem '{self}': the strides {text} multiply to {product}, not to the patch size {patch}")
        kernels = () if self.kernels == _default_kernels(convs, patch) else self.kernels
        widths = () if self.widths == ("64",) * convs else self.widths
        return replace(self, strides=strides, kernels=kernels, widths=widths)

    def layers(self, dim: int, patch: int, channels: int = 3) -> list[ConvLayer]:
        """Return the convolutions in order, the projection last.

        Raises:
            UsageError: strides, kernels or widths do not fit the patch size or the token width.
        """
        sized = self.sized(patch)
        convs = len(self.norms) - 1
        kernels = sized.kernels or _default_kernels(convs, patch)
        outputs = [_width(text, dim, self) for text in sized.widths or ("64",) * convs] + [dim]
        inputs = [channels, *outputs[:-1]]
        for kernel, stride in zip(kernels, sized.strides):
            if stride == 1 and kernel % 2 == 0:
                raise UsageError(f"stem '{self}': an even kernel ({kernel}) with stride 1 changes the size of the map")
        rows = zip(inputs, outputs, kernels, sized.strides, self.norms, self.activations, strict=True)
        return [ConvLayer(*row) for row in rows]


def find_stem(text: str) -> StemSpec:
    """Return the stem of a short name or of a component string.

    Raises:
        UsageError: neither.
    """
    if text in STEMS:
        return parse_stem(STEMS[text])
    if re.search(r"[+@]", text) or re.fullmatch(rf"\d*({'|'.join(STEM_COMPONENTS)})", text):
        return parse_stem(text)
    strings = "a component string such as 3Conv+3BN+3ReLU+1Proj@2,1,1,8"
    raise unknown("stem", text, STEMS, f"; or {strings}; or path/to/file.py:Name")


def parse_stem(text: str) -> StemSpec:
    """Read a component string; `parse_stem(str(stem)) == stem`.

    Raises:
        UsageError: with the place of what does not parse.
    """
    body, *suffixes = text.split("@")
    names = _components(text, body)
    norm, activation = "|".join(STEM_NORMS), "|".join(ACTIVATIONS)
    form = rf"((?:Conv )*)((?:(?:{norm}) )*)((?:(?:{activation}) )*)Proj ((?:(?:{norm}) )?)((?:(?:{activation}) )?)"
    match = re.fullmatch(form, "".join(f"{name} " for name in names))
    before, norms, activations, *after = [part.split() for part in match.groups()] if match else [[]] * 5
    convs = len(before)
    if not match or max(len(norms), len(activations)) > convs:
        order = "Conv, norms and activations, no more of each than Conv, then one Proj"
        end = "after it a norm and an activation at most, in this order"
        raise UsageError(f"stem '{text}': its parts are {order}, and {end}")
    stem = StemSpec(
        norms=("",) * (convs - len(norms)) + (*norms, *(after[0] or [""])),
        activations=("",) * (convs - len(activations)) + (*activations, *(after[1] or [""])),
    )
    return _with_suffixes(text, stem, suffixes, convs)


def _components(text: str, body: str) -> list[str]:
    """Return every component of the part before the first @, repetitions spelled out."""
    names: list[str] = []
    for word in body.split("+"):
        match = re.fullmatch(r"\s*([1-9]\d?)?([A-Za-z]+)\s*", word)
        if not match or match[2] not in STEM_COMPONENTS:
            near = did_you_mean(match[2] if match else word, STEM_COMPONENTS)
            fault = f"'{word}' is not a count and a component such as 3Conv{near}"
            raise UsageError(f"stem '{text}': {fault} (known: {', '.join(STEM_COMPONENTS)})")
        names.extend(repeat(match[2], int(match[1] or 1)))
    return names


def _with_suffixes(text: str, stem: StemSpec, suffixes: list[str], convs: int) -> StemSpec:
    counts = {"strides": convs + 1, "kernels": convs + 1, "widths": convs}
    for suffix in suffixes:
        kind = {"k": "kernels", "w": "widths"}.get(suffix[:1], "strides")
        values = re.sub(r"[()\s]", "", suffix if kind == "strides" else suffix[1:]).split(",")
        pattern = r"D(/[1-9]\d*)?|[1-9]\d*" if kind == "widths" else r"[1-9]\d*"
        fits = len(values) == counts[kind] and all(re.fullmatch(pattern, value) for value in values)
        if not fits or getattr(stem, kind):
            raise UsageError(f"stem '{text}', '@{suffix}': give the {kind} once, {counts[kind]} numbers")
        parsed: Any = tuple(values) if kind == "widths" else tuple(map(int, values))
        stem = replace(stem, **{kind: parsed})
    return stem


def _run_lengths(names: tuple[str, ...]) -> list[str]:
    return [f"{len(list(run))}{name}" for name, run in groupby(names) if name]


def _default_kernels(convs: int, patch: int) -> tuple[int, ...]:
    # the paper keeps the projection's kernel when the strides change: half a patch after convolutions
    return (7, *[3] * (convs - 1), patch // 2) if convs else (patch,)


def _width(text: str, dim: int, stem: StemSpec) -> int:
    if not text.startswith("D"):
        return int(text)
    divisor = int(text[2:] or 1)
    if dim % divisor:
        raise UsageError(f"stem '{stem}': the token width {dim} is not a multiple of {divisor} ({text})")
    return dim // divisor
