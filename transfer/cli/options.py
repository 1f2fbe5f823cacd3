"""Options that every command shares: what to run and where, and the parts of the backbone. Imports no torch."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from backbones.engine.options import check_ranges
from backbones.errors import UsageError
from backbones.runtime.needs import Needs

MOST_PROCESSES = 1_024
"""Of workers, and of threads of torch."""


@dataclass(kw_only=True)
class RunOptions:
    """The options of every command. Only backbone, dataset, seed, smoke and subset belong to a run's identity."""

    backbone: str = ""
    """Backbone to run. A name of configs/backbones, a timm model, a YAML file, file.py:Name, or an exported folder."""
    dataset: tuple[str, ...] = ()
    """Datasets: names, YAML files, folders, torchreid:NAME."""
    data: Path | None = None
    """Folder with the datasets; by default $TRANSFER_DATA."""
    seeds: tuple[int, ...] = (0,)
    """Seeds; each makes a record of its own."""
    subset: int | None = None
    """Size of a subset of the real data, marked in the record. It counts identities, images per class, or images of
    each COCO split, which are chosen by content digest."""
    smoke: bool = False
    """Embedded data and sizes that end in seconds; marked in the record, and left out of reports."""
    config: tuple[Path, ...] = ()
    """YAML files with options, or names of configs/schedules. Later files win, and flags win over all of them."""
    out: Path = Path("runs")
    """Folder of the runs."""
    feature_cache: Path = Path("features")
    """Folder that stores features of frozen backbones. Later probes read them; see `python -m transfer.features`."""
    metric: tuple[str, ...] = ()
    """Metrics of your own, as my_metric.py:NAME. Each is a function of the arrays that a run keeps of its samples, and
    its score is recorded beside those of the task."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device to compute on; auto takes a GPU if the machine has one."""
    workers: int | None = None
    """Image-loading processes per rank; by default from the usable cores."""
    threads: int | None = None
    """Threads of torch on the CPU, per rank. By default OMP_NUM_THREADS, else the rank's share of the usable cores, and
    one for a small model."""
    sequence_parallel: int = 1
    """Neighbouring ranks that share an image's tokens. It works under torchrun, in pretraining and detection."""
    checkpoint_seconds: float = 300.0
    """Seconds between two saved states."""
    save_weights: Literal["last", "none"] = "last"
    """Trained weights that reid, linear and detect leave. `last` keeps the backbone at the end of training in timm's
    format, and the head beside it, in the run's folder `export`; `none` saves disk space."""
    allow_modified: bool = False
    """Take exported weights that changed after they were written. The record says so; without it they are refused."""
    allow_dropped: bool = False
    """Take weights that fit less than --load partial asks for. Whatever else of them is dropped or missing is recorded;
    without it such weights are refused."""
    drop_corrupt: bool = False
    """Skip unreadable images and record their number. Without it such an image stops the run."""
    max_pixels: int | None = None
    """Most pixels of an image; a larger one is unreadable. By default it is PIL's limit, 178,956,970."""
    max_replaced: int = 0
    """Most damaged images that a training may replace. In pretraining, finetune, linear and reid the next readable
    image stands in, and the record names them; counted on each rank. Sets of up to 200,000 images are checked before
    they are trained on."""
    tracker: Literal["none", "tensorboard", "trackio", "wandb"] = "none"
    """Tracker that gets the statistics and the record. It writes to this machine; history.jsonl is
    written in any case."""
    result_file: Path | None = None
    """File for the names of the runs and the exit status. Sweeps read it when the command has ended."""
    dry_run: bool = False
    """Print the resolved options and stop."""

    def __post_init__(self) -> None:
        check_ranges(self, 0, MOST_PROCESSES, "workers")
        check_ranges(self, 1, MOST_PROCESSES, "threads")
        check_ranges(self, 2, None, "subset")
        check_ranges(self, 1, None, "sequence_parallel", "max_pixels")
        check_ranges(self, 0, None, "checkpoint_seconds", "max_replaced")
        if not self.seeds or len({*self.seeds}) < len(self.seeds) or not all(0 <= one < 2**63 for one in self.seeds):
            raise UsageError("--seeds: give one or more different numbers, from 0 to 2**63 - 1")
        if len({*self.dataset}) < len(self.dataset):
            raise UsageError("--dataset: a name stands there twice")


# Options of how a run is executed and observed, which never belong to its identity.
EXECUTION = (
    *("compile", "grad_checkpointing", "eval_batch_size", "validate_at"),
    *("data", "out", "feature_cache", "device", "workers", "threads", "checkpoint_seconds", "drop_corrupt", "tracker"),
    *("sequence_parallel", "max_replaced", "save_weights", "name", "export_dir", "replace", "save_pictures"),
    *("test_dataset", "result_file", "tokens_at", "allow_modified", "allow_dropped", "max_pixels"),
)


@dataclass(kw_only=True)
class PretrainRunOptions(RunOptions):
    """The options of every pretraining command: those of all commands, and where the weights go."""

    method: str = ""
    """Set by the recipe. It is supervised, dino, or a method of your own, as my_method.py:METHOD."""
    name: str | None = None
    """Name of the exported weights; by default the backbone's, under which tasks look for them."""
    export_dir: Path = Path("weights")
    """Folder of the exports: the weights go to EXPORT_DIR/NAME."""
    replace: bool = False
    """Put the weights in the place of those of another run."""
    tokens_at: tuple[int, ...] = ()
    """Epochs (from 1; negative ones from the end) after which history.jsonl gets what task tokens measures, of 64
    images."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.seeds) > 1:
            raise UsageError("--seeds: pretraining takes one; give each seed's weights a --name of their own")
        if self.name is not None and (not self.name.strip(".") or "/" in self.name):
            raise UsageError(f"--name {self.name}: a plain name, without folders (--export-dir names the folder)")


MINIMUM = {"nodes": 1, "gpus": 0, "processes": 1, "cpus": 1, "minutes": 1}
"""The smallest value of each resource that is counted."""


SUBMITTED = Needs(launcher="slurm")


@dataclass(kw_only=True)
class LaunchOptions:
    """The place where a command runs: here, or as one job of a cluster. It never belongs to a run's identity."""

    launcher: Literal["local", "slurm"] = "local"
    """Run here, or submit the command as a Slurm job. The job is followed and its table printed; a job that is
    preempted or out of time saves its state and goes back into the queue."""
    nodes: Annotated[int, SUBMITTED] = 1
    """Nodes of the job."""
    gpus: Annotated[int, SUBMITTED] = 1
    """GPUs on each node; 0 computes on the CPU. torchrun starts one process for each."""
    processes: Annotated[int | None, SUBMITTED] = None
    """Processes on each node without GPUs."""
    cpus: Annotated[int | None, SUBMITTED] = None
    """Cores on each node."""
    memory_gb: Annotated[float | None, SUBMITTED] = None
    """Memory on each node in GB."""
    minutes: Annotated[int, SUBMITTED] = 240
    """Time limit of the job in minutes. After it the job saves its state and goes back into the queue."""
    partition: Annotated[str | None, SUBMITTED] = None
    """Slurm partition."""
    account: Annotated[str | None, SUBMITTED] = None
    """Slurm account."""
    qos: Annotated[str | None, SUBMITTED] = None
    """Slurm quality of service."""
    constraint: Annotated[str | None, SUBMITTED] = None
    """Slurm constraint on the nodes."""

    def __post_init__(self) -> None:
        for name, minimum in MINIMUM.items():
            check_ranges(self, minimum, None, name)
        check_ranges(self, 1e-3, None, "memory_gb")
        if self.gpus and self.processes not in (None, self.gpus):
            raise UsageError(
                f"--processes {self.processes}: there is one for each GPU; with --gpus 0 there can be more"
            )

    def resources(self) -> dict[str, Any]:
        """Return the resources that the job requests, as a sweep's YAML names them."""
        return {name: value for name in RESOURCES if (value := getattr(self, name)) is not None}


RESOURCES = tuple(item.name for item in fields(LaunchOptions) if item.name != "launcher")


@dataclass(kw_only=True)
class BackboneOptions:
    """The parts of the backbone that replace those of its configuration."""

    weights: str = "config"
    """Weights to start from. `config` takes those of the backbone's YAML file, `random` none; others are timm, a
    folder, a file, hf-hub:NAME or timm:NAME."""
    weights_key: str | None = None
    """Network of a file that holds several. Names are teacher, student, state_dict_ema, or any prefix in the file; by
    default it is the one that the file's project evaluates."""
    load: Literal["strict", "partial"] | None = None
    """Fit of the weights, strict for all of them. `partial` puts a new part on released weights; the record names the
    parameters that stay untrained."""
    weights_size: tuple[int, int] | None = None
    """Height and width of the images of the weights' training. They give the position grid where the number of
    positions does not."""
    arch: str | None = None
    """Architecture. One of vit_ti, vit_s, vit_b, vit_l, volo_d1, a timm model, or file.py:Name."""
    stem: str | None = None
    """Stem by name, by its components, or file.py:Name. Components are written as 3Conv+3BN+3ReLU+1Proj@2,1,1,8."""
    attention: str | None = None
    """Attention by name, or file.py:Name."""
    ffn: str | None = None
    """Feed-forward network by name, or file.py:Name."""
    patch: int | None = None
    """Patch size in pixels."""
    depth: int | None = None
    """Number of blocks."""
    pool: str | None = None
    """Pooling of the tokens, cls or gap."""
    pos: str | None = None
    """Position embedding, learned or sincos2d."""
    pos_embed_interp: Literal["antialias", "bicubic", "dino", "bilinear", "corners"] | None = None
    """Resampling of positions for another grid; by default the recipe's way. antialias: timm's; bicubic: as in ViTDet,
    DeiT and VOLO; dino: at DINO's scales; bilinear: as in TransReID; corners: bilinear (big_vision)."""
    qk_norm: bool | None = None
    """LayerNorm on queries and keys; on by default with point-wise attention."""
    gate: str | None = None
    """Gate on the attention's output. It is off, or named by its activation: sigmoid (timm's), silu, or linear for
    none."""
    alpha: float | Literal["learned"] | None = None
    """Exponent of the length in point-wise attention."""
    length: Literal["tokens", "image", "train"] | None = None
    """Tokens that the length counts: keys, image or training."""
    pre_logits: bool | None = None
    """Dense layer and tanh behind the pooling (big_vision). Its output is the representation."""
    init: Literal["deit", "bigvision"] | None = None
    """Initialisation of the weights, as in DeiT or big_vision."""
    cls_pos_embed: bool | None = None
    """Position embedding for the class token."""
    in_chans: int | None = None
    """Channels of the images, 3 by default. 1 is grey, 4 RGBA; others come from a reader with `decode`. Weights of RGB
    are adapted as timm does."""
    mean: tuple[float, ...] | None = None
    """Pixel mean in [0, 1]; by default the backbone's own."""
    std: tuple[float, ...] | None = None
    """Pixel standard deviation; by default the backbone's own."""

    def overrides(self) -> dict[str, Any]:
        """Return the arguments of `backbones.resolve` besides the name."""
        return {item.name: value for item in fields(self) if (value := getattr(self, item.name)) is not None}
