# my_metric.py: by the rank of each query's first match
import numpy as np

from transfer.api import metric


def rank_of_first(per_sample):  # from 1; of matches level with others the expected one; nan without a match
    rank = per_sample["before"] + (per_sample["tied"] + 1) / (per_sample["hits"] + 1)
    return np.where(per_sample["hits"] > 0, rank, np.nan)


def mrr(per_sample):  # mean reciprocal rank
    return 1 / rank_of_first(per_sample)


@metric(unit="places", direction="lower", bounds=(1, float("inf")))
def first_match(per_sample):
    return rank_of_first(per_sample)
