"""What should be run: a sweep's YAML with the commands that it stands for, and the rows of published tables.

Nothing is started here.
"""
