"""Measures of the task `tokens`: similarity, norm and rank of the tokens of each layer, and attention.

The task is `tasks/tokens/measuring.py`; `TokenWatch` of `recorder.py` measures the same while a backbone is pretrained.
`BlockWatch` there measures the blocks in steps of any training.
"""
