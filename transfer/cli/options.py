"""Options that every command shares: what to run and where, and the parts of the backbone. Imports no torch."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from transfer.core.errors import errors_naming, errors_together, reject
from transfer.core.options import Checked, CommandLine, Common, Execution, Files, Needs, Range, check_keys
from transfer.core.settings import as_flags, parse_flags

MOST_PROCESSES = 1_024
"""Of workers, and of threads of torch."""
DRY_RUN = CommandLine("the command line prints the options of a run: python -m transfer.run TASK ... --dry-run")


@dataclass(kw_only=True)
class RunOptions(Checked):
    """What to run and where. Only backbone, dataset, seed, smoke and subset are part of the run key."""

    backbone: Annotated[str, Files(), Common()] = ""
    """Backbone: a name of configs/backbones, a timm model, a YAML file, file.py:Name, or an exported folder such as
    weights/NAME."""
    dataset: Annotated[tuple[str, ...], Files(), Common()] = ()
    """Datasets: names, YAML files, folders, torchreid:NAME."""
    data: Annotated[Path | None, Execution(), Common()] = None
    """Folder with the datasets; by default $TRANSFER_DATA."""
    seeds: Annotated[tuple[int, ...], Common()] = (0,)
    """Seeds; each makes a run with its own record."""
    subset: Annotated[int | None, Range(2), Common()] = None
    """Use only N identities, N images per class, or N images of each split of COCO or masks, selected by content hash;
    marked in the record."""
    smoke: Annotated[bool, Common()] = False
    """Smoke test on bundled synthetic data, in seconds; marked in the record and excluded from reports."""
    config: Annotated[tuple[Path, ...], Execution(repeated=False), Common()] = ()
    """YAML files with options, or names of configs/schedules; they override the recipe and the sizes of --smoke, later
    files override earlier ones, and flags override all."""
    out: Annotated[Path, Execution(repeated=False), Common()] = Path("runs")
    """Folder of the runs."""
    baselines: Annotated[tuple[Path, ...], Execution(repeated=False)] = ()
    """Folders of records: a finished run of theirs with the same run key is copied to --out instead of run again; a
    pretraining without its weights only with --save-weights none."""
    feature_cache: Annotated[Path, Execution(repeated=False)] = Path("features")
    """Folder in which fewshot caches features of frozen backbones; delete it to free space."""
    metric: Annotated[tuple[str, ...], Files()] = ()
    """Custom metrics, such as my_metric.py:NAME: functions of a run's per-sample results, recorded beside the task's
    scores."""
    device: Annotated[Literal["auto", "cpu", "cuda"], Execution(), Common()] = "auto"
    """Device to compute on; auto uses a GPU if there is one."""
    workers: Annotated[int | None, Range(0, MOST_PROCESSES), Execution(), Common()] = None
    """Image-loading processes per rank; by default from the usable cores."""
    threads: Annotated[int | None, Range(1, MOST_PROCESSES), Execution()] = None
    """CPU threads of torch per rank; by default OMP_NUM_THREADS, else the rank's share of the usable cores, and 1 for
    small models."""
    sequence_parallel: Annotated[int, Range(1), Execution()] = 1
    """Neighboring ranks that share the tokens of an image, under torchrun: in pretraining, finetune, detect."""
    checkpoint_seconds: Annotated[float, Range(0), Execution()] = 300.0
    """Seconds between two checkpoints."""
    save_weights: Annotated[Literal["last", "none"], Execution()] = "last"
    """Trained weights, as they are scored, that the run exports to its folder `export` in timm's format, with a task's
    head beside them; or none."""
    allow_modified: Annotated[bool, Execution()] = False
    """Accept exported weights that were changed after they were written; without it they are rejected."""
    allow_dropped: Annotated[bool, Execution()] = False
    """Accept weights of which more tensors are dropped or missing than --load partial allows; the record lists them."""
    drop_corrupt: Annotated[bool, Execution()] = False
    """Exclude corrupt images and record their number, decoding every image once; without it a corrupt image stops the
    run."""
    tracker: Annotated[Literal["none", "tensorboard", "wandb"], Execution()] = "none"
    """Tracker that also gets the statistics and the record, offline."""
    result_file: Annotated[Path | None, Execution(repeated=False), CommandLine("the records are returned")] = None
    """File for the names of the runs and the exit status; sweeps read it when the command has ended."""
    dry_run: Annotated[bool, Execution(repeated=False), Common(), DRY_RUN] = False
    """Check everything that a run checks, print how it differs from the recipe, and stop."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.seeds or len({*self.seeds}) < len(self.seeds) or not all(0 <= seed < 2**63 for seed in self.seeds):
            reject("--seeds must be different numbers from 0 to 2**63 - 1, at least one")
        if len({*self.dataset}) < len(self.dataset):
            reject(f"--dataset {' '.join(self.dataset)}: a name is duplicated")


@dataclass(kw_only=True)
class PretrainRunOptions(RunOptions):
    """Where the weights of a pretraining go."""

    method: Annotated[str, Files()] = ""
    """Pretraining method, set by the recipe: supervised, dino, or my_method.py:METHOD."""
    name: Annotated[str | None, Execution(), Common()] = None
    """Name of the exported weights; by default the backbone's, under which tasks look for them."""
    export_dir: Annotated[Path, Execution()] = Path("weights")
    """Folder of the exports; the weights go to EXPORT_DIR/NAME, of several seeds to EXPORT_DIR/NAME/seedN."""
    replace: Annotated[bool, Execution(repeated=False), Common()] = False
    """Overwrite the exported weights of another run."""
    tokens_at: Annotated[tuple[int, ...], Execution()] = ()
    """Epochs (1-based; negative ones count from the end) after which the token measurements of 64 images go to
    history.jsonl."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name is not None and (not self.name.strip(".") or "/" in self.name):
            reject(f"--name {self.name}: a plain name, without folders (--export-dir names the folder)")


SUBMITTED = Needs(launcher="slurm")


@dataclass(kw_only=True)
class LaunchOptions(Checked):
    """Where the command runs: on this machine, or as a Slurm job. None of it is part of the run key."""

    launcher: Literal["local", "slurm"] = "local"
    """Run here, or submit the command as a Slurm job, follow it and print its table; a job that is preempted or out of
    time saves a checkpoint and is requeued."""
    nodes: Annotated[int, SUBMITTED, Range(1)] = 1
    """Nodes of the job."""
    gpus: Annotated[int, SUBMITTED, Range(0)] = 1
    """GPUs on each node, with one process each; 0 computes on the CPU, in one process."""
    cpus: Annotated[int | None, SUBMITTED, Range(1)] = None
    """Cores on each node."""
    memory_gb: Annotated[float | None, SUBMITTED, Range(1e-3)] = None
    """Memory on each node in GB."""
    minutes: Annotated[int, SUBMITTED, Range(1)] = 240
    """Time limit of the job in minutes. Shortly before it the job saves its state and goes back into the queue."""
    partition: Annotated[str | None, SUBMITTED] = None
    """Slurm partition."""
    account: Annotated[str | None, SUBMITTED] = None
    """Slurm account."""
    qos: Annotated[str | None, SUBMITTED] = None
    """Slurm quality of service."""
    constraint: Annotated[str | None, SUBMITTED] = None
    """Slurm constraint on the nodes."""

    def resources(self) -> dict[str, Any]:
        """Return the resources that the job requests, as a sweep's YAML names them."""
        return {name: value for name in RESOURCES if (value := getattr(self, name)) is not None}


RESOURCES = tuple(item.name for item in fields(LaunchOptions) if item.name != "launcher")


@dataclass(kw_only=True)
class BackboneOptions:
    """Components of the backbone, overriding its configuration."""

    weights: Annotated[tuple[str, ...], Files(), Common()] = ("config",)
    """Weights to start from: config (random in pretraining; else of the backbone's YAML, or weights/NAME once
    pretrained here), random, timm, timm:NAME, hf-hub:NAME, a run, a folder or a file."""
    weights_key: str | None = None
    """Network in a file that holds several: teacher, student, state_dict_ema, or a prefix; by default the one that the
    file's project evaluates."""
    load: Literal["strict", "partial"] | None = None
    """How the weights must match: strict (all tensors), or partial (a new part stays newly initialized, which is
    recorded)."""
    weights_size: tuple[int, int] | None = None
    """Height and width of the images that the weights were trained on, where the number of positions does not give the
    grid."""
    arch: Annotated[str | None, Files()] = None
    """Architecture: vit_ti, vit_s, vit_b, vit_l, volo_d1, a timm model, or file.py:Name."""
    stem: Annotated[str | None, Files(), Common()] = None
    """Stem: a name of `--list stems`, components such as 3Conv+3BN+3ReLU+1Proj@2,1,1,8, or file.py:Name."""
    attention: Annotated[str | None, Files(), Common()] = None
    """Attention: a name of `--list attentions`, or file.py:Name."""
    ffn: Annotated[str | None, Files()] = None
    """Feed-forward network: a name of `--list ffns`, or file.py:Name."""
    patch: int | None = None
    """Patch size in pixels."""
    depth: int | None = None
    """Number of blocks."""
    pool: str | None = None
    """Pooling of the tokens: cls, gap (no class token), or mean (of the patch tokens)."""
    pos: str | None = None
    """Position embedding: learned or sincos2d."""
    pos_embed_interp: Literal["antialias", "bicubic", "dino", "bilinear", "corners"] | None = None
    """Interpolation of position embeddings to another grid, as in timm (antialias), ViTDet, DeiT and VOLO (bicubic),
    DINO (dino), TransReID (bilinear) or big_vision (corners); by default as in the recipe."""
    qk_norm: bool | None = None
    """LayerNorm on queries and keys; by default on with point-wise attention."""
    gate: str | None = None
    """Gate on the attention's output: off, sigmoid (timm's), silu, or linear."""
    alpha: float | Literal["learned"] | None = None
    """Exponent of the sequence length in point-wise attention: a number, or learned."""
    length: Literal["tokens", "image", "train"] | None = None
    """Tokens that count as the sequence length: the keys, those of the image, or those of a training image."""
    pre_logits: bool | None = None
    """Dense layer and tanh after pooling, whose output is the representation (big_vision)."""
    init: Literal["deit", "bigvision"] | None = None
    """Initialization of the weights, as in DeiT or big_vision."""
    cls_pos_embed: bool | None = None
    """Position embedding for the class token."""
    in_chans: int | None = None
    """Channels of the images; by default 3. Weights of RGB are adapted as timm does."""
    mean: tuple[float, ...] | None = None
    """Pixel mean in [0, 1]; by default the backbone's own."""
    std: tuple[float, ...] | None = None
    """Pixel standard deviation; by default the backbone's own."""

    def overrides(self) -> dict[str, Any]:
        """Return the arguments of `backbones.resolve` besides the name."""
        values = {item.name: value for item in fields(self) if (value := getattr(self, item.name)) is not None}
        return values | {"weights": self.weights[0]}


BACKBONE_OPTIONS = tuple(item.name for item in fields(BackboneOptions))
"""The options that say which backbone is meant."""


def check_resources(resources: dict[str, Any], where: str) -> None:
    """Raise UsageError for an unknown resource or an impossible value.

    Args:
        where: the place of the resources, for messages.
    """
    check_keys(resources, (*RESOURCES, "extra"), where)
    values = {name: value for name, value in resources.items() if value is not None}
    values.pop("extra", None)
    with errors_naming(where), errors_together():
        read = parse_flags(LaunchOptions, [], prog=where, below=as_flags({"gpus": 0, **values}))
        for name, value in values.items():
            if isinstance(value, str) and not isinstance(getattr(read, name), str):
                reject(f"{name} must be a number, not the text {value!r}; remove the quotes")
