"""k-nearest-neighbour classification on frozen features.

The votes are counted in `backbones.pretrain.knn`, which DINO's validation uses, too.
"""
