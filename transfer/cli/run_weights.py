"""Finds the weights that a run saved, where `--weights` names the run by its id or its folder. Imports no torch."""

from pathlib import Path

from transfer.core.errors import MissingInput, UserError, did_you_mean, reason_of
from transfer.core.exports import CONFIG, EXPORT
from transfer.core.files import parse_json
from transfer.engine.outcome import SCORED

RECORD, OPTIONS = "record.json", "options.yaml"


def check_pretrained(backbone: str, out: Path) -> None:
    """Raise MissingInput for a missing export whose pretraining is in the folder of runs: it is written at the end."""
    missing = "/" in backbone and ":" not in backbone and not Path(backbone).exists()
    texts = [file.read_text() for file in out.glob(f"pretrain-*/{OPTIONS}")] if missing else []
    if any(f"\nname: {Path(backbone).name}\n" in text for text in texts):
        later = "is written after the last seed of its pretraining, which is under way or interrupted"
        raise MissingInput(f"--backbone {backbone} {later}; wait for it, or rerun the pretraining command to resume")


def weights_of_run(weights: str, out: Path) -> str:
    """Return the exported folder of a run that `weights` names; other weights are returned as they are.

    Args:
        weights: the value of `--weights`.
        out: the folder of runs, in which an id is looked for.

    Raises:
        MissingInput: the run is unfinished, its training failed, it saved no weights, or the id
            is unknown and near that of a run.
        UserError: its record cannot be read.
    """
    folders = [Path(weights)] if "/" in weights or Path(weights).is_dir() else [out / weights]
    run = next((folder for folder in folders if (folder / RECORD).exists() or (folder / OPTIONS).exists()), None)
    if run is None:
        ids = (record.parent.name for record in out.glob(f"*/{RECORD}"))
        plausible = "-" in weights and not {":", "/"} & {*weights} and not Path(weights).exists()
        if plausible and (near := did_you_mean(weights, ids)):
            raise MissingInput(f"--weights {weights}: no such run in {out}{near}")
        return weights
    if not (run / RECORD).is_file():
        raise MissingInput(f"--weights {weights}: the run in {run} is unfinished; rerun its command to finish it")
    try:
        record = parse_json((run / RECORD).read_bytes())
        status = record["outcome"]["status"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"--weights {weights}: {run / RECORD} is not a readable record ({reason_of(error)})") from None
    if (run / EXPORT / CONFIG).is_file():
        return str(run / EXPORT)
    other = "its task trains no backbone, or it used --save-weights none"
    reason = other if status in SCORED else f"its training ended as {status}"
    raise MissingInput(f"--weights {weights}: the run in {run} saved no weights: {reason}")
