"""Supervised pretraining as in DeiT, VOLO and big_vision: options, method, learner, losses.

Augmentation is in `transfer.data.loading`.
"""
