"""From image files to batches: decoding, the augmentation of person re-identification, samplers, and the loader.

Every random choice is a function of (seed, epoch, sample). The augmentation of pretraining lives in
`backbones.pretrain`.
"""
