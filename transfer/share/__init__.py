"""Files for other people: bundles of runs, model cards, and weights in the layout of the Hugging Face hub.

Paths of this machine are removed on the way. Nothing is uploaded.
"""
