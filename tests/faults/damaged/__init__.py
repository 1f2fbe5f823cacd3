"""Kind `bytes`: files that are changed, then read."""
