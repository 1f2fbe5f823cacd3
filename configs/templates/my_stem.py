# my_stem.py: a convolution of stride 2 before the patches
from torch import nn


class MyStem(nn.Module):
    def __init__(self, dim, patch):  # images [B, 3, H, W] -> [B, dim, H / patch, W / patch]
        super().__init__()
        self.conv = nn.Conv2d(3, 64, 3, 2, 1)
        self.proj = nn.Conv2d(64, dim, patch // 2, patch // 2)

    def forward(self, images):
        return self.proj(self.conv(images).relu())
