"""Pretraining: the base class of methods, options and evaluations (accuracy, k-NN) that they share, and one folder a
method.

The training loop is `transfer.engine`; recipes with all values are YAML files under `configs/pretrain/`.
"""
