"""Linear classification on frozen features, trained by SGD.

Few-shot probes are in `tasks.fewshot`.
"""
