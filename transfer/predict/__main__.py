"""`python -m transfer.predict RUN IMAGES --to FILE` uses what a run trained on new images.

Detections, classes with scores, features, the nearest images of a gallery, maps of attention. They are the numbers of
the run's own evaluation.
"""

import sys
from pathlib import Path

from transfer.cli.entry import exit_on_user_error
from transfer.cli.help import read_options
from transfer.core.errors import MissingInput, print_safe
from transfer.core.exports import pretraining_facts
from transfer.predict.options import PredictOptions
from transfer.records.record import Record
from transfer.records.store import RECORD, Run


def main(argv: list[str] | None = None) -> int:
    """Predict; write or print what is found."""
    return exit_on_user_error(_main, argv)


def _main(argv: list[str]) -> int:
    options = read_options(PredictOptions, argv, "python -m transfer.predict")
    run = find_run(options.run)
    from transfer.predict.trained import predict

    found = predict(run, options, progress=True)
    if not (options.to or options.pictures or options.maps):
        print_safe(found.to_csv(options.top))
    return 0


def find_run(path: Path) -> Run:
    """Return the run in a folder, or whose weights are in it.

    Raises:
        MissingInput: there is none.
    """
    made = pretraining_facts(path).get("run", "") if path.is_dir() else ""
    above = path.resolve().parents[:3] if made else ()
    for folder in (path, path.parent, *(base / name / made for base in above for name in (".", "runs"))):
        if (folder / RECORD).is_file():
            return Run(folder.resolve(), Record.read(folder / RECORD))
    which = f"; its weights are of {made}: name that run's folder" if made else "; name the folder of a run"
    raise MissingInput(f"{path}: no {RECORD}{which}, such as runs/RUN")


if __name__ == "__main__":
    sys.exit(main())
