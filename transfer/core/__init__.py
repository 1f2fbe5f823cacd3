"""Errors, settings, files, custom code, and the process.

Nothing here imports anything else of the suite, or knows models, datasets or training.
"""

__version__ = "0.1.0"
"""The version of the suite, from which the metadata of the package have theirs."""
