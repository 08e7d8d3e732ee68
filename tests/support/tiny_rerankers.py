"""Tiny rerankers for tests: a linear one and an MLP with random parameters, in a bundle of tiny models."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from rescorer.models.bundle import RERANKERS, hash_used_models, read_bundle, seal
from rescorer.reranking.networks import Ensemble, PerceptronSizes, TransformerSizes
from rescorer.reranking.reranker import Reranker, write_reranker
from rescorer.trie import WordEncoder
from rescorer.types import Weights
from rescorer.weights import MIXTURE, weights_to_dict

FEATURES = (
    "total", "score:acoustic", "score:ngram", "score_per_word:mixture", "words", "characters", "oov", "empty",
    "log_rank", "distance:1", "distance:4", "word_mean:1", "word_least:2", "slot_mean:1", "slot_least:1",
    "copies", "repeats", "overlap:1", "overlap:2",
)  # fmt: skip


def linear_ensemble(weights: np.ndarray) -> Ensemble:
    """An ensemble of linear networks with weights of (M, F), without an encoding."""
    return Ensemble(PerceptronSizes(weights.shape[1], 0, 0), {"linear": weights})


def random_reranker(
    name: str,
    base: Weights,
    units: int = 0,
    members: int = 3,
    features: tuple[str, ...] = FEATURES,
    encoder: WordEncoder | None = None,
) -> Reranker:
    """Make a reranker with random parameters.

    Args:
        base: weights of its totals.
        units: number of hidden units; 0 for a linear reranker.
    """
    random = np.random.default_rng(len(name) + units)
    encoding = 0 if encoder is None else encoder.projection.shape[1]
    sizes = PerceptronSizes(len(features), encoding, units)
    ensemble = random_ensemble(sizes, members, random)
    scales = random.uniform(0.5, 2.0, len(features))
    held_out = {"wer": 20.5, "start_wer": 21.0}
    return Reranker(
        name,
        features,
        scales,
        base,
        ensemble,
        tuned_on=("f1", "f2"),
        held_out=held_out,
        encoder=encoder,
    )


def random_ensemble(
    sizes: PerceptronSizes | TransformerSizes, members: int = 3, random: np.random.Generator | None = None
) -> Ensemble:
    """Make networks with random parameters."""
    random = random or np.random.default_rng(1)
    shapes = sizes.parameter_shapes(members)
    return Ensemble(sizes, {name: random.normal(size=shape) for name, shape in shapes.items()})


def random_transformer_reranker(
    name: str, base: Weights, encoder: WordEncoder | None, features: tuple[str, ...] = FEATURES
) -> Reranker:
    """Make a reranker of transformers with random parameters.

    Args:
        base: weights of its totals.
    """
    encoding = 0 if encoder is None else encoder.projection.shape[1]
    ensemble = random_ensemble(TransformerSizes(len(features), encoding, 2, 6, 2, 5))
    return replace(random_reranker(name, base, features=features), ensemble=ensemble, encoder=encoder)


def weights_of(reranker: Reranker) -> Weights:
    """Weights by which the score of a reranker alone ranks."""
    base = reranker.base
    return Weights(reranker.name, {}, {MIXTURE: 0.0}, mixture=base.mixture, rerankers={reranker.name: 1.0})


def add_reranker(folder: Path, reranker: Reranker, *, sealed: bool = True) -> None:
    """Add a reranker to a bundle, with a weights set of the same name."""
    models = hash_used_models(reranker, json.loads((folder / "manifest.json").read_text()))
    write_reranker(replace(reranker, models=models), folder / RERANKERS / reranker.name)
    weights = folder / "weights" / f"{reranker.name}.json"
    weights.write_text(json.dumps(weights_to_dict(weights_of(reranker))))
    if sealed:
        seal(folder)


def add_tiny_transformer(folder: Path) -> Path:
    """Add the reranker ``transformer``, which encodes words by the model ``neural``, to a bundle."""
    mixture = read_bundle(folder).weights["default"].mixture
    base = Weights("base", {"acoustic": 1.0}, {MIXTURE: 1.0}, 0.5, mixture=mixture)
    encoder = WordEncoder("neural", np.random.default_rng(2).normal(size=(6, 4)))
    add_reranker(folder, random_transformer_reranker("transformer", base, encoder))
    return folder


def add_tiny_rerankers(folder: Path) -> Path:
    """Add the rerankers ``linear`` and ``mlp`` to a bundle."""
    mixture = read_bundle(folder).weights["default"].mixture
    base = Weights("base", {"acoustic": 1.0}, {MIXTURE: 1.0}, 0.5, mixture=mixture)
    for reranker in (random_reranker("linear", base), random_reranker("mlp", base, units=4)):
        add_reranker(folder, reranker)
    return folder
