"""Every task's evaluation stated again, plainly and slowly, in float64 on the CPU: what `verify --recompute` runs.

It shares data readers, models and image transforms with the suite, and nothing that scores: `metrics/` imports numpy,
scipy and pycocotools alone, and a test holds the room to that. A module is named after its task and ends in
`recompute`, which takes what is at hand of a run (`run_inputs.py`) and gives rows to compare (`recomputed.py`).
"""
