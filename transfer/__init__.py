"""The commands: the only place that reads argv, writes records and draws tables."""
