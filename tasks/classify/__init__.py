"""Accuracy of a trained classifier on a validation split.

Nothing is trained here; new classifiers are trained by `tasks.linear` and `tasks.finetune`.
"""
