"""Oracles: every metric stated plainly and slowly from its paper's formula, one query, image or class at a time.

They import numpy, scipy and pycocotools alone, and share nothing with the fast forms in `tasks/ranking`,
`tasks/probes.py`, `tasks/detection/coco`, `tasks/token_diagnostics` and `backbones/pretrain`, which tests hold against
them.
"""
