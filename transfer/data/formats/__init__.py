"""Readers of classification and segmentation sets. Each takes a `DatasetSpec` and the data folder, and returns a
`FoundLayout`.

There is one reader for each layout on disk, one for Parquet files and one for the cache of the Hugging Face hub.
Choosing a subset, checking counts and decoding images happen afterwards, in `transfer.data.classification`.
"""
