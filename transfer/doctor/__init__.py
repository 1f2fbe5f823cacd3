"""`python -m transfer.doctor`: what this machine can do, which datasets are here, and how to get the others.

`python -m transfer.doctor backbone NAME` runs the conformance test of a backbone, which lives in `transfer/testing`.

Only `datasets.py` uses the network, and only when it is asked to. Nothing is trained or scored.
"""
