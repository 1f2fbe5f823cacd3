"""Puts the weights of a pretraining among those that come with the suite, by hand, to be committed:

python -m tests.ship runs/RUN NAME

`backbones/weights/shipped/NAME` gets the run as a bundle has it, without local paths, and its export in half precision
with a card. `configs/backbones/NAME.yaml` names the weights.
"""

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file

import transfer
from backbones.weights.export import CARD, write_tensors
from transfer.core import exports
from transfer.core.files import file_sha256, folder_replacement
from transfer.records.store import StoredRun
from transfer.report.card import model_card
from transfer.verify.bundle import PLACE_OPTIONS, bundle, unpacked, without_paths

ABOUT = """
## Shipped with vit-transfer

`--backbone {name}` and `--weights {name}` take these weights. They are for trying the suite on images of your own in
seconds, not for results: {params:.1f} million parameters, trained for {epochs} epochs on {images} images of {size} x
{size} pixels. Matrices and kernels are rounded to float16; the scores above are those before that, of the file
`{export}`. CIFAR-10's authors state no license.
"""


def ship(run: StoredRun, name: str, into: Path = exports.SHIPPED_WEIGHTS) -> Path:
    """Write the folder of shipped weights and return it. Raises UserError for a run that `verify` would not accept."""
    record = without_paths(run.record)
    with folder_replacement(into / name) as new:
        bundle([run], new / "run.zip", every=20)
        with unpacked(new / "run.zip", into) as content:
            shutil.copytree(content / record.run_id, new, dirs_exist_ok=True)
        (new / "run.zip").unlink()
        export = shutil.copytree(run.folder / exports.EXPORT, new / exports.EXPORT)
        tensors = load_file(export / exports.WEIGHTS)
        # what has one dimension (biases, norms and their statistics) is small, and not rounded
        rounded = {key: tensor.half() if tensor.ndim > 1 else tensor for key, tensor in tensors.items()}
        if not all(torch.isfinite(tensor).all() for tensor in rounded.values()):
            raise OverflowError(f"{run.folder}: a value is too large for float16")
        write_tensors(rounded, export / exports.WEIGHTS)
        shutil.copymode(export / exports.CONFIG, export / exports.WEIGHTS)
        facts = exports.pretraining_facts(export)
        facts["options"] = {key: value for key, value in facts["options"].items() if key not in PLACE_OPTIONS}
        facts[exports.SUMS] = {key: file_sha256(export / key) for key in facts[exports.SUMS]}
        (export / exports.PRETRAIN).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        named = replace(run.record, options=run.record.options | {"name": name})
        about = ABOUT.format(
            name=name,
            params=(record.cost["params"] or 0) / 1e6,
            images=record.dataset["counts"]["train"]["images"],
            export=record.export,
            **{key: record.options[key] for key in ("size", "epochs")},
        )
        (export / CARD).write_text(model_card(StoredRun(run.folder, named)) + about, encoding="utf-8")
    return into / name


def main(argv: Sequence[str]) -> int:
    """Ship the weights of a run."""
    folder, name = argv
    (run,) = transfer.load(folder)
    print(ship(run, name))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
