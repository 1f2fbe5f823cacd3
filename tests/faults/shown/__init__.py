"""How runs are shown and passed on, for the faults that a record may hold."""
