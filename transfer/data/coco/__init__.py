"""COCO's annotations, images and splits, for detection.

Average precision is computed in `tasks.detect.coco`.
"""
