"""Commands with several weights: which seeds are used with which. Imports no torch."""

from dataclasses import replace

from backbones.checkpoints.exports import seed_exports
from transfer.cli.command import Command


def each_weights(command: Command, from_scratch: bool) -> list[Command]:
    """Return the command with each of its weights; a folder with the exports of several seeds stands for all of them.

    As many seeds as weights are paired in order; any other number of seeds is used with each of the weights.
    """
    named, seeds = command.backbone.weights, command.run.seeds
    if named == ("config",) and not from_scratch and seed_exports(default := command.resolved(False).weights):
        named = (default,)
    weights = [one for name in named for one in seed_exports(name) or [name]]
    paired = [(seed,) for seed in seeds] if len(seeds) == len(weights) else [seeds] * len(weights)
    return [
        replace(command, backbone=replace(command.backbone, weights=(one,)), run=replace(command.run, seeds=own))
        for one, own in zip(weights, paired, strict=True)
    ]


def pairing(commands: list[Command]) -> str:
    """Return the line that says which seeds are used with which weights."""
    pairs = ", ".join(f"{one.backbone.weights[0]} with seed {' '.join(map(str, one.run.seeds))}" for one in commands)
    return f"{len(commands)} weights: {pairs}"
