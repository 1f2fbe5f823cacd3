"""k-nearest-neighbor classification on frozen features.

The votes are counted in `backbones.pretrain.accuracy`, as for DINO's validation.
"""
