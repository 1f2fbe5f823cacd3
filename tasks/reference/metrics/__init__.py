"""The metrics from their papers' formulas, one query, image or class at a time.

Only numpy, scipy and pycocotools are imported here. The fast forms that the tasks use live in `tasks/ranking`,
`tasks/probes.py` and `tasks/detection/coco`.
"""
