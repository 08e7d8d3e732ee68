"""Options of rescoring requests, and the fields of the messages that they become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from rescorer.conversation import Phrase
from rescorer.errors import ConfigError, InputError
from rescorer.protocol.messages import phrases_to_proto
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.protocol.weights import decision_to_proto, weights_to_proto
from rescorer.types import DecisionRule, Weights

Fallback = Literal["", "ngram", "first_pass"]
"""Degraded answer to accept if there is not enough time for a full one; empty: accept none."""
FALLBACKS: Mapping[str, pb.Fallback] = MappingProxyType(
    {
        "": pb.FALLBACK_UNSPECIFIED,
        "ngram": pb.FALLBACK_NGRAM,
        "first_pass": pb.FALLBACK_FIRST_PASS,
    }
)


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """Options of a rescoring request."""

    weights: Weights | str | None = None
    merge: bool = False
    drop_empty: bool = False
    fallback: Fallback = ""
    model: str = ""
    """Model of this request; empty for that of the client."""
    decision: DecisionRule | None = None
    """Rule by which the totals decide; None for that of the weights."""
    phrases: Sequence[Phrase] = ()
    """Names and phrases that are expected in all lists, besides the lists' own."""
    phrase_lists: Sequence[str] = ()
    """Names of the bundle's lists of phrases that are expected in all lists."""
    generate: bool = False
    """Whether to add hypotheses with phrases in place of what sounds like them."""

    def __post_init__(self) -> None:
        if self.fallback not in FALLBACKS:
            raise ConfigError(
                f"fallback: expected one of {', '.join(map(repr, FALLBACKS))}, got {self.fallback!r}"
            )

    @property
    def fields(self) -> dict[str, Any]:
        """Fields of the request message."""
        return {
            **weights_fields(self.weights),
            "merge": self.merge,
            "drop_empty": self.drop_empty,
            "fallback": FALLBACKS[self.fallback],
            "decision": None if self.decision is None else decision_to_proto(self.decision),
            "phrases": self._phrase_messages(),
            "phrase_lists": self.phrase_lists,
            "generate": self.generate,
        }

    def _phrase_messages(self) -> list[pb.Phrase]:
        try:
            return phrases_to_proto(self.phrases)
        except (AttributeError, TypeError, ValueError) as error:
            raise InputError(f"phrases cannot be sent: {error}") from None


def weights_fields(weights: Weights | str | None) -> dict[str, Any]:
    """Fields of a request that select the weights."""
    if weights is None:
        return {}
    if isinstance(weights, str):
        return {"weights_name": weights}
    return {"weights": weights_to_proto(weights)}
