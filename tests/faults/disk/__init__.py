"""Kind `disk`: disks that are full, read-only, gone, or fail."""
