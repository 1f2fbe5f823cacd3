"""`python -m transfer.doctor`: checks of the machine, datasets and backbones.

`python -m transfer.doctor backbone NAME` runs the conformance test of a backbone, which lives in `transfer/testing`.

Only `datasets.py` uses the network, and only when it is asked to. Nothing is trained or scored.
"""
