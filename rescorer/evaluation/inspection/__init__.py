"""Owns the audit of lists: what is in them and what looks wrong, before anyone trusts them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rescorer.errors import InputError
from rescorer.evaluation.error_rate.counting import PLAIN, Counting
from rescorer.evaluation.inspection.finding import Finding
from rescorer.evaluation.inspection.findings import judge
from rescorer.evaluation.inspection.models import ModelFacts, ModelTally
from rescorer.evaluation.inspection.streams import StreamFacts
from rescorer.evaluation.inspection.tally import Collector, ErrorFacts, Facts
from rescorer.evaluation.inspection.words import WordFacts
from rescorer.text import Normaliser
from rescorer.types import NBestList

ORACLE_SHARE = 0.9
"""Of the oracle's gain, for the depth of lists that is enough."""


@dataclass(frozen=True, slots=True)
class Audit:
    """What one file of lists holds."""

    facts: Facts
    streams: tuple[StreamFacts, ...]
    words: WordFacts
    errors: ErrorFacts | None
    """None without references."""
    models: ModelFacts | None
    """None without a bundle."""
    findings: tuple[Finding, ...]
    """Warnings first."""

    @property
    def suspicious(self) -> bool:
        """Something is probably wrong."""
        return any(finding.severity == "warning" for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Plain keys; rates in percent, scores in nats."""
        return {
            **asdict(self.facts),
            "prefix_sharing": round(self.facts.sharing, 3),
            "streams": {stream.name: stream.to_dict() for stream in self.streams},
            **self.words.to_dict(),
            **(errors_to_dict(self.errors) if self.errors else {}),
            **(self.models.to_dict() if self.models else {}),
            "findings": [asdict(finding) for finding in self.findings],
            "suspicious": self.suspicious,
        }


def audit(
    lists: Iterable[NBestList | InputError],
    normaliser: Normaliser,
    *,
    known: frozenset[str] | None = None,
    models: ModelTally | None = None,
    first_pass: Mapping[str, float] | None = None,
    counting: Counting = PLAIN,
    told: Callable[[InputError], object] = lambda fault: None,
) -> Audit:
    """Reads lists once and holds only sums, ids and distinct tokens.

    Args:
        lists: what a reader yields; faults are counted.
        known: words that are not unknown; None: those of the bundle, and without one nothing is said of them.
        models: a bundle that scores the lists; None: nothing is said of its weights, nor of its n-gram.
        first_pass: stream weights that made the first pass; None: the order of the lists, and the only stream
            where they have one.
        told: called with each list that was rejected.
    """
    collector = Collector(normaliser, first_pass, counting, models)
    for item in lists:
        fault = item if isinstance(item, InputError) else None
        if isinstance(item, NBestList):
            try:
                collector.add(item)
            except InputError as unfit:
                fault = unfit
        if fault is not None:
            collector.reject()
            told(fault)
    of_models = models.facts() if models else None
    known = models.known if models and known is None else known
    parts = collector.facts(), collector.streams(), collector.words(known), collector.errors(), of_models
    return Audit(*parts, findings=judge(*parts))


def errors_to_dict(errors: ErrorFacts) -> dict[str, Any]:
    """Keys as ``evaluate`` names them, where it has them."""
    totals = errors.totals

    def percent(rate: float) -> float | None:
        return None if math.isinf(rate) else round(100.0 * rate, 2)

    return {
        "with_reference": totals.lists,
        "unit": errors.unit,
        "reference_words": totals.system.reference_words,
        "wer": percent(totals.system.rate),
        "oracle_wer": percent(totals.oracle.rate),
        "random_wer": percent(errors.random_rate),
        "worst_wer": percent(totals.worst.rate),
        "depth_for_90_percent_of_oracle": errors.depth_for(ORACLE_SHARE),
        "without_first_word": errors.without_first_word,
    }
