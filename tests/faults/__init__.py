"""Faults brought about on purpose, many and at random: processes killed, bytes changed. CI does so for a minute."""
