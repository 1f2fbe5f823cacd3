"""Imports mmdetection, where loader processes come from a server; see `transfer.data.loading.workers`."""

from tasks.detect.mmlab import load

load()
