"""What any training needs: the loop `fit`, the base class `Learner`, optimizers and schedules, SAM, checkpoints,
feature extraction, devices and ranks, and detection of failed training.

Nothing here knows a model, a method or a task: losses live in `backbones.pretrain` and `tasks`.
"""
