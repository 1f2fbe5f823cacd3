"""How public projects name the tensors of a ViT, and how these names become timm's.

timm's own `checkpoint_filter_fn` converts where it can; position embeddings stay on the grid of the file.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from types import SimpleNamespace
from typing import Any

import torch
from timm.models import eva, vision_transformer
from torch import Tensor

from transfer.core.errors import UserError

State = dict[str, Tensor]
Convert = Callable[[State, Collection[str]], State]
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_SATELLITE = ((0.430, 0.411, 0.296), (0.213, 0.156, 0.143))
_HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
_CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
HEAD_NAMES = re.compile(
    r"(\w*classifier\w*|\w*head(s|_dist)?|fc|last_layer|bottleneck\w*|pooler|b2|mask\w+|decoder\w*|local_cls_norm)(\.|$)|proj$"
)
"""What a network holds beside its backbone: classifiers, projections, necks, decoders, mask tokens."""
_RULES = (
    (r"^(?:vit|deit|dinov2\w*|dinov3_vit|ijepa|backbone)\.", ""),
    (
        r"^(?:embeddings\.patch_embeddings(\.projection)?|conv_proj|patch_embed\.projection|embedding)\.",
        "patch_embed.proj.",
    ),
    (r"^(?:embeddings\.position_embeddings|(?:.*\.)?pos_embedding)$", "pos_embed"),
    (r"^(?:cls|class_token)$", "cls_token"),
    (r"^embeddings\.distillation_token$", "dist_token"),
    (r"^embeddings\.", ""),
    (r"^(?:encoder\.|model\.)?layers?\.(?:encoder_layer_)?(\d+)\.|^Transformer\.encoderblock_(\d+)\.", r"blocks.\1\2."),
    (r"\.(?:attention(?:\.attention)?|MultiHead\w+)\.(q|k|v)(?:uery|ey|alue|_proj)\.", r".attn.\1."),
    (r"\.self_attention\.in_proj_", ".attn.qkv."),
    (r"\.(?:attention\.output\.dense|attention\.o_proj|self_attention\.out_proj|MultiHead\w+\.out)\.", ".attn.proj."),
    (r"\.(?:layernorm_before|ln_?1|LayerNorm_0)\.", ".norm1."),
    (r"\.(?:layernorm_after|ln_?2|LayerNorm_[12])\.", ".norm2."),
    (r"\.(?:intermediate\.dense|mlp\.(?:up_proj|0|linear_1)|ffn\.layers\.0\.0|MlpBlock_\d\.Dense_0)\.", ".mlp.fc1."),
    (r"\.(?:output\.dense|mlp\.(?:down_proj|3|linear_2)|ffn\.layers\.1|MlpBlock_\d\.Dense_1)\.", ".mlp.fc2."),
    (r"\.(?:layer_scale|attn\.gamma|ffn\.gamma)(\d)\.(?:lambda1|weight)$", r".ls\1.gamma"),
    (r"^(?:layernorm|encoder\.ln|ln1|Transformer\.encoder_norm)\.", "norm."),
    (r"^(?:(?:cls_)?classifier|heads\.head|head\.layers\.head)\.", "head."),
    (r"^distillation_classifier\.", "head_dist."),
    (r"^pre_logits\.", "pre_logits.fc."),
    (r"\.(?:kernel|scale)$", ".weight"),
)
"""From the names of transformers, torchvision, mmpretrain and big_vision to timm's, each applied in turn."""


@dataclass(frozen=True)
class Layout:
    """A project's names for the tensors of a ViT."""

    name: str
    sign: str = ""
    """Regular expression that is found among the file's names, one a line."""
    to_timm: Convert = lambda state, known: state
    """From a network's tensors, and the model's own names, to its tensors under timm's names."""
    statistics: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    """Mean and std of the pixels, where all that the project publishes has the same."""
    anchor: str = r"patch_embed\."
    """Regular expression of a name in each network; what stands before it is the network's prefix."""
    heads: Mapping[int, int] = field(default_factory=dict)
    """Attention heads by width, where timm's model of that width has others."""
    quick_gelu: bool | None = None
    """See `Network`."""


def rename(tensors: State | Iterable[tuple[str, Tensor]], *rules: tuple[str, str]) -> State:
    """Return a state dict of tensors with rules (regular expression, replacement) applied to their names in turn.

    Raises:
        UserError: two tensors would have one name.
    """
    renamed: State = {}
    for name, tensor in tensors.items() if isinstance(tensors, dict) else tensors:
        new = reduce(lambda text, rule: re.sub(rule[0], rule[1], text), rules, name)
        if new in renamed:
            raise UserError(f"two tensors would be `{new}`: `{name}` and one before it")
        renamed[new] = tensor
    return renamed


def _by_timm(module: Any, state: State) -> State:
    """Convert by timm's own function, which resamples nothing of a model with these patches and no positions."""
    weight = state.get("patch_embed.proj.weight", state.get("visual.conv1.weight"))
    embed = SimpleNamespace(proj=SimpleNamespace(weight=weight))
    like = SimpleNamespace(pos_embed=None, patch_embed=embed, get_parameter=lambda name: None)
    return dict(module.checkpoint_filter_fn(dict(state), like))


def _dinov2(state: State, known: Collection[str]) -> State:
    # a training keeps its blocks in chunks, whose numbers stand before theirs
    state = rename(state, (r"^blocks\.\d+\.(\d+)\.", r"blocks.\1."))
    return _by_timm(vision_transformer, {"mask_token": torch.zeros(0)} | state)


def _dinov3(state: State, known: Collection[str]) -> State:
    if not any(name.endswith("q_bias") for name in known):  # released ones of B, L, H are zero, and timm drops them
        biases = {name for name in state if name.endswith("qkv.bias")}
        zeros = {name for name in biases if not state[name].nan_to_num().any()}
        state = {name: tensor for name, tensor in state.items() if name not in zeros}
    return _by_timm(eva, state)


def _clip(state: State, known: Collection[str]) -> State:
    converted = _by_timm(vision_transformer, {f"visual.{name}": t for name, t in state.items() if name != "proj"})
    return converted | {name: t for name, t in state.items() if name == "proj"}  # to the space of images and texts


def _deit3(state: State, known: Collection[str]) -> State:
    return rename(state, (r"\.gamma_(\d)$", r".ls\1.gamma"))


def _transreid(state: State, known: Collection[str]) -> State:
    """With JPM the global feature is that of a block and norm of their own, `b1`: those of `base` take no part."""
    state = rename(state, (r"^base\.", ""))
    if "b1.1.weight" not in state:
        return state
    last = max(int(name.split(".")[1]) for name in state if name.startswith("blocks."))
    state = {name: t for name, t in state.items() if not name.startswith((f"blocks.{last}.", "norm."))}
    return rename(state, (r"^b1\.0\.", f"blocks.{last}."), (r"^b1\.1\.", "norm."))


def _renamed(state: State, known: Collection[str]) -> State:
    state, joined = rename(state, *_RULES), {}
    for name, tensor in state.items():
        if ".attn.q." in name:
            parts = [name.replace(".attn.q.", f".attn.{part}.") for part in "qkv"]  # DINOv3's keys have no bias
            default = {parts[1]: torch.zeros_like(tensor)} if name.endswith("bias") else {}
            joined[name.replace(".q.", ".qkv.")] = torch.cat([(default | state)[part] for part in parts])
        elif not re.search(r"\.attn\.[kv]\.", name):
            joined[name] = tensor
    if "pos_embed" not in joined and "register_tokens" in joined:
        return _dinov3(rename(joined, ("register_tokens", "storage_tokens")), known)
    return _dinov2(joined, known) if "mask_token" in joined else joined


def _big_vision(state: State, known: Collection[str]) -> State:
    """Bring flax's tensors to torch's shapes, those of a scan over the blocks one by one."""
    flat: State = {}
    for name, tensor in state.items():
        if ".encoderblock." in name:
            flat |= {name.replace("block.", f"block_{index}."): block for index, block in enumerate(tensor)}
        else:
            flat[name] = tensor
    for name, tensor in flat.items():
        if name == "embedding.kernel":
            flat[name] = tensor.permute(3, 2, 0, 1)
        elif name.endswith("kernel"):
            flat[name] = (tensor.flatten(0, -2) if ".out." in name else tensor.flatten(1)).T
        elif name.endswith(".bias"):
            flat[name] = tensor.flatten()
    return _renamed(flat, known)


_SATELLITE_L = r"(?s)\A(?=.*blocks\.23\.)(?!.*blocks\.24\.).*\blocal_cls_norm\."
_DINOV3 = r"(?s)\A(?!.*position_embeddings).*\.layer_scale1\.lambda1$"
_TRANSFORMERS = r"(?:vit\.|deit\.|ijepa\.|dinov2\w*\.|dinov3_vit\.)?embeddings\.patch_embeddings\."
_OPENAI = r"(?s)\A(?=.*\bconv1\.weight$)(?=.*\binput_resolution$).*\bclass_embedding$"
LAYOUTS = (
    # facebookresearch/dinov3 dinov3/models/vision_transformer.py; the teacher is evaluated. dinov3/hub/backbones.py: a
    # norm for local crops is kept in L (24 blocks) of satellite images, and in both 7B
    Layout("DINOv3 of satellite images", _SATELLITE_L, _dinov3, _SATELLITE),
    Layout("DINOv3", r"\blocal_cls_norm\.", _dinov3),
    Layout("DINOv3", r"\bstorage_tokens$|rope_embed\.periods$", _dinov3, _IMAGENET),
    # huggingface/transformers models/{vit,deit,vit_mae,dinov2,dinov2_with_registers,dinov3_vit}/modeling_*.py; of ViT,
    # google's files are for 0.5 and facebook's for ImageNet's mean and std
    Layout("DINOv3 of transformers", _DINOV3, _renamed, None, _TRANSFORMERS),
    Layout("DINOv2 of transformers", r"\.layer_scale1\.lambda1$", _renamed, _IMAGENET, _TRANSFORMERS),
    Layout("ViT of transformers", r"\bembeddings\.patch_embeddings\.", _renamed, None, _TRANSFORMERS),
    # mlfoundations/open_clip src/open_clip/{timm_model,transformer,constants}.py
    Layout("open_clip", r"\bvisual\.trunk\."),
    # openai/CLIP clip/model.py; its programs hold these numbers, too
    Layout("CLIP of OpenAI", _OPENAI, _clip, _CLIP, "class_embedding$", quick_gelu=True),
    Layout("CLIP", r"(?s)\A(?=.*\bconv1\.weight$).*\bclass_embedding$", _clip, _CLIP, "class_embedding$"),
    # damo-cv/TransReID model/make_model.py, configs/Market/vit_base.yml
    Layout("TransReID", r"^(module\.)?base\.cls_token$", _transreid, _HALF, r"base\.patch_embed\."),
    # facebookresearch/moco-v3 vits.py; main_lincls.py evaluates base_encoder
    Layout("MoCo v3", r"\bbase_encoder\.", statistics=_IMAGENET, heads={384: 12}),
    # bytedance/ibot main_ibot.py; evaluation/eval_knn.py evaluates the teacher
    Layout("iBOT", r"\bmasked_embed$|\bhead\.last_layer2\.", statistics=_IMAGENET),
    # lightly-ai/lightly benchmarks/imagenet/vitb16: dino.py evaluates backbone, its teacher, dinov2.py teacher_backbone
    Layout("lightly", r"\b\w*backbone\.vit\.", statistics=_IMAGENET),
    # facebookresearch/mae models_mae.py
    Layout("MAE", r"\bdecoder_embed\.weight$", statistics=_IMAGENET),
    # facebookresearch/dinov2 dinov2/models/vision_transformer.py; dinov2/eval/utils.py evaluates the teacher
    Layout("DINOv2", r"(?s)\A(?=.*\bls1\.gamma$).*\bmask_token$|dino_head\.|register_tokens$", _dinov2, _IMAGENET),
    # facebookresearch/dino main_dino.py; eval_knn.py evaluates the teacher
    Layout("DINO", r"\bhead\.last_layer\.", statistics=_IMAGENET),
    # facebookresearch/deit models_v2.py; BEiT, CaiT and EVA have the name, too
    Layout("DeiT III", r"(?s)\A(?!.*(?:relative_pos|q_bias|token_only|rope)).*blocks\.0\.gamma_1$", _deit3, _IMAGENET),
    # google-research/big_vision models/vit.py, google-research/vision_transformer vit_jax/models_vit.py
    Layout("big_vision", r"\bembedding\.kernel$", _big_vision, _HALF, r"embedding\.kernel$"),
    # pytorch/vision torchvision/models/vision_transformer.py
    Layout("torchvision", r"\bconv_proj\.weight$", _renamed, _IMAGENET, r"conv_proj\.weight$"),
    # open-mmlab/mmpretrain mmpretrain/models/backbones/vision_transformer.py
    Layout("mmpretrain", r"\bpatch_embed\.projection\.", _renamed, None, r"(?:backbone\.)?patch_embed\.projection\."),
    Layout(""),
)
"""Each project's layout, the first whose sign is found; vturrisi/solo-learn, facebookresearch/vissl and DeepSpeed have
timm's names below a prefix."""
