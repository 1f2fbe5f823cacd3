"""The record of a run that has just finished."""

from dataclasses import asdict

from backbones.engine.context import Context, peak_mib
from tasks.task import Scores
from transfer.evaluation.environment import environment
from transfer.evaluation.planned_run import PlannedRun
from transfer.records.store import Record


def new_record(planned: PlannedRun, context: Context, scores: Scores, started: str) -> Record:
    """Return the record of the finished run from its scores and what `context` collected."""
    cost, dataset = context.cost, planned.dataset
    hours = (cost.train_seconds + cost.eval_seconds) * context.ranks.world / 3600
    facts = ("name", "version", "counts", "digest", "skipped")
    own = {users.name: users.metric for users in planned.metrics}
    names = {**planned.task.metrics, **scores, **own}  # of the task, or of a metric of the user's own
    return Record(
        run_id=planned.run_id,
        run_key=planned.run_key.digest,
        config_digest=planned.run_key.without("seed").digest,
        task=planned.task.name,
        task_version=planned.task.version,
        dataset={name: getattr(dataset, name) for name in facts},
        backbone=context.backbone or planned.inputs.spec.as_dict(),
        weights_id=planned.inputs.weights_id,
        untrained=context.untrained,
        options=planned.options,
        seed=planned.seed,
        smoke=planned.command.run.smoke,
        subset=planned.command.run.subset,
        outcome=asdict(context.outcome),
        scores=scores,
        primary=planned.task.primary,
        metrics={name: (own[name] if name in own else planned.task.metric(name)).as_dict() for name in names},
        cost=cost.summary() | {"peak_mib": peak_mib(context.device), "device_hours": hours},
        environment=environment(context, trains=planned.trains) | {"started": started},
        notes=context.notes,
        details=context.details,
        export=context.exported,
        run_key_content=planned.run_key.content,
        origin=planned.inputs.origin,
        user_code=planned.user_code,
    )
