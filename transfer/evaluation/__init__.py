"""From a `Command` to a `Record`: runs are checked, planned, executed and recorded.

Every task and pretraining method passes through the one evaluator. How records are stored is the matter of
`transfer/records`, where processes run that of `transfer/launch`.
"""
