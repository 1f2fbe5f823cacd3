"""Object detection and instance segmentation: mmdetection's detectors around our backbones.

mmdetection gives models and losses, and this folder what they need without a compiler (`mmlab`). COCO's scores are in
`coco`, its files in `transfer.data.coco`.
"""
