"""What a sweep's YAML says, checked, and the commands that it stands for.

Nothing is started here; published tables are matched with the same expansion.
"""
