"""Read the weights sets of a bundle, and check weights against its models and rerankers."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from rescorer.bundle.manifest import WEIGHTS
from rescorer.errors import BundleError, ConfigError, did_you_mean, quote
from rescorer.lm.mixture import check_mixture
from rescorer.reranking.reranker import Reranker
from rescorer.safe_input.files import Folder
from rescorer.score_combination import (
    CACHE,
    MIXTURE,
    NEURAL_CACHE,
    check_cache_share,
    check_flatness,
    parse_weights,
)
from rescorer.types import Weights

MAX_MESSAGE_CHARACTERS = 1000
"""Longest message about the content of a bundle's JSON files."""


def read_weights(
    folder: Folder,
    names: Mapping[str, str],
    models: list[str],
    rerankers: Mapping[str, Reranker],
    backward: Collection[str] = (),
    remembers: Collection[str] | None = None,
) -> dict[str, Weights]:
    """Read all weights sets of a bundle, by name, and check them against the bundle's models.

    Args:
        names: the file of each set in the folder, by the name of the set.
        backward: names of the backward models.
        remembers: names of the models that can have a neural cache; None: all can.

    Raises:
        BundleError: a weights set is invalid, or the set ``default`` is missing or has no mixture weights.
    """
    weights_by_name: dict[str, Weights] = {}
    for name, file in names.items():
        try:
            weights = parse_weights({"name": name, **folder.read_json(file)})
            check_weights(weights, models, rerankers, backward, remembers)
        except ConfigError as error:
            raise BundleError(f"{folder.path / file}: {shorten_message(error)}") from None
        weights_by_name[name] = weights
    if "default" not in weights_by_name:
        raise BundleError(f"{folder.path / WEIGHTS}: default.json is missing")
    if not weights_by_name["default"].mixture:
        path = folder.path / WEIGHTS / "default.json"
        raise BundleError(f"{path}: no mixture weights; expected at least one")
    return weights_by_name


def check_weights(
    weights: Weights,
    models: list[str],
    rerankers: Mapping[str, Reranker],
    backward: Collection[str] = (),
    remembers: Collection[str] | None = None,
) -> None:
    """Check that weights fit the models and rerankers of a bundle.

    Args:
        backward: names of the backward models.
        remembers: names of the models that can have a neural cache; None: all can.

    Raises:
        ConfigError: the weights name unknown models or rerankers, the λ of the mixture do not sum to 1 or
            belong to models of both directions, the λ of a cache is out of range or belongs to a mixture that
            cannot have it, or a reranker was trained on scores under other λ.
    """
    unknown = sorted(set(weights.lm) - {*models, MIXTURE})
    if unknown:
        known = [*models, MIXTURE]
        raise ConfigError(
            f"weights.lm names {unknown}; the bundle has {known}{did_you_mean(unknown[0], known)}"
        )
    if weights.mixture:
        check_mixture(weights.mixture, models, backward)
    if check_cache_share(weights.cache) and not set(weights.mixture).isdisjoint(backward):
        raise ConfigError(
            f"weights.cache is {weights.cache:g}, but the mixture is one of backward models, which do not "
            "read what was said before; expected 0, or a mixture of forward models"
        )
    _check_neural_cache(weights, remembers)
    for name, weight in weights.rerankers.items():
        if name not in rerankers:
            known = list(rerankers)
            raise ConfigError(
                f"weights.rerankers names {quote(name)}; the bundle has {', '.join(known) or 'no rerankers'}"
                f"{did_you_mean(name, known)}"
            )
        if weight and weights.mixture:
            _check_shares(weights, rerankers[name])


def _check_neural_cache(weights: Weights, remembers: Collection[str] | None) -> None:
    """Raise ConfigError if a neural cache has a wrong λ or θ, or no model of the mixture can have one."""
    check_flatness(weights.flatness)
    share = check_cache_share(weights.neural_cache, NEURAL_CACHE)
    if not share or not weights.mixture or remembers is None:
        return
    if not any(weights.mixture.get(name) for name in remembers):
        able = ", ".join(sorted(remembers)) or "none"
        raise ConfigError(
            f"weights.neural_cache is {share:g}, but no model of the mixture has states to compare; expected "
            f"0, or a mixture with a forward network without topics (the bundle has: {able})"
        )


def _check_shares(weights: Weights, reranker: Reranker) -> None:
    """Raise ConfigError if the λ of weights are not those of the scores that a reranker was trained on."""
    if MIXTURE not in reranker.needs:
        return
    for name in (CACHE, NEURAL_CACHE, *(["flatness"] if weights.neural_cache else [])):
        own, base = getattr(weights, name), getattr(reranker.base, name)
        if not math.isclose(own, base, abs_tol=1e-9):
            raise ConfigError(
                f"weights {quote(weights.name)} have the {name} {own:.4g}, but reranker "
                f"{quote(reranker.name)} was trained with {base:.4g}, which weights.{name} must be"
            )
    trained = reranker.base.mixture
    names = {*weights.mixture, *trained}
    if any(not math.isclose(weights.mixture.get(n, 0.0), trained.get(n, 0.0), abs_tol=1e-9) for n in names):
        raise ConfigError(
            f"weights {quote(weights.name)} have the λ {_format_shares(weights.mixture)}, but reranker "
            f"{quote(reranker.name)} was trained with {_format_shares(trained)}; leave out weights.mixture, "
            "or train a reranker with these λ"
        )


def _format_shares(mixture: Mapping[str, float]) -> str:
    """Write λ for messages, such as ``ngram 0.4, neural 0.6``."""
    return ", ".join(f"{name} {share:.4g}" for name, share in mixture.items()) or "none"


def shorten_message(error: Exception) -> str:
    """The message of an error, shortened to ``MAX_MESSAGE_CHARACTERS``."""
    text = str(error)
    return text if len(text) <= MAX_MESSAGE_CHARACTERS else f"{text[:MAX_MESSAGE_CHARACTERS]}…"
