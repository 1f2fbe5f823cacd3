"""COCO's average precision and recall, kept per detection so that images can be resampled.

Detections are paired with objects here and averaged. Nothing here knows a model or reads an image.
"""
