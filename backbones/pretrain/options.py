"""The options that every pretraining method has; a recipe's values are in its YAML file."""

from dataclasses import dataclass

from backbones.engine.options import FitOptions, check_ranges
from backbones.errors import UsageError


@dataclass(kw_only=True)
class PretrainOptions(FitOptions):
    """What every pretraining method takes besides the options of the training loop."""

    label_fraction: float
    """Share of each class's training images; 1 takes all. They are chosen by content digest and `fraction_seed`."""
    fraction_seed: int
    """Seed of the choice of images. It is apart from the run's own, so that runs of several seeds share their
    images."""
    validate_at: tuple[int, ...]
    """Epochs (from 1; negative ones from the end) after which the validation split is scored, besides the last one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epochs == 0:
            raise UsageError(
                "--epochs 0: nothing would be trained; `python -m transfer.run classify` scores a trained classifier"
            )
        check_ranges(self, 0, 1, "label_fraction")
        check_ranges(self, 0, None, "fraction_seed")
        if self.label_fraction == 0:
            raise UsageError("--label-fraction must be above 0")
        if 0 in self.validate_at:
            raise UsageError(f"--validate-at {self.validate_at}: epochs count from 1, or from -1 for the last")

    def validates(self, epoch: int) -> bool:
        """Return whether the validation split is scored after this epoch (from 0)."""
        return epoch + 1 in self.validate_at or epoch - self.epochs in self.validate_at
