"""Trackers that show a run beside others: TensorBoard, Trackio, Weights & Biases. One file for each, under its
name on the command line; `tracker.py` has the interface, and opens one for a run.

A tracker's package is imported when a run asks for it and never before. What a score means and where it is kept is no
matter of theirs: the record in the run's folder stays the result, and they get a copy.
"""
