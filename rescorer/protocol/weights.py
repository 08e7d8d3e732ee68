"""Convert weights and decision rules to protocol messages and back, for client and server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.types import MAXIMUM, Calibration, ConfidenceMap, DecisionKind, DecisionRule, ErrorUnit, Weights

DECISION_KINDS: Mapping[int, DecisionKind] = MappingProxyType(
    {
        pb.DECISION_KIND_UNSPECIFIED: "maximum",
        pb.DECISION_KIND_MAXIMUM: "maximum",
        pb.DECISION_KIND_MINIMUM_BAYES_RISK: "minimum_bayes_risk",
        pb.DECISION_KIND_CONFUSION_NETWORK: "confusion_network",
    }
)
ERROR_UNITS: Mapping[int, ErrorUnit] = MappingProxyType(
    {
        pb.ERROR_UNIT_UNSPECIFIED: "word",
        pb.ERROR_UNIT_WORD: "word",
        pb.ERROR_UNIT_CHARACTER: "character",
    }
)


def weights_from_proto(message: pb.Weights) -> Weights:
    """Convert the weights of a request.

    Raises:
        ConfigError: If a value is not a finite number.
    """
    fields: dict[str, Any] = {
        "name": message.name,
        "streams": message.streams,
        "lm": message.lm,
        "mixture": message.mixture,
        "rerankers": message.rerankers,
        "components": message.components,
        "tuned_on": message.tuned_on,
    }
    from rescorer.score_combination import OPTIONAL_NUMBERS, parse_weights  # imports numpy

    present = {name: value for name, value in fields.items() if value}
    if message.HasField("decision"):
        present["decision"] = decision_from_proto(message.decision)
    present |= {name: getattr(message, name) for name in OPTIONAL_NUMBERS if message.HasField(name)}
    if message.HasField("calibration"):
        present["calibration"] = _calibration_from_proto(message.calibration)
    present |= {"flatness": message.flatness} if message.flatness else {}
    plain = ("word", "oov", "empty", "cache", "neural_cache")
    return parse_weights({**present, **{name: getattr(message, name) for name in plain}})


def decision_from_proto(message: pb.DecisionRule) -> DecisionRule:
    """Convert a decision rule; what is absent gets its default.

    Raises:
        ConfigError: If a value is unknown, or the temperature is not a finite number above 0.
    """
    return DecisionRule(
        DECISION_KINDS.get(message.kind, str(message.kind)),  # type: ignore[arg-type]  # DecisionRule checks
        ERROR_UNITS.get(message.unit, str(message.unit)),  # type: ignore[arg-type]
        message.temperature or 1.0,
    )


def decision_to_proto(rule: DecisionRule) -> pb.DecisionRule:
    """Convert a decision rule, declaring all values."""
    return pb.DecisionRule(
        kind=f"DECISION_KIND_{rule.kind.upper()}",
        unit=f"ERROR_UNIT_{rule.unit.upper()}",
        temperature=rule.temperature,
    )


def _calibration_from_proto(message: pb.Calibration) -> dict[str, Any]:
    """Convert a calibration to plain data, which ``parse_weights`` checks."""
    return {
        name: {
            "temperature": part.temperature,
            "posteriors": list(part.posteriors),
            "confidences": list(part.confidences),
        }
        for name, part in (("utterance", message.utterance), ("word", message.word))
        if message.HasField(name)
    }


def weights_to_proto(weights: Weights) -> pb.Weights:
    return pb.Weights(
        name=weights.name,
        streams=weights.streams,
        # An empty map would be read as {"mixture": 1}.
        lm=weights.lm or {"mixture": 0.0},
        word=weights.word,
        oov=weights.oov,
        empty=weights.empty,
        phrases=weights.phrases,
        generated=weights.generated,
        sound_match=weights.sound_match,
        cache=weights.cache,
        neural_cache=weights.neural_cache,
        flatness=weights.flatness if weights.neural_cache else 0.0,
        mixture=weights.mixture,
        rerankers=weights.rerankers,
        components=weights.components,
        tuned_on=weights.tuned_on,
        decision=None if weights.decision == MAXIMUM else decision_to_proto(weights.decision),
        calibration=None if weights.calibration is None else _calibration_to_proto(weights.calibration),
    )


def _calibration_to_proto(calibration: Calibration) -> pb.Calibration:
    def convert(part: ConfidenceMap | None) -> pb.ConfidenceMap | None:
        return None if part is None else pb.ConfidenceMap(**asdict(part))

    return pb.Calibration(utterance=convert(calibration.utterance), word=convert(calibration.word))
