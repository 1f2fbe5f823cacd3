"""Pretraining: the base class of methods, shared options and evaluations (accuracy, k-NN), and a folder per method.

The training loop is `transfer.engine`; recipes with all values are YAML files under `configs/pretrain/`.
"""
