"""Supervised fine-tuning of pretrained weights.

Learner, losses and training are those of `backbones.pretrain.supervised`.
"""
