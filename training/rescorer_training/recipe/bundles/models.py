"""Names and interpolation weights λ of the models of a new bundle."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np

from rescorer.bundle import RERANKERS, WEIGHTS
from rescorer.bundle.manifest import MAX_NAME_CHARACTERS
from rescorer.errors import ConfigError, quote
from rescorer.lm.mixture import check_mixture
from rescorer.score_combination import EMPTY, MIXTURE, OOV, WORDS
from rescorer_training.evaluation.em_weights import fit_mixture
from rescorer_training.evaluation.model_set import choose_name

RESERVED = {
    **dict.fromkeys((MIXTURE, WORDS, OOV, EMPTY), "another component of a total"),
    **dict.fromkeys((WEIGHTS, RERANKERS), "a folder of every bundle"),
}
"""Names that a model cannot have, and what has them."""


def name_models(kind: str, values: Sequence[str]) -> dict[str, Path]:
    """Read ``FILE`` and ``NAME=FILE`` options; models without a name are KIND, KIND2, … in their order.

    Raises:
        ConfigError: two models have the same name.
    """
    models: dict[str, Path] = {}
    for value in values:
        name, equals, path = value.partition("=")
        if not equals or Path(value).exists():  # a path may contain "="
            name, path = choose_name(kind, models), value
        if name in models:
            raise ConfigError(f"--{kind} {value}: there is already a model {quote(name)}, {models[name]}")
        models[name] = Path(path)
    return models


def check_model_name(name: str, streams: Collection[str]) -> None:
    """Raise ConfigError unless a model can have this name, which is also that of its folder in the bundle.

    Args:
        streams: score streams of the default weights, which are components of a total beside the models.
    """
    if len(name) > MAX_NAME_CHARACTERS or not re.fullmatch(r"\w[\w-]*", name):
        raise ConfigError(
            f"a model is named {quote(name)}; expected at most {MAX_NAME_CHARACTERS} letters, digits, '_' "
            "and '-'"
        )
    owner = "a score stream of the weights" if name in streams else RESERVED.get(name)
    if owner:
        raise ConfigError(f"a model is named {quote(name)}, which is {owner}; choose another name")


def check_shares(given: Mapping[str, float], names: Sequence[str], backward: Collection[str] = ()) -> None:
    """Check λ that are given: either complete, or only those of models to leave out of the mixture.

    Args:
        backward: names of the backward models.

    Raises:
        ConfigError: a model is unknown, no model is left, the λ do not sum to 1, or they mix directions.
    """
    left = [name for name in names if given.get(name) != 0]
    if any(given.values()) or not left:
        check_mixture(given, names, backward)
    elif unknown := sorted(set(given) - set(names)):
        raise ConfigError(f"λ of an unknown model {quote(unknown[0])}; the models are {', '.join(names)}")


def choose_shares(
    given: Mapping[str, float], log_probs: Mapping[str, np.ndarray], backward: Collection[str] = ()
) -> dict[str, float]:
    """λ of every model of one direction: those given, and 0 for the rest; fitted, if only λ of 0 are given.

    The direction is that of the λ above 0; if none is given, it is forward unless only backward models are
    left. The λ are fitted by EM.

    Args:
        given: λ that ``check_shares`` has checked.
        log_probs: for each model, (T,) ln P of every held-out token.
        backward: names of the backward models.
    """
    left = [name for name in log_probs if given.get(name) or (name not in given and not any(given.values()))]
    is_backward = all(name in backward for name in left)
    mixed = {name: part for name, part in log_probs.items() if (name in backward) == is_backward}
    fitted = {} if any(given.values()) else {name: mixed[name] for name in left if name in mixed}
    shares = {**given, **(fit_mixture(fitted) if fitted else {})}
    return {name: shares.get(name, 0.0) for name in mixed}


def divide_weight(
    mixture_weight: float, mixture: Collection[str], backward: Collection[str]
) -> dict[str, float]:
    """Weights of the mixture and of the backward models outside it: each direction gets half of the weight.

    The scores of sentences in both directions are averaged.

    Args:
        mixture: names of the models that are mixed.
    """
    outside = [name for name in backward if name not in mixture]
    if not outside:
        return {MIXTURE: mixture_weight}
    half = mixture_weight / 2
    return {MIXTURE: half, **dict.fromkeys(outside, half / len(outside))}
