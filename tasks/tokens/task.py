"""Diagnostics of tokens: options, metrics, version; see `tasks.tokens.measuring`."""

from dataclasses import dataclass
from typing import Annotated

from backbones.spec import BackboneSpec
from tasks.labelled_images import Classification, FrozenOptions
from transfer.core.options import Common, Range
from transfer.data.classification import ClassificationData
from transfer.task import Defaults, Metric

SCORED_PLACES = {"stem": "similarity_stem", "positions": "similarity_positions", "block": "similarity_last"}
"""Score of each kind of place; the last place of a kind counts."""


@dataclass(kw_only=True)
class TokensOptions(FrozenOptions):
    """Options of `transfer.run tokens`."""

    images: Annotated[int | None, Range(1), Common()]
    """Validation images, evenly spaced; None takes all."""
    class_token: bool
    """Count the class token and registers as tokens. They count from the positions on; the paper does not say."""


class Tokens(Classification):
    """Mean cosine similarity of an image's tokens at three places; other measures are in the record's details."""

    module = "tasks.tokens.measuring"
    name, version, options, primary, trains = "tokens", 1, TokensOptions, "similarity_stem", False
    metrics = dict.fromkeys(SCORED_PLACES.values(), Metric(unit="cosine", direction="lower", bounds=(-1.0, 1.0)))

    def defaults_for_data(self, spec: BackboneSpec, dataset: ClassificationData, options: TokensOptions) -> Defaults:
        """Return the number of validation images if it is below the recipe's."""
        images = len(dataset.val or ())
        return {"images": (options.images and min(options.images, images), f"there are {images} validation images")}


TASK = Tokens()
