"""The caches of a session: what was said before a list makes its words more likely again."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from rescorer.preparation.previous import collect_confidences, join_history
from rescorer.score_combination import CACHE, NEURAL_CACHE
from rescorer.scoring.batch import Batch
from rescorer.scoring.components import (
    AskedBy,
    Columns,
    Component,
    Interpolation,
    PreparedList,
    ScoredList,
    sum_mixture,
)
from rescorer.types import Weights

if TYPE_CHECKING:
    from rescorer.lm.caches.session_cache import SessionCache


class Caches(Component):
    """What the cache of words, and then the neural cache, changed in the mixture.

    Lists before which nothing was said do not have these columns.
    """

    name = "caches"
    asked_by = AskedBy(weights=("cache", "neural_cache"))
    needs_scores = True
    columns = (CACHE, NEURAL_CACHE)

    def prepare(self, prepared: PreparedList) -> PreparedList:
        history = prepared.history
        if not self.bundle.reads_previous:
            history = join_history((one.words for one in prepared.spoken), prepared.context)
        weights = prepared.options.weights
        return replace(
            prepared,
            history=history,
            confidences=collect_confidences(prepared.spoken),
            flatness=weights.flatness if weights.neural_cache and history else 0.0,
        )

    def interpolations(self, batch: Batch, weights: Weights) -> Mapping[str, Interpolation]:
        from rescorer.lm.caches.session_cache import mix_neural_caches, read_sessions

        caches: dict[str, SessionCache | None] = {
            CACHE: read_sessions(batch.trie, weights.cache),
            NEURAL_CACHE: mix_neural_caches(batch.trie, batch.scores, weights.mixture, weights.neural_cache),
        }
        return {name: cache for name, cache in caches.items() if cache is not None}

    def mixture_key(self, weights: Weights) -> Hashable:
        return weights.cache, weights.neural_cache

    def add_columns(self, columns: Columns, scored: ScoredList) -> None:
        if scored.prepared.history:
            changes = scored.gather(lambda batch: sum_mixture(batch, scored.options))
            columns |= {name: changes[name] for name in self.columns if name in changes}
