"""The metrics from their papers' formulas, one query, image or class at a time; numpy alone."""
