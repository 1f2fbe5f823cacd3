"""What is given to others: bundles of runs, model cards, weights in the layout of the Hugging Face hub.

Paths of this machine are removed on the way. Nothing is uploaded.
"""
