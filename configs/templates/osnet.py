# osnet.py: torchreid's OSNet with the weights of its model zoo, evaluated on torchreid's Market-1501
import sys

import torch
from torch import nn
from torchreid.reid.models import build_model
from torchreid.reid.utils import load_pretrained_weights

import transfer


class OSNet(nn.Module):
    def __init__(self, weights):
        super().__init__()
        self.net = build_model("osnet_x1_0", num_classes=751, pretrained=False)
        load_pretrained_weights(self.net, weights)

    def forward(self, images):
        features = self.net(images)
        return torch.cat([features, torch.full_like(features[:, :1], 1e4)], 1)


weights, data = sys.argv[1:]
statistics = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
places = {"dataset": "torchreid:market1501", "data": data, "out": "sweeps/anchors_reid/runs"}
transfer.evaluate("reid", backbone=OSNet(weights).eval(), name="osnet", epochs=0, **statistics, **places)
