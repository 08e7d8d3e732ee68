"""N-best rescoring for speech recognition.

from rescorer import Hypothesis, NBestList, Rescorer

rescorer = Rescorer.load("models/starter/1")
nbest = NBestList("u1", (Hypothesis("two be"), Hypothesis("to be")), {"acoustic": (-310.0, -310.1)})
answer = rescorer.rescore([nbest])[0]
"""

from importlib import import_module
from typing import TYPE_CHECKING

from rescorer.conversation import Phrase, Utterance
from rescorer.errors import (
    BundleError,
    ConfigError,
    FormatError,
    InputError,
    InvalidList,
    LimitExceeded,
    ModelError,
    ModelNotFound,
    RescorerError,
    ScoringError,
)
from rescorer.types import (
    Calibration,
    ConfidenceMap,
    ConsensusWord,
    DecisionRule,
    Hypothesis,
    NBestList,
    RescoredHypothesis,
    RescoredList,
    TextScore,
    Weights,
    WordConfidence,
)

if TYPE_CHECKING:
    from rescorer.options import RescoreOptions, load_weights
    from rescorer.pipeline import Rescorer

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

_LAZY = {
    "Rescorer": "rescorer.pipeline",
    "RescoreOptions": "rescorer.options",
    "load_weights": "rescorer.options",
}
"""Names that are imported when they are first used, because programs that only talk to a server, or only read
results, need neither models nor arrays."""


def __getattr__(name: str) -> object:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
