"""Readers and transforms that pretraining and tasks share."""
