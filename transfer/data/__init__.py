"""Datasets by name (`spec`, `layouts`) and the three kinds of them: classification, re-identification, COCO.

`formats` has one reader for each layout of class images, `splits` what a reader returns, `loading` how images become
batches, `reid` and `coco` the other two kinds, and `toy` small bundled datasets.
"""
