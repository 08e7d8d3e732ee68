"""N-best rescoring for speech recognition.

from rescorer import Hypothesis, NBestList, Rescorer

rescorer = Rescorer.load("models/starter/1")
nbest = NBestList("u1", (Hypothesis("two be"), Hypothesis("to be")), {"acoustic": (-310.0, -310.1)})
answer = rescorer.rescore([nbest])[0]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rescorer.former_names import accept_former_names

if TYPE_CHECKING:
    from rescorer.errors import (
        BundleError,
        ConfigError,
        FormatError,
        InputError,
        InvalidList,
        LimitExceeded,
        ModelError,
        ModelNotFound,
        ModelRefused,
        RescorerError,
        ScoringError,
    )
    from rescorer.pipeline import Rescorer
    from rescorer.scoring.options import RescoreOptions, load_weights
    from rescorer.types import (
        Calibration,
        ConfidenceMap,
        ConsensusWord,
        DecisionRule,
        Hypothesis,
        NBestList,
        Phrase,
        RescoredHypothesis,
        RescoredList,
        TextScore,
        Utterance,
        Weights,
        WordConfidence,
    )

__all__ = [
    "BundleError",
    "Calibration",
    "ConfidenceMap",
    "ConfigError",
    "ConsensusWord",
    "DecisionRule",
    "FormatError",
    "Hypothesis",
    "InputError",
    "InvalidList",
    "LimitExceeded",
    "ModelError",
    "ModelNotFound",
    "ModelRefused",
    "NBestList",
    "Phrase",
    "RescoreOptions",
    "RescoredHypothesis",
    "RescoredList",
    "Rescorer",
    "RescorerError",
    "ScoringError",
    "TextScore",
    "Utterance",
    "Weights",
    "WordConfidence",
    "load_weights",
]

_HOMES = (
    "rescorer.types",
    "rescorer.errors",
    "rescorer.scoring.options",
    "rescorer.pipeline",
)
"""Modules that define the exported names. Each is imported when one of its names is first used, so that a
program can handle signals before long imports, and a client of a server never imports the pipeline."""

accept_former_names()


def __getattr__(name: str) -> object:
    if name in __all__:
        from importlib import import_module

        for home in _HOMES:
            if name in vars(module := import_module(home)):
                globals()[name] = value = vars(module)[name]
                return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
