# my_backbone.py: three stages of convolutions
from itertools import pairwise

from torch import nn


class Net(nn.Sequential):
    def __init__(self):
        widths = [3, 32, 64, 96]
        stages = [
            nn.Sequential(nn.Conv2d(before, width, 3, 2, 1), nn.BatchNorm2d(width), nn.ReLU())
            for before, width in pairwise(widths)
        ]
        super().__init__(*stages, nn.AdaptiveAvgPool2d(1), nn.Flatten())  # [B, 3, H, W] in [0, 1] to [B, 96]
