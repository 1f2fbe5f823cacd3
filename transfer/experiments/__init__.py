"""Sweep files with the commands that they stand for, and the rows of published tables.

Nothing is started here.
"""
