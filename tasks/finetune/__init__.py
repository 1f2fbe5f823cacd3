"""Supervised fine-tuning of pretrained weights.

Learner and losses are those of `backbones.pretrain.supervised`.
"""
