"""What a pretraining does besides a task's run: its options are checked, and its weights go to EXPORT_DIR/NAME."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from backbones.checkpoints.exports import seed_exports
from backbones.errors import UsageError
from backbones.pretrain.method import Method
from backbones.user_code import is_in_file, locate
from tasks.token_diagnostics.epochs import check_epochs
from transfer.cli.command import Command
from transfer.cli.options import PretrainRunOptions
from transfer.evaluation.planned_run import PlannedRun
from transfer.evaluation.pretraining_task import Pretraining
from transfer.evaluation.weights_export import check_planned_target, publish_export
from transfer.records.record import Record


@dataclass(frozen=True)
class PretrainingRun:
    """A pretraining command, ready for the evaluator."""

    command: Command
    options: PretrainRunOptions
    task: Pretraining

    @classmethod
    def of(cls, command: Command, method: Method, recipe: str) -> "PretrainingRun":
        """Return the run of a command.

        Raises:
            UsageError: another method than the recipe's, several values, or an epoch that the training has not.
        """
        options = command.run
        assert isinstance(options, PretrainRunOptions)
        given = locate(options.method) if is_in_file(options.method) else options.method
        if given not in ((method.file, "") if method.file else (method.name,)):
            raise UsageError(
                f"--method {options.method}: the recipe {recipe} is for {method.name}; choose another recipe"
            )
        for flag, values in (("--dataset", options.dataset), ("--weights", command.backbone.weights)):
            if len(values) > 1:
                raise UsageError(f"{flag}: pretraining takes one value, got {len(values)}")
        starts = seed_exports(command.backbone.weights[0])
        if len(starts) not in (0, len(options.seeds)):
            raise UsageError(f"--weights: use one of {', '.join(starts)}, or {len(starts)} --seeds, one for each")
        check_epochs(options.tokens_at, command.options.epochs)
        return cls(command, options, Pretraining(method, options.tokens_at))

    @property
    def check_target(self) -> Callable[[PlannedRun], None]:
        """Raises UserError when a planned run could not put its weights into EXPORT_DIR/NAME."""
        return lambda planned: check_planned_target(planned, self.options)

    def publish(self, record: Record) -> Path | None:
        """Copy the weights to EXPORT_DIR/NAME and return that folder; None when the training failed."""
        return publish_export(record, self.options) if record.export else None
