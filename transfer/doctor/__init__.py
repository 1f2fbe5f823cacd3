"""`python -m transfer.doctor`: what this machine can do, which data sets are here, and how to get the others.

Only `download.py` uses the network, and only when it is asked to. Nothing is trained or scored.
"""
