"""`python -m transfer.pretrain RECIPE --backbone NAME --dataset NAME [flags]`: pretrain, record, export the weights."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from backbones.errors import UsageError, UserError, did_you_mean

if TYPE_CHECKING:
    from transfer.cli.command import Recipe
    from transfer.cli.options import PretrainRunOptions
    from transfer.evaluation.planned_run import PlannedRun
    from transfer.records.store import Record

USAGE = """usage: python -m transfer.pretrain RECIPE --backbone NAME [--dataset NAME] [flags]
       python -m transfer.pretrain RECIPE --help      all flags of a recipe
       python -m transfer.pretrain --list             recipes, backbones and data sets

The weights go to weights/NAME, where `python -m transfer.run TASK --backbone NAME` finds them. RECIPE may be a YAML.

examples:
  python -m transfer.pretrain dino --backbone tiny --smoke
  python -m transfer.pretrain deit --backbone deit_s16_convstem --dataset imagenet1k --data FOLDER
  python -m transfer.pretrain dino --backbone dino_s16 --data FOLDER --launcher slurm --nodes 2 --gpus 8

exit status: 0 weights exported, 3 the training broke down (recorded, nothing exported), 1 something failed,
2 wrong words, 143 stopped by a signal with its state saved"""


def main(argv: list[str]) -> int:
    """Runs the command; returns its exit status."""
    from transfer.cli.command import exit_on_user_error

    return exit_on_user_error(_main, argv, usage=USAGE)


def _main(argv: list[str]) -> int:
    from transfer.cli.command import check_names_in, pretraining_recipe

    if argv[0] == "--list":
        return _list()
    if argv[0].startswith("-"):
        raise UsageError(f"the recipe comes first, before {argv[0]}\n{USAGE}")
    recipe = pretraining_recipe(argv[0])
    method = _method_of(recipe)
    check_names_in(argv[1:])
    return _run(recipe, method, argv[1:])


def _list() -> int:
    from backbones.data.spec import dataset_names
    from backbones.spec import backbone_names
    from transfer.cli.command import pretraining_names

    for title, names in (
        ("recipes", pretraining_names()),
        ("backbones", backbone_names()),
        ("data sets", dataset_names()),
    ):
        print(f"{title}:\n  " + "\n  ".join(names))
    return 0


def _methods() -> list[str]:
    """Modules of `backbones/pretrain/` that give a method."""
    import backbones

    files = (Path(next(iter(backbones.__path__))) / "pretrain").glob("*.py")
    return sorted(path.stem for path in files if "\nMETHOD = " in path.read_text(encoding="utf-8"))


def _method_of(recipe: "Recipe") -> str:
    from backbones.settings import read_yaml

    name = read_yaml(recipe.path).get("method")
    if name not in _methods():
        raise UsageError(
            f"{recipe.path}: `method` is {name!r}{did_you_mean(str(name), _methods())}: {', '.join(_methods())}"
        )
    return str(name)


def _run(recipe: "Recipe", name: str, words: list[str]) -> int:
    from backbones.pretrain.method import load_method
    from tasks.token_diagnostics.during_training import check_epochs
    from transfer.cli.command import read_command
    from transfer.cli.options import PretrainRunOptions
    from transfer.evaluation.execute import execute
    from transfer.evaluation.pretraining_task import Pretraining
    from transfer.records import command_result

    method = load_method(name)
    command = read_command(recipe, method.options, words, PretrainRunOptions)
    run = command.run
    assert isinstance(run, PretrainRunOptions)
    if run.method != name:
        raise UsageError(f"--method {run.method}: the recipe {recipe.name} is for {name}; choose another recipe")
    if len(run.dataset) > 1:
        raise UsageError("--dataset: pretraining takes one")
    check_epochs(run.tokens_at, command.options.epochs)
    if command.launch.launcher == "slurm" and not run.dry_run:
        from transfer.launch.single_job import launch

        command.check_flags(command.resolved(from_scratch=True))
        return launch("transfer.pretrain", [str(recipe.path), *words], command)
    status, records = execute(command, Pretraining(method, run.tokens_at), lambda cell: _guard(cell, run))
    for record in records:
        if record.export:
            _publish(record, run)
    command_result.write(run.receipt, records, status)
    return status


def _target(run: "PretrainRunOptions", backbone: str) -> Path:
    return run.weights_to / (run.name or backbone)


def _guard(cell: "PlannedRun", run: "PretrainRunOptions") -> None:
    from backbones.runtime.files import check_writable
    from transfer.evaluation.weights_export import check_target

    check_writable(run.weights_to, "--weights-to")
    if not run.replace:
        check_target(_target(run, cell.present.spec.name), cell.identity.digest, run.out, cell.options)


def _publish(record: "Record", run: "PretrainRunOptions") -> None:
    """Puts the run's weights in their place, unless they are there; what others have put there meanwhile stays."""
    from backbones.checkpoints.exports import WEIGHTS, pretraining_facts
    from backbones.engine.context import EXPORT
    from backbones.weights import sha256
    from transfer.evaluation.weights_export import check_target, publish

    target, source = _target(run, record.backbone["name"]), run.out / record.run_id / EXPORT
    weights = target / WEIGHTS
    same = weights.is_file() and f"sha256:{sha256(weights)}" == record.export
    if not same or pretraining_facts(target).get("identity") != record.identity:
        if not source.is_dir():
            raise UserError(f"{source}: the run's export is gone; delete {source.parent} to train it again")
        if not run.replace:
            check_target(target, record.identity, None, record.options)
        publish(source, target)
    print(f"weights: {target}", file=sys.stderr)


def command() -> None:
    """Entry point of the console script."""
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    command()
