"""Reads back what each tracker has kept, with its own package: the numbers by name, and the attached record."""

import struct
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Series = dict[str, list[tuple[int, float]]]


@dataclass
class Kept:
    """What a tracker holds of one run: (step, value) by name, scores, outcome, status, and the record's bytes."""

    series: Series = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)
    outcome: str | None = None
    ending: str | None = None
    """As the tracker calls it; None where it knows none."""
    record: bytes | None = None
    options: dict[str, Any] = field(default_factory=dict)


def read(name: str, folder: Path) -> Kept:
    """Read the run of a folder; there must be one run of its name."""
    return {"tensorboard": _tensorboard, "wandb": _wandb}[name](folder)


def _split(kept: Kept) -> Kept:
    for name in [name for name in kept.series if name.startswith("score/")]:
        kept.scores[name.removeprefix("score/")] = kept.series.pop(name)[-1][1]
    return kept


def _tensorboard(folder: Path) -> Kept:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    kept = Kept({tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]})
    for tag in events.Tags()["tensors"]:
        text = events.Tensors(tag)[-1].tensor_proto.string_val[0]
        if tag.startswith("record"):
            kept.record = text.removeprefix(b"```json\n").removesuffix(b"\n```")
        else:
            kept.outcome = text.decode()
    return _split(kept)


def _wandb(folder: Path) -> Kept:
    """Read the offline files under the run's id; the program that writes them may end a moment after the run."""
    end = time.monotonic() + 20
    while (kept := _wandb_files(folder)).ending is None and time.monotonic() < end:
        time.sleep(0.1)
    return kept


def _wandb_files(folder: Path) -> Kept:
    """Read what the offline files have so far, oldest first."""
    import json

    from wandb.proto.wandb_internal_pb2 import Record

    kept = Kept()
    for file in sorted(folder.parent.glob(f"wandb/offline-run-*/run-{folder.name.replace(',', '+')}.wandb")):
        for message in _level_db(file.read_bytes()[7:]):
            entry = Record.FromString(message)
            if entry.HasField("history"):
                values = {"/".join(item.nested_key) or item.key: item.value_json for item in entry.history.item}
                step = json.loads(values["_step"])
                for name in (name for name in values if not name.startswith("_")):
                    kept.series.setdefault(name, []).append((step, json.loads(values[name])))
            if entry.HasField("exit"):
                kept.ending = str(entry.exit.exit_code)
            for item in entry.run.config.update:
                kept.options[item.key] = json.loads(item.value_json)
        record = file.parent / "files" / "record.json"
        if record.exists():
            assert not record.is_symlink()
            kept.record = record.read_bytes()
    if "outcome" in kept.series:
        kept.outcome = str(kept.series.pop("outcome")[-1][1])
    return _split(kept)


def _level_db(data: bytes) -> list[bytes]:
    """Messages of a LevelDB log: blocks of 32 KiB; before each chunk checksum, length, part (1 whole, 4 last).

    What is written only in part ends the list.
    """
    messages, message, place, block = [], b"", 7, 32768  # the file's own header counts for the first block
    while place <= len(data):
        if block - place % block < 7:
            place += block - place % block
            continue
        _, length, part = struct.unpack("<IHB", data[place - 7 : place])
        if part == 0 or place + length > len(data):
            break
        message += data[place : place + length]
        place += length + 7
        if part in (1, 4):
            messages.append(message)
            message = b""
    return messages
