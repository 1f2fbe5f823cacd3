"""One split of a dataset: labels, names and images, from files, Arrow rows or memory.

Here are also its subsets, the digests of image contents, the check for corrupt images, and the torch dataset over a
split. Finding the files of a split is the work of `transfer.data.formats`.
"""
