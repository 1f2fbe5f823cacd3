"""A seed's initial weights do not depend on torch's version: they are those that torch 2.11 drew."""

from typing import Any

import pytest
import torch

from backbones import create
from backbones.pretrain.dino.loss import DinoHead
from transfer.core.seeding import seed_torch


def volo_again() -> Any:
    model: Any = create("volo_d1", weights="random", img_size=224).model
    seed_torch(0)
    model.init_weights(needs_reset=False)
    return model


MADE = {
    "cifar_ti4": lambda: create("cifar_ti4", weights="random", img_size=32, classes=10).model,
    "bigvision_s16": lambda: create("bigvision_s16", weights="random", img_size=224, classes=100).model,
    "volo_d1": lambda: create("volo_d1", weights="random", img_size=224, classes=100).model,
    "volo_d1 again": volo_again,
    "DINO's head": lambda: DinoHead(8, 4, norm_last_layer=True),
}
DRAWN = {
    "cifar_ti4": {"cls_token": [-0.0102966, -0.0386699, 0.0393295], "head.weight": [0.0124830, -0.0368637, 0.0098682]},
    "bigvision_s16": {
        "patch_embed.proj.weight": [0.0509876, -0.0629354, 0.0528776],
        "blocks.11.mlp.fc2.weight": [-0.0364752, 0.0206998, 0.0018045],
    },
    "volo_d1": {
        "head.weight": [0.0289741, 0.0155223, -0.0018291],
        "aux_head.weight": [-0.0232140, -0.0059174, -0.0011012],
    },
    "volo_d1 again": {
        "cls_token": [0.0114655, -0.0134172, 0.0137813],
        "pos_embed": [-0.0250282, -0.0064755, 0.0077583],
    },
    "DINO's head": {"mlp.4.weight": [-0.0006698, -0.0030084, -0.0242116]},
}
"""The first values of tensors. Without vector instructions a processor draws other last digits."""


@pytest.mark.parametrize("name", MADE)
def test_a_seed_draws_what_it_drew(name: str) -> None:
    seed_torch(0)
    model = MADE[name]()
    for tensor, values in DRAWN[name].items():
        first = model.get_parameter(tensor).detach().flatten()[:3]
        torch.testing.assert_close(first, torch.tensor(values), atol=1e-6, rtol=0)
