"""Bundled datasets for smoke runs and tests: the handwritten digits of scikit-learn, written to the cache folder.

They come as plain class folders and in the layouts of the published sets. The toy sets of person re-identification
and detection live in `tasks/data`.
"""
