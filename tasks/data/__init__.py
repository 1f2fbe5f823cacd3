"""Data that only tasks need: re-identification layouts."""
