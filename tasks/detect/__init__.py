"""Object detection and instance segmentation: mmdetection's detectors around our backbones.

mmdetection gives models and losses, and this room what they need without a compiler. COCO's scores are in `coco/`, its
files in `tasks/data`.
"""
