"""Owns how scores become one total a hypothesis, and what a valid set of weights is (pure)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from rescorer.errors import ConfigError, did_you_mean
from rescorer.types import Weights

WORDS, OOV = "words", "oov"
"""Names of the two counts among the components of a hypothesis."""
MIXTURE = "mixture"
"""Name of the word-level mixture among the language models."""


def totals(components: Mapping[str, np.ndarray], weights: Weights) -> np.ndarray:
    """Σ_k w_k·s_k + Σ_m w_m·LM_m + w_word·n_words + w_oov·n_oov of each hypothesis of a list.

    Args:
        components: (H,) float64 by name: streams, LMs, ``words`` and ``oov``.

    Returns:
        (H,) float64; not finite where scores or weights are too large.
    """
    terms = {**weights.streams, **weights.lm, WORDS: weights.word, OOV: weights.oov}
    total = np.zeros(len(components[WORDS]))
    with np.errstate(over="ignore", invalid="ignore"):
        for name, weight in terms.items():
            if weight != 0.0:  # a stream that counts nothing need not be there
                total += weight * components[name]
    return total


def parse_weights(values: Mapping[str, Any]) -> Weights:
    """Weights from plain data, such as a JSON file or a request.

    Raises:
        ConfigError: a key is unknown, or a value is no finite number.
    """
    known = [each.name for each in fields(Weights)]
    unknown = sorted(set(values) - set(known))
    if unknown:
        meant = did_you_mean(unknown[0], known)
        raise ConfigError(f"unknown weight settings {unknown}; known are {known}{meant}")
    checked: dict[str, Any] = {}
    for name, value in values.items():
        if name == "name":
            checked[name] = str(value)
        elif name == "tuned_on":
            checked[name] = tuple(str(each) for each in value)
        elif name in ("word", "oov"):
            checked[name] = finite(value, name)
        elif not isinstance(value, Mapping):
            raise ConfigError(f"weights.{name} is {value!r}; expected numbers by name")
        else:
            checked[name] = {str(key): finite(each, f'{name}["{key}"]') for key, each in value.items()}
    return Weights(**checked)


def finite(value: Any, name: str) -> float:
    """``value`` as a float; raises ConfigError where it is no finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ConfigError(f"weights.{name} is {value!r}; expected a finite number")
    return float(value)


def weights_to_dict(weights: Weights) -> dict[str, Any]:
    """Plain data that ``parse_weights`` reads back."""
    plain = {each.name: getattr(weights, each.name) for each in fields(weights)}
    return {
        key: dict(value) if isinstance(value, Mapping) else list(value) if isinstance(value, tuple) else value
        for key, value in plain.items()
    }
