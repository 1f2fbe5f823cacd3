"""The process and its machine: ranks of a distributed job, precision, threads, seeds, atomic files, and the check for
numbers that are not finite; and the notes on options' fields that every room above needs.

Nothing here knows models, datasets or training.
"""
