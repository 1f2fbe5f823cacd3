"""Oracles: every metric stated plainly and slowly from its paper's formula, one query, image or class at a time.

They import numpy alone, and share nothing with the fast forms in `tasks/ranking`, `tasks/probes.py`,
`tasks/token_diagnostics` and `backbones/pretrain`, whose own tests hold these against them. COCO's numbers are held
against pycocotools.
"""
