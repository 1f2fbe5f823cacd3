"""Weights: found by name, read from the checkpoints of other codebases, fitted to a model, exported.

The state of an unfinished training is kept by `transfer.engine.checkpoint`.
"""
