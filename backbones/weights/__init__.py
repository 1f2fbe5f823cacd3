"""Weights in files: reading the checkpoints of other codebases, writing and describing exported models, the classifier
that a file may hold, and the local cache of the Hugging Face hub.

Which weights a backbone takes, and how they get into the model, is decided in `backbones.weights.locate`. The state of an
unfinished training is not kept here but in `transfer.engine.checkpoint`.
"""
