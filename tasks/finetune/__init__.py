"""Supervised fine-tuning of pretrained weights: the method `supervised` as a task."""
