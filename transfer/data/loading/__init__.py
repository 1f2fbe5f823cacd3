"""From image files to batches: decoding, augmentation, samplers, and the loader.

Every random choice is a function of (seed, epoch, sample). Crops of DINO are in `backbones.pretrain.dino`.
"""
