"""Semantic segmentation by a linear layer on frozen patch tokens.

Images with masks are read in `transfer.data.formats.masks`.
"""
