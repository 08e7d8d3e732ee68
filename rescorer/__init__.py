"""N-best rescoring for speech recognition.

from rescorer import Hypothesis, NBestList, Rescorer

rescorer = Rescorer.load("models/starter/1")
nbest = NBestList("u1", (Hypothesis("two be"), Hypothesis("to be")), {"acoustic": (-310.0, -310.1)})
answer = rescorer.rescore([nbest])[0]
"""

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
    "RescoredHypothesis",
    "RescoredList",
    "Rescorer",
    "RescorerError",
    "ScoringError",
    "TextScore",
    "Utterance",
    "Weights",
    "WordConfidence",
]


def __getattr__(name: str) -> object:
    # ``Rescorer`` imports torch and kenlm, which programs that only talk to a server do not need.
    if name == "Rescorer":
        from rescorer.pipeline import Rescorer

        return Rescorer
    raise AttributeError(name)
