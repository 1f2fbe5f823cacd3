"""Training: the loop `fit`, the base class `Learner`, optimizers, schedules, SAM, checkpoints, feature extraction,
ranks and statuses.

Nothing here knows a model, a method or a task: losses live in `backbones.pretrain` and `tasks`.
"""
