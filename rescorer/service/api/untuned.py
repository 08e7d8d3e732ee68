"""Warn in the log about weights of a bundle that were never tuned for the scores that clients send.

An answer has no place for warnings, and who runs the server chooses the weights of its bundles: so the log
has a line, once for each model and set of weights. Weights that a client sends are its own choice.
"""

from __future__ import annotations

import structlog

from rescorer.preparation.untuned_weights import MIN_LISTS, find_untuned_weights
from rescorer.service.api.planning import PreparedRequest, RescoreRequest
from rescorer.types import NBestList

log = structlog.get_logger()
ADVICE = "weigh the scores alone, lm: {mixture: 0}, and find the weight of language models with rescorer tune"


class UntunedWeightsLog:
    """Judges the first lists that are scored with each set of weights of each model."""

    def __init__(self) -> None:
        self._lists: dict[tuple[str, str], list[NBestList] | None] = {}
        """The first lists by model and weights; None once they were judged."""

    def add(self, request: RescoreRequest, prepared: PreparedRequest) -> None:
        """Keep the lists of a request until there are enough to judge; then write the line if it is due."""
        if request.WhichOneof("weighting") == "weights":
            return
        model, weights = prepared.ranker.bundle.label, prepared.options.weights
        lists = self._lists.setdefault((model, weights.name), [])
        if lists is None:
            return
        lists += [one.nbest for one in prepared.valid_lists[: MIN_LISTS - len(lists)]]
        if len(lists) < MIN_LISTS:
            return
        self._lists[model, weights.name] = None
        if found := find_untuned_weights(lists, weights):
            log.warning(
                "weights were never tuned for such scores",
                model=model,
                weights=found.name,
                streams=list(found.streams),
                nats_per_word=round(found.nats_per_word, 3),
                reason=found.describe(),
                advice=ADVICE,
            )
