"""Measures of the task `tokens`: similarity, norm and rank of tokens at each place of a backbone, and its attention.

The task is `tasks/tokens/measuring.py`; `TokenWatch` of `recorder.py` measures the same while a backbone is pretrained.
`BlockWatch` there measures the blocks in steps of any training.
"""
