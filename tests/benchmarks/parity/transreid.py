"""Lock-step parity of the re-identification recipe with TransReID's ViT baseline (arXiv 2102.04378).

    pip install yacs
    git clone https://github.com/damo-cv/TransReID CHECKOUT
    python -m tests.benchmarks parity_transreid --checkout CHECKOUT

Equal weights, batches and random numbers go through the peer's own code and ours: DeiT-S at 256 x 128 pixels, 16 x 4
images of drawn people, fp32, 20 steps in the first 4 of 120 epochs. Prints what was compared; exits with 1 where a
difference is above its limit. The recipe is `configs/tasks/reid.yaml` with the peer's rate and its pixel statistics.

It takes 20 minutes on two cores.

Not compared, because the two differ on purpose: which random numbers shuffle identities, how ties in a ranking are
scored (by luck there), and the peer's fp16.

Needs damo-cv/TransReID and yacs.
"""

import collections.abc
import importlib
import itertools
import random
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from backbones.backbone import create
from backbones.positions import fit_positions
from tasks.ranking.metrics import rank
from tasks.reid.task import ReidOptions
from tasks.reid.training import ReidLearner, features, train_loader
from tests.benchmarks.options import read
from tests.benchmarks.parity import checks
from tests.benchmarks.parity.checks import Check
from tests.support import command, context
from transfer.cli.command import Command
from transfer.core.seeding import seed_torch
from transfer.data.loading.images import erased, reid_test_transform, reid_train_transform
from transfer.data.loading.loader import pk_batches
from transfer.data.loading.read_image import read_image
from transfer.data.reid.dataset import ReidData, open_reid
from transfer.data.reid.market1501 import Sample
from transfer.data.spec import resolve_dataset

ROOMS = ("config", "datasets", "loss", "model", "processor", "solver", "utils")
CONFIG = "configs/Market/vit_base.yml"
"""The baseline: no side information, no jigsaw branch, stride 16. Its DeiT-S has a file for MSMT17 only."""
ARCHITECTURE = "deit_small_patch16_224_TransReID"
PIXELS = 0.5
"""Mean and standard deviation of its normalisation, in all channels."""

Batch = tuple[Tensor, Tensor]


class Peer:
    """The peer's modules, configured as its baseline, with DeiT-S in place of ViT-B and the market data in `market`.

    Its own code makes the model, the data, the losses, the optimizer and the schedule, and its own loop trains. What it
    needs from old versions of torch or from a GPU is stood in for at run time.

    Attributes:
        cfg: its configuration.
        train_set, test_set: its datasets, with transforms; the test set is the query images, then the gallery's.
        queries, classes: numbers of query images and of training identities.

    Raises:
        UserError: `checkout` is not the peer's repository, or a package that it imports is missing.
    """

    def __init__(self, checkout: Path, market: Path) -> None:
        self.modules = _import(checkout)
        self.cfg = self.modules["config"].cfg
        self.cfg.merge_from_file(str(checkout / CONFIG))
        self.cfg.merge_from_list(["MODEL.TRANSFORMER_TYPE", ARCHITECTURE, "MODEL.PRETRAIN_CHOICE", "none"])
        self.cfg.merge_from_list(["DATALOADER.NUM_WORKERS", 0, "DATASETS.ROOT_DIR", str(market.parent)])
        # The peer's name of the folder below ROOT_DIR is fixed.
        self.modules["datasets.market1501"].Market1501.dataset_dir = market.name
        loaders = self.modules["datasets.make_dataloader"].make_dataloader(self.cfg)
        train, _, test, self.queries, self.classes, _, _ = loaders
        self.train_set, self.test_set = train.dataset, test.dataset

    def model(self, drop_path: float) -> nn.Module:
        """Backbone, neck and classifier, initialised at random."""
        cfg = self.cfg.clone()
        cfg.merge_from_list(["MODEL.DROP_PATH", drop_path])
        return self.modules["model.make_model"].make_model(cfg, self.classes, camera_num=0, view_num=0)

    def schedule(self) -> list[dict[str, float]]:
        """The rates of a weight and of a bias in every epoch of the recipe, as its loop sets them."""
        model = nn.Linear(1, 1)
        optimizer = self.optimizers(model)[0]
        scheduler = self.modules["solver.scheduler_factory"].create_scheduler(self.cfg, optimizer)
        epochs = []
        for epoch in range(1, self.cfg.SOLVER.MAX_EPOCHS + 1):
            scheduler.step(epoch)
            epochs.append(checks.by_parameter(model, optimizer.param_groups, "lr"))
        return epochs

    def train(self, model: nn.Module, epochs: Sequence[Sequence[Batch]]) -> checks.Noted:
        """Trains in place with the peer's own loop, the schedule being that of the whole recipe.

        Args:
            epochs: the batches of each epoch: images in [0, 1], identities.
        """
        loss_function, center = self.modules["loss.make_loss"].make_loss(self.cfg, self.classes)
        optimizer, optimizer_center = self.optimizers(model, center)
        scheduler = self.modules["solver.scheduler_factory"].create_scheduler(self.cfg, optimizer)
        noted, cfg = checks.Noted(loss_function, optimizer), self.cfg.clone()
        cfg.merge_from_list(["SOLVER.MAX_EPOCHS", len(epochs)])
        # images, identities, cameras and views; the baseline ignores the last two
        seen = [[(checks.normalised(x, [PIXELS], [PIXELS]), y, 0 * y, 0 * y) for x, y in batches] for batches in epochs]
        # its loop moves batches to "cuda"; they stay where they are
        with mock.patch.object(torch.cuda, "synchronize"), mock.patch.object(Tensor, "to", lambda tensor, *_: tensor):
            self.modules["processor.processor"].do_train(
                cfg, model, center, checks.Batches(seen), [], optimizer, optimizer_center, scheduler, noted,
                self.queries, "cpu",
            )  # fmt: skip
        return noted

    def rank(self, features: Tensor, identities: np.ndarray, cameras: np.ndarray) -> tuple[np.ndarray, float, Tensor]:
        """CMC, mAP and the features as ranked, of features [M, D] of the query images, then the gallery's."""
        evaluator = self.modules["utils.metrics"].R1_mAP_eval(self.queries, 50, self.cfg.TEST.FEAT_NORM)
        evaluator.reset()
        evaluator.update((features, identities, cameras))
        cmc, mean_ap, _, _, _, query, gallery = evaluator.compute()
        return cmc, float(mean_ap), torch.cat([query, gallery])

    def batches(self, identities: Sequence[int], p: int, k: int) -> list[list[int]]:
        """The batches of one epoch, as indices, drawn from the global generators of `random` and numpy."""
        source = [("", identity, 0, 0) for identity in identities]
        indices = list(self.modules["datasets.sampler"].RandomIdentitySampler(source, p * k, k))
        return [indices[start : start + p * k] for start in range(0, len(indices), p * k)]

    def optimizers(self, model: nn.Module, center: nn.Module | None = None) -> Any:
        """Its optimizer, with a group for each parameter that is trained, and that of the center loss."""
        return self.modules["solver.make_optimizer"].make_optimizer(self.cfg, model, center or nn.Linear(1, 1))


def peer_name(name: str) -> str:
    """The peer's name of a parameter or buffer of our learner."""
    for ours, theirs in (("backbone.model.", "base."), ("neck.norm.", "bottleneck."), ("neck.", "")):
        if name.startswith(ours):
            return theirs + name.removeprefix(ours)
    return name


def _import(checkout: Path) -> dict[str, Any]:
    """The peer's modules by name, with stand-ins where its code asks for a GPU."""
    names = (
        "config", "datasets.make_dataloader", "datasets.market1501", "datasets.sampler", "loss.make_loss",
        "model.make_model", "model.backbones.vit_pytorch", "processor.processor",
        "solver.make_optimizer", "solver.scheduler_factory", "utils.metrics",
    )  # fmt: skip
    # torch had this module up to 1.12.
    six = {"torch._six": {"container_abcs": collections.abc}}
    with checks.importing(checkout, CONFIG, "damo-cv/TransReID", ROOMS, six):
        modules: dict[str, Any] = {name: importlib.import_module(name) for name in names}
    # The center loss, which the baseline makes and does not use, goes to the GPU unless told otherwise.
    center = modules["loss.make_loss"].CenterLoss
    modules["loss.make_loss"].CenterLoss = lambda **options: center(**{**options, "use_gpu": False})
    # fp16 on a GPU becomes fp32 on a CPU.
    modules["processor.processor"].amp = SimpleNamespace(
        autocast=lambda enabled: nullcontext(), GradScaler=lambda: torch.amp.GradScaler("cpu", enabled=False)
    )
    return modules


STEPS, EPOCHS = 20, 4
FEATURE_SCALE = 0.1
"""Of the last norm. At length sqrt(384) the triplet loss pulls random features into one point within a few steps, and
distances there lose their digits: rounding alone then moves the loss by 1e-4. Shorter ones stay apart."""


def our_learner(peer: Peer, recipe: Command) -> ReidLearner:
    """Our side's model in the recipe's learner."""
    shape = {"img_size": recipe.options.size, "drop_path": recipe.options.drop_path, **recipe.recipe_backbone}
    backbone = create(recipe.run.backbone, **recipe.backbone.overrides(), **shape)
    return ReidLearner(backbone, peer.classes, recipe.options)


def first_epochs(learner: ReidLearner, dataset: ReidData) -> list[list[Batch]]:
    """Batches of our loader: images in [0, 1], identities."""
    loader = train_loader(dataset.files(dataset.train), learner.backbone, learner.options, context())
    epochs: list[list[Batch]] = [[] for _ in range(EPOCHS)]
    for place, batch in loader.stream(0, 0, EPOCHS):
        if place.index < STEPS // EPOCHS:
            epochs[place.epoch].append(batch)
    return epochs


def compare_training(peer: Peer, dataset: ReidData, recipe: Command) -> Iterator[Check]:
    """20 steps from equal weights on equal batches; then the features, and the ranking by them."""
    seed_torch(1)
    learner, options = our_learner(peer, recipe), recipe.options
    model = peer.model(options.drop_path)
    nn.init.constant_(model.get_parameter("base.norm.weight"), FEATURE_SCALE)
    state = model.state_dict()
    stds = [float(weight.std()) for weight in (learner.neck.classifier.weight, state["classifier.weight"])]
    yield Check("model: deviation of the new classifier", abs(stds[0] - stds[1]), 3e-5, f"{stds[1]:.6f}")
    learner.load_state_dict({name: state[peer_name(name)] for name in learner.state_dict()})
    groups = [{**group, "lr": group["scale"] * group["peak"]} for group in learner.parameter_groups(options)]
    for key, limit in (("weight_decay", 0), ("lr", 1e-7)):
        own = {peer_name(name): value for name, value in checks.by_parameter(learner, groups, key).items()}
        theirs = checks.by_parameter(model, peer.optimizers(model)[0].param_groups, key)
        apart = checks.furthest(own, {name: value for name, value in theirs.items() if not name.startswith("base.fc.")})
        yield Check(f"optimizer: {key} of a parameter", apart, limit, f"{len(own)} parameters")

    epochs = first_epochs(learner, dataset)
    steps = checks.trained(learner, options, epochs, floored=True)
    prepared = [[learner.prepare(batch, torch.device("cpu")) for batch in batches] for batches in epochs]
    noted = peer.train(model, prepared)

    yield from noted.compared("training", steps, "loss", "lr")
    state, own = model.state_dict(), {peer_name(name): value for name, value in learner.state_dict().items()}
    moved = checks.furthest(own, {name: value for name, value in state.items() if not name.startswith("base.fc.")})
    yield Check("training: parameters and statistics at the end", moved, 1e-5)
    yield from _compare_ranking(peer, dataset, model, learner)


def compare_positions(peer: Peer, recipe: Command) -> Iterator[Check]:
    """A table of 14 x 14 places, as released ViTs have it, on the grid of the recipe's images."""
    model: Any = our_learner(peer, recipe).backbone.model
    table = torch.randn(1, 197, model.embed_dim)
    ours = fit_positions({"cls_token": model.cls_token, "pos_embed": table}, model, (14, 14))["pos_embed"]
    resize = peer.modules["model.backbones.vit_pytorch"].resize_pos_embed
    theirs = resize(table, model.pos_embed, *model.patch_embed.grid_size)
    yield Check("positions: 14 x 14 on 16 x 8", float((ours - theirs).abs().max()), 1e-6)


def _compare_ranking(peer: Peer, dataset: ReidData, model: nn.Module, learner: ReidLearner) -> Iterator[Check]:
    model.eval()
    images = torch.stack([image for image, *_ in peer.test_set])
    with torch.no_grad():
        theirs = torch.cat([model(batch) for batch in images.split(64)])
    identities, cameras = np.array([who for _, *who, _ in peer.test_set.dataset]).T
    split = peer.queries
    labels = [half for values in (identities, cameras) for half in (values[:split], values[split:])]

    learner.eval()
    samples = [*dataset.query, *dataset.gallery]
    own = features(learner, dataset.files(samples), learner.options, context())
    cmc, mean_ap, ranked = peer.rank(theirs, identities, cameras)
    yield Check("ranking: normalised features after training", float((own - ranked).abs().max()), 1e-4)

    each = rank(own[:split], own[split:], *labels)
    yield Check("ranking: mAP, each side's features", abs(each.mAP - mean_ap), 1e-3, f"{mean_ap:.6f}")
    # In fp32 each side rounds distances in its own way, and so orders near ties in its own way.
    cmc, mean_ap, ranked = peer.rank(theirs.double(), identities, cameras)
    same = rank(ranked[:split], ranked[split:], *labels)
    yield Check("ranking: mAP, the same features", abs(same.mAP - mean_ap), 1e-12, f"{mean_ap:.6f}")
    difference = float(np.abs(same.cmc - cmc).max())
    yield Check("ranking: CMC, the same features", difference, 1e-6, f"ranks 1 to {len(cmc)}, theirs in fp32")


DRAWS = 500


def main(argv: Sequence[str]) -> int:
    """Compares everything; the exit status."""
    checkout = read(argv, __doc__, checkout=Path).checkout
    return checks.report(compare(checkout))


def compare(checkout: Path) -> Iterator[Check]:
    """Everything."""
    dataset = open_reid(resolve_dataset("toy_market"), None)
    peer = Peer(checkout, dataset.root)
    recipe = our_command(peer)
    options: ReidOptions = recipe.options
    yield from compare_data(peer, dataset)
    yield from compare_samplers(peer, dataset, options)
    yield from compare_images(peer, dataset, options)
    epochs = peer.schedule()
    for name, peak in (("weight", options.lr), ("bias", options.lr * options.bias_lr_factor)):
        yield checks.compared_rates(f"rate of a {name}", options, peak, [rates[name] for rates in epochs])
    yield from compare_positions(peer, recipe)
    yield from compare_training(peer, dataset, recipe)


def our_command(peer: Peer) -> Command:
    """The shipped recipe with DeiT-S, fp32, and what the peer's configuration says of rate and pixels."""
    pixels = [str(PIXELS)] * 3
    words = ["--backbone", "vit_s", "--weights", "random", "--dataset", "toy_market", "--precision", "fp32"]
    return command("reid", *words, "--mean", *pixels, "--std", *pixels, "--lr", str(peer.cfg.SOLVER.BASE_LR))


def compare_data(peer: Peer, dataset: ReidData) -> Iterator[Check]:
    """The same images in the same lists; identities and cameras equal up to their numbering."""
    ours = [dataset.train, [*dataset.query, *dataset.gallery]]
    theirs = [
        [Sample(str(path), *who) for path, *who, _ in images.dataset] for images in (peer.train_set, peer.test_set)
    ]
    for name, our, their in zip(("training", "query and gallery"), ours, theirs):
        wrong = len(our) - len(their) or sum(a.path != b.path for a, b in zip(our, their))
        for kind in ("identity", "camera"):
            pairs = {(getattr(a, kind), getattr(b, kind)) for a, b in zip(our, their)}
            wrong += 2 * len(pairs) - len({a for a, _ in pairs}) - len({b for _, b in pairs})
        yield Check(f"data: {name} lists, entries", abs(wrong), 0, f"{len(our)} images")
    yield Check("data: query images", abs(len(dataset.query) - peer.queries), 0)
    yield Check("data: training identities", abs(len({s.identity for s in dataset.train}) - peer.classes), 0)


def compare_samplers(peer: Peer, dataset: ReidData, options: ReidOptions) -> Iterator[Check]:
    """P x K batches, whose generators differ: how many there are in each of 20 epochs."""
    p, k = options.num_identities, options.num_instances
    uneven = [identity for identity in range(60) for _ in range(identity % 12 + 1)]
    for name, identities in (("drawn people", [s.identity for s in dataset.train]), ("1 to 12 images each", uneven)):
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002 (the peer draws from it)
        theirs = [peer.batches(identities, p, k) for _ in range(20)]
        ours = [pk_batches(identities, p=p, k=k, seed=0, epoch=epoch) for epoch in range(20)]
        counts = [[len(epoch) for epoch in side] for side in (theirs, ours)]
        note = ", ".join(f"{who} {min(c)} to {max(c)}" for who, c in zip(("theirs", "ours"), counts))
        difference = abs(float(np.mean(counts[0]) - np.mean(counts[1])))
        yield Check(f"sampler: mean batches per epoch, {name}", difference, 0.5, note)


def compare_images(peer: Peer, dataset: ReidData, options: ReidOptions) -> Iterator[Check]:
    """Augmented images from equal seeds, and test images, both as normalised."""
    pixels = [PIXELS] * 3
    train = reid_train_transform(options, pixels, pixels)

    def augmented(image: Image.Image) -> Tensor:
        bytes_of, box, noise = train(image)
        return erased(bytes_of[None], box[None], noise)[0]

    images = (read_image(sample.path) for _, sample in zip(range(DRAWS), itertools.cycle(dataset.train)))
    yield checks.compared_views("augmentation", images, augmented, peer.train_set.transform, pixels, pixels)
    images = (read_image(sample.path) for sample in [*dataset.query, *dataset.gallery])
    test = reid_test_transform(options.size)
    yield checks.compared_views("test", images, test, peer.test_set.transform, pixels, pixels)
