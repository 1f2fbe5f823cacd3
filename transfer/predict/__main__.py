"""`python -m transfer.predict RUN IMAGES --to FILE` uses what a run trained on new images.

Detections, classes with scores, features, the nearest images of a gallery, maps of attention. They are the numbers of
the run's own evaluation.
"""

import sys

from transfer.cli.entry import exit_on_user_error
from transfer.cli.help import read_options
from transfer.core.errors import MissingInput, print_safe
from transfer.predict.options import PredictOptions
from transfer.records.record import Record
from transfer.records.store import RECORD, StoredRun, unfinished_in


def main(argv: list[str] | None = None) -> int:
    """Predict; write or print what is found."""
    return exit_on_user_error(_main, argv)


def _main(argv: list[str]) -> int:
    options = read_options(PredictOptions, argv, "python -m transfer.predict")
    if not (options.run / RECORD).is_file():
        none = f"{options.run}: no {RECORD}; name the folder of a run, such as runs/RUN"
        raise MissingInput(str(unfinished_in(options.run) or none))
    from transfer.predict.trained import predict

    run = StoredRun(options.run.resolve(), Record.read(options.run / RECORD))
    prediction = predict(run, options, progress=True)
    written = [str(options.to)] if options.to else []
    written += [f"{name}: {folder}/" for name in ("pictures", "maps") if (folder := getattr(options, name))]
    print_safe(f"{prediction}: {'; '.join(written)}" if written else prediction.to_csv(options.top))
    return 0


if __name__ == "__main__":
    sys.exit(main())
