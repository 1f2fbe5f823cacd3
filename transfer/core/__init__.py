"""Errors, settings, files, users' code, and the process: what every part stands on.

Nothing here imports anything else of the suite, or knows models, datasets or training.
"""
