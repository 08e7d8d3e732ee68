"""Precisions of matrix products: what a lower one changes, and which one a bundle records as its choice.

Networks and models in pieces of words compute in float32, or less exactly and often faster in bfloat16 or
int8. How much that changes depends on the model, and how much time it saves on the processor; so
``compare_precisions`` measures both, and `rescorer-train precision` records the choice in the manifest of a
bundle. ``auto`` stands for that choice and is never made again, so the version of a bundle, which each
answer names, says how its scores were computed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rescorer.errors import BundleError, ConfigError
from rescorer.models.language_model import LanguageModel
from rescorer.trie import Words, build_trie

if TYPE_CHECKING:
    from rescorer.models.bundle import Bundle

PRECISIONS = ("float32", "bfloat16", "int8")
AUTO = "auto"
RECORD = "precision"  # key of a manifest: {"tolerance": nats per word, "models": {name: {"dtype", …}}}


def check_precision(dtype: str, device: str = "cpu") -> None:
    """Raise ConfigError if a precision is unknown, or not supported on this type of device."""
    if dtype not in PRECISIONS:
        raise ConfigError(f"dtype is {dtype!r}; expected {', '.join(PRECISIONS[:-1])} or {PRECISIONS[-1]}")
    if dtype == "int8" and not device.startswith("cpu"):
        raise ConfigError(f"dtype int8 is only supported on CPUs; use bfloat16 on {device}")


def choose_precisions(bundle: Bundle, dtype: str, device: str = "cpu") -> dict[str, str]:
    """The precision of each network and each model in pieces of words, by the name of the model.

    Args:
        dtype: one precision for all of them, or ``auto`` for those that the bundle records. On a GPU, where
            there is no int8, ``auto`` then means bfloat16 if that is within the tolerance, else float32.

    Raises:
        ConfigError: the precision is unknown or not supported, or the bundle records no choice.
        BundleError: the record is invalid.
    """
    names = [name for name, kind in bundle.model_kinds.items() if kind != "ngram"]
    if dtype != AUTO:
        check_precision(dtype, device)
        return dict.fromkeys(names, dtype)
    if names and RECORD not in bundle.manifest:
        raise ConfigError(
            f"{bundle.label}: dtype is auto, but the bundle records no precision; `rescorer-train precision` "
            f"measures it and publishes the bundle again, or choose one of {', '.join(PRECISIONS)}"
        )
    return {name: _read_choice(bundle, name, device) for name in names}


def _read_choice(bundle: Bundle, name: str, device: str) -> str:
    """Read the precision that a bundle records for one model."""
    place = f"{bundle.folder / 'manifest.json'}: {RECORD!r}"
    record = bundle.manifest[RECORD]
    try:
        tolerance, model = float(record["tolerance"]), record["models"][name]
        chosen = str(model["dtype"])
        half = float(model["difference"].get("bfloat16", math.inf))  # some models cannot be computed in it
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        raise BundleError(
            f"{place} is invalid for the model {name!r}; expected its dtype, its differences and a "
            "tolerance, as `rescorer-train precision` writes them"
        ) from None
    if chosen not in PRECISIONS:
        raise BundleError(
            f"{place}: {name!r} has the dtype {chosen[:100]!r}; expected {', '.join(PRECISIONS)}"
        )
    if chosen == "int8" and not device.startswith("cpu"):
        return "bfloat16" if half <= tolerance else "float32"
    return chosen


@dataclass(frozen=True, slots=True)
class PrecisionCheck:
    """How scores in one precision differ from those in float32, and how fast they are computed."""

    mean_difference: float
    """Mean difference, over all variants of all sentences, of the ln P per word, in nats."""
    max_difference: float
    """Largest such difference."""
    changed: int
    """Number of sentences of whose variants another one has the highest ln P per word."""
    n_sentences: int
    words_per_s: float
    """Words and sentence ends of all variants that were scored per second of processor time."""


def compare_precisions(
    load: Callable[[str], LanguageModel], sentences: Sequence[Words], repetitions: int = 1
) -> dict[str, PrecisionCheck]:
    """Compare the scores of a model in each precision of this machine with those in float32.

    Args:
        load: loads the model in a precision; raises ConfigError if the machine does not have it.
        sentences: each is scored together with variants of it, as hypotheses of a list are.
        repetitions: how often they are scored; the fastest time counts.

    Raises:
        ConfigError: no sentence has words.
    """
    groups = [list(vary(words)) for words in sentences if words]
    if not groups:
        raise ConfigError("the text has no words; expected sentences to compare scores of")
    trie = build_trie([words for group in groups for words in group])
    lengths = np.array([len(words) + 1 for group in groups for words in group])
    found: dict[str, PrecisionCheck] = {}
    exact = load(PRECISIONS[0])  # kept, because the others may share its tokenizer while it is there
    expected = np.zeros(0)
    for dtype in PRECISIONS:
        try:
            model = load(dtype) if found else exact
        except ConfigError:
            continue
        seconds = np.inf
        for _ in range(repetitions):
            started = time.process_time()
            sums = model.score(trie).sum_paths(trie)
            seconds = min(seconds, time.process_time() - started)
        values = (sums / lengths).reshape(len(groups), -1)  # (S, variants)
        expected = expected if len(expected) else values
        difference = np.abs(values - expected)
        changed = int((values.argmax(axis=1) != expected.argmax(axis=1)).sum())
        speed = float(lengths.sum() / max(seconds, 1e-9))
        found[dtype] = PrecisionCheck(
            float(difference.mean()), float(difference.max()), changed, len(groups), speed
        )
    return found


WORTHWHILE = 1.1  # a lower precision has to be this much faster than float32 to be chosen


def choose_fastest(checks: Mapping[str, PrecisionCheck], tolerance: float) -> str:
    """The fastest precision whose mean difference is within a tolerance, if it is worthwhile.

    Args:
        checks: what ``compare_precisions`` found, float32 included.
        tolerance: largest mean difference per word, in nats.
    """
    exact = checks[PRECISIONS[0]].words_per_s
    good = {
        dtype: check.words_per_s
        for dtype, check in checks.items()
        if check.mean_difference <= tolerance and check.words_per_s >= WORTHWHILE * exact
    }
    return max(good, key=good.__getitem__, default=PRECISIONS[0])


def make_record(checks: Mapping[str, Mapping[str, PrecisionCheck]], tolerance: float) -> dict[str, Any]:
    """Make the manifest's record of the chosen precisions and their differences, by model."""
    models = {
        name: {
            "dtype": choose_fastest(found, tolerance),
            "difference": {dtype: found[dtype].mean_difference for dtype in PRECISIONS[1:] if dtype in found},
        }
        for name, found in checks.items()
    }
    return {"tolerance": tolerance, "models": models}


def vary(words: Words) -> Iterator[Words]:
    """A sentence and variants of it that share prefixes, as hypotheses do: a word left out or repeated."""
    middle = len(words) // 2
    yield from (
        words,
        words[:middle],
        words[:middle] + words[middle + 1 :],
        words[: middle + 1] + words[middle:],
    )
