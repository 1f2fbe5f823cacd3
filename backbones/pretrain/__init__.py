"""Pretraining methods: `supervised` and `dino`, each a module that ends in `METHOD`, with their losses, heads,
augmentations and evaluations (accuracy, k-NN).

The training loop is `transfer.engine`; recipes with all values are YAML files under `configs/pretrain/`.
"""
