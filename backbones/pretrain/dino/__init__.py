"""DINO: options, method, student and teacher, loss, crops.

Its validation by k-NN is in `backbones.pretrain.accuracy`.
"""
