"""One finished run for users of Python: its record, its folder, and the model that it left."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from transfer.core.errors import MissingInput, UserError
from transfer.core.exports import EXPORT, export_folder, users_parts
from transfer.engine.history import history
from transfer.records import store
from transfer.records.per_sample import OUTCOMES, UnusableOutcomes, arrays_in

if TYPE_CHECKING:
    from backbones.backbone import Backbone


class Run(store.Run):
    """A finished run.

    Attributes:
        folder: where its files lie.
        record: what `record.json` says.
    """

    @property
    def run_id(self) -> str:
        """The name of the run, `<task>-<dataset>-<backbone>-<12 hex>`."""
        return self.record.run_id

    @property
    def task(self) -> str:
        """The name of the task; of a pretraining `pretrain-METHOD`."""
        return self.record.task

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return self.record.seed

    @property
    def scores(self) -> dict[str, float]:
        """The scores by name, fractions in [0, 1] unless `record.metrics` says otherwise; empty if training failed."""
        return dict(self.record.scores)

    @property
    def outcome(self) -> str:
        """How the training ended: completed, nonfinite, diverged, collapsed, at_chance or not_judged."""
        return self.record.status

    @property
    def weights(self) -> Path:
        """The folder of the trained backbone in timm's format, which `--weights` and `weights=` take.

        Raises:
            MissingInput: the run trained no backbone, or kept no weights.
        """
        folder = self.folder / EXPORT
        if export_folder(str(folder)) is None:
            raise MissingInput(self._without_weights)
        return folder

    @property
    def _without_weights(self) -> str:
        return (
            f"{self.run_id}: there are no weights in {self.folder / EXPORT}; the task trains no backbone, or the "
            "run was made with --save-weights none"
        )

    def backbone(self, **overrides: Any) -> "Backbone":
        """Return the trained backbone, `backbones.backbone.Backbone`, on the CPU.

        A run that trains none gives the frozen backbone that it used.

        Args:
            overrides: as `img_size=` and `classes="trained"` of `backbones.create`.

        Raises:
            MissingInput: the weights are not here.
        """
        from backbones.backbone import create
        from backbones.spec import BackboneSpec

        given = self.record.backbone
        if export_folder(str(self.folder / EXPORT)) is not None:
            given = given | {"weights": str(self.weights), "load": "strict", "weights_key": None, "weights_size": None}
            given |= users_parts(self.weights)
        elif self.record.cost.get("images_per_second"):
            raise MissingInput(self._without_weights)
        return create(BackboneSpec.from_dict(given), **overrides)

    def history(self) -> list[dict[str, Any]]:
        """Return the lines of `history.jsonl`: statistics of training steps, and of validations."""
        return history(self.folder)

    def per_sample(self) -> dict[str, NDArray[Any]]:
        """Return the per-sample results, arrays by name; see docs/records.md for what each task keeps.

        Raises:
            UserError: the file is missing or damaged.
        """
        try:
            return arrays_in(self.folder / OUTCOMES)
        except UnusableOutcomes as error:
            raise UserError(f"{self.folder / OUTCOMES}: {error}") from None
