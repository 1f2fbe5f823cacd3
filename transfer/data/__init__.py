"""Datasets as facts (`spec`, `layouts`) and classification sets as images with labels.

`formats` has one reader for each layout on disk, `splits` what a reader returns, `loading` how images become batches,
and `toy` small bundled sets. Readers of person re-identification and detection sets belong to one task and live in
`tasks/data`.
"""
