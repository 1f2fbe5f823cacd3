"""What probes of frozen backbones share: features and their store on disk, support sets, and fitting many probes.

The probes themselves are in `tasks/probes.py`; the tasks are `fewshot`, `knn` and `linear`.
"""
