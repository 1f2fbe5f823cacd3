"""For every option another value than the smoke command's, and what else must be said for the option to have an effect.

A new option belongs here; `test_effects.py` fails until it does.
"""

from pathlib import Path
from typing import Any

BASE = {"linear": {"warmup_epochs": 1.0, "warmup_from": 0.1}}
"""Of a task, what its smoke command is taken to say besides."""
VALUES: dict[str, Any] = {
    # the training loop
    "epochs": 7, "trainable": ["*weight"], "optimizer": ("sgd", "adamw"), "lr": 0.123, "momentum": 0.5,
    "weight_decay": 0.123, "weight_decay_to": 0.5, "decay_scale": "schedule", "bias_factor": 3, "no_decay": ["*x", "1d"],
    "decay_norm": True, "layer_decay": 0.31, "schedule": ("step", "epoch"), "schedule_offset": 2,
    "warmup_epochs": 1.25, "warmup_prefix": (True, False), "warmup_from": 0.3, "warmup_inclusive": (True, False),
    "cosine_to": 0.004, "cooldown_epochs": 0.5, "milestones": [1.5], "ends": ("factor", "absolute"), "clip": 0.7,
    "clip_each": (True, False), "sam": "asam", "sam_rho": 0.7, "sam_sync": True, "accumulate": 2, "sync_bn": (True, False),
    "compile": True, "judge_after": 7, "precision": None, "eval_precision": None,
    # labels, images, mixing
    "label_fraction": 0.5, "fraction_seed": 5, "validate_at": [1], "size": 40, "batch": 12, "repeats": 3,
    "drop_path": 0.21, "loss": "sigmoid", "head_bias": -1.0, "dense_weight": 0.4, "token_labels": str(Path(__file__).parent),
    "ema": 0.5, "export": None, "eval_batch": 3, "augment": "crop", "crop_area": [0.2, 0.4], "crop_ratio": [0.5, 0.6],
    "interpolation": ("bilinear", "bicubic"), "flip": 0.31, "auto_augment": "rand-m5-n1", "color_jitter": 0.2, "erase": 0.3,
    "pad": 3, "randaug": [2, 3], "resize": 77, "mixing": "bigvision", "mixup": 0.33, "cutmix": 0.44, "mix_prob": 0.55,
    "switch_prob": 0.66, "smoothing": 0.07,
    # DINO
    "global_area": [0.5, 0.9], "local_size": 16, "local_area": [0.1, 0.2], "local_crops": 3, "blur": [0.2, 0.3],
    "out_dim": 77, "norm_last_layer": (True, False), "freeze_last_layer": 2, "student_temp": 0.3, "teacher_temp": 0.08,
    "warmup_teacher_temp": 0.01, "warmup_teacher_temp_epochs": 2, "teacher_momentum": 0.77, "center_momentum": 0.66,
    "teacher_bn": "eval", "local_bn": (True, False), "knn_k": 7, "knn_temperature": 0.3,
    # re-identification
    "identities": 5, "instances": 3, "identity_weight": 0.4, "label_smoothing": 0.2, "triplet_weight": 0.3, "margin": 0.25,
    "feature": ("before", "after"), "flip_test": True, "ap": "trapezoid", "rerank": True, "rerank_k1": 7, "rerank_k2": 3,
    "rerank_lambda": 0.6, "msmt17_val": (True, False), "draw": 2,
    # probes and diagnostics
    "blocks": 1, "avgpool": True, "validate_every": 3, "view": None, "block": 0, "shots": [1, 3], "draws": 2,
    "support": "bigvision", "probe": None, "l2": [1.0], "logistic_l2": [3.0], "k": None, "temperature": 0.5, "select": 2,
    "other_k": [2], "images": 5, "class_token": False,
    # detection
    "detector": "faster_rcnn", "pyramid": "taps", "taps": [0, 1, 2, 3], "window": 3, "window_padding": ("keys", "masked"),
    "global_blocks": [1], "relative": True, "checkpoint": True, "norm_eval": (True, False),
}  # fmt: skip
"""None: see `OF_TASK`. A pair: of two values the other one."""
OF_TASK: dict[tuple[str, str], Any] = {
    ("pretrain-supervised", "export"): "ema", ("finetune", "export"): "ema", ("pretrain-dino", "export"): "student",
    ("classify", "view"): "area", ("fewshot", "view"): "area", ("detect", "view"): "scales", ("fewshot", "probe"): "knn",
    ("fewshot", "k"): [3], ("knn", "k"): 3, ("reid", "size"): [40, 20], ("detect", "size"): [96, 128],
}  # fmt: skip
MIXED: dict[str, Any] = {"mixup": 0.2, "cutmix": 0.3, "mix_prob": 0.5}
ACTIVE: dict[str, dict[str, Any]] = {
    "momentum": {"optimizer": "sgd"},
    "decay_scale": {"optimizer": "adamw", "weight_decay": 0.1},
    "no_decay": {"weight_decay": 0.1},
    "decay_norm": {"weight_decay": 0.1, "no_decay": ["1d"]},
    "schedule_offset": {"schedule": "epoch"},
    **dict.fromkeys(
        ("warmup_prefix", "warmup_from", "warmup_inclusive", "ends"), {"warmup_epochs": 1.0, "warmup_from": 0.1}
    ),
    "cosine_to": {"milestones": []},
    "clip_each": {"clip": 1.0},
    **dict.fromkeys(("sam_rho", "sam_sync"), {"sam": "sam"}),
    "sync_bn": {"norm_eval": False},
    "fraction_seed": {"label_fraction": 0.5},
    **dict.fromkeys(("mixing", "mixup", "cutmix", "mix_prob", "switch_prob"), MIXED),
    "ema": {"export": "ema"},
    "dense_weight": {"mixup": 0, "cutmix": 0},
    **dict.fromkeys(("auto_augment", "erase", "crop_area", "crop_ratio"), {"augment": "timm"}),
    "color_jitter": {"augment": "timm", "auto_augment": None},
    "pad": {"augment": "pad"},
    "randaug": {"augment": "bigvision"},
    "local_bn": {"teacher_bn": "ema"},
    "warmup_teacher_temp": {"warmup_teacher_temp_epochs": 3},
    "margin": {"triplet_weight": 1.0},
    "label_smoothing": {"identity_weight": 1.0},
    **dict.fromkeys(("rerank_k1", "rerank_k2", "rerank_lambda"), {"rerank": True}),
    "logistic_l2": {"probe": "logistic"},
    **dict.fromkeys(("k", "temperature"), {"probe": "knn"}),
    "select": {"l2": [1.0, 2.0]},
    "taps": {"pyramid": "taps"},
    **dict.fromkeys(("window_padding", "global_blocks"), {"window": 2}),
}
"""Options of the same task that give an option its effect. Those of another task are passed over."""
EXECUTION = {"compile", "judge_after", "validate_at", "eval_batch", "checkpoint", "draw"}
"""What neither identity nor protocol counts."""
RESOLVED = {"precision", "eval_precision"}
"""What counts as what it comes to on the machine."""
NEVER = {("linear", "layer_decay"), ("linear", "decay_norm"), ("linear", "sync_bn"), ("linear", "accumulate")}
"""Options of the training loop that are always idle in a task."""
BACKBONE: dict[str, Any] = {
    "load": "partial", "arch": "vit_s", "stem": "patchify", "attention": "relu2", "ffn": "relu", "patch": 8, "depth": 1,
    "pool": "gap", "pos": "sincos2d", "pos_resample": "dino", "qk_norm": False, "gate": True, "alpha": 0.5,
    "length": "image", "rep_size": True, "init": "bigvision", "class_position": False, "mean": (0.1, 0.2, 0.3),
    "std": (0.1, 0.2, 0.3), "weights": "timm",
}  # fmt: skip
HELD: dict[str, Any] = {
    "milestones": ([2.0], []), "weight_decay_to": (None,), "no_decay": (["*x"],), "augment": ("crop", "timm"), "l2": ([1.0],),
    "logistic_l2": ([1.0],), "k": ([1],), "probe": ("logistic", "ridge"), "attention": ("softmax", "/a/file.py:attend"),
    "auto_augment": ("rand-m9",), "detector": (None,), "arch": ("/a/file.py:Net",), "length": ("tokens",),
}  # fmt: skip
"""For each name of which a rule asks for one of several values, some; one of them is among those that it asks for."""
