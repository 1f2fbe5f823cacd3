"""Data that only tasks need: re-identification layouts and COCO, with toy sets in the same layouts.

Readers of classification sets live in `backbones/data`, since pretraining needs them too.
"""
