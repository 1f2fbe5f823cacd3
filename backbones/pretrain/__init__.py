"""Pretraining methods: one module each, which ends in `METHOD`."""
