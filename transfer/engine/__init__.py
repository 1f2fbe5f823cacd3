"""What any training needs: the loop `fit`, the base class `Learner`, optimizers and schedules, SAM, checkpoints,
feature extraction, FLOP counting, and detection of failed training.

Nothing here knows a method or a task: losses live in `backbones.pretrain` and `tasks`. Devices, ranks and files are
handled in `transfer.core`.
"""
