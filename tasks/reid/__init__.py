"""Person re-identification: fine-tuning with identity and triplet loss, ranking of the query split.

Datasets are in `transfer.data.reid`, metrics in `tasks.ranking`.
"""
