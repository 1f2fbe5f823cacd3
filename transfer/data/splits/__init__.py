"""One split of a dataset: its labels, names and images, wherever the images are stored (files, Arrow rows, memory).

Here are also its subsets, the digests of image contents, the check for corrupt images, and the torch dataset over a
split. Finding the files of a split is the work of `transfer.data.formats`.
"""
