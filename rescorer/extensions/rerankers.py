"""Rerankers: trained models of the hypotheses of a list, whose scores are columns like any other."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from copy import copy
from dataclasses import replace

from rescorer.bundle import Bundle
from rescorer.errors import InvalidList, LimitExceeded, quote
from rescorer.options import RescoreOptions
from rescorer.preparation.previous import join_words
from rescorer.reranking.reranker import Reranker, replace_by_base
from rescorer.score_combination import COUNTED, MIXTURE
from rescorer.scoring.batch import Batch
from rescorer.scoring.components import AskedBy, Columns, Component, PreparedList, ScoredList
from rescorer.trie import Words
from rescorer.types import NBestList, Weights
from rescorer.word_encoder import WordEncoder


class Rerankers(Component):
    """The score of each reranker of the bundle to which weights give a weight."""

    name = "rerankers"
    asked_by = AskedBy(weights=("rerankers",))
    needs_scores = True

    def __init__(self, bundle: Bundle, normalise: Callable[[str], Words]) -> None:
        super().__init__(bundle, normalise)
        self.columns = tuple(reranker.component for reranker in bundle.rerankers.values())

    def complete(self, weights: Weights) -> Weights:
        """Take the λ of the first reranker with a weight that has any."""
        if weights.mixture:
            return weights
        used = used_rerankers(self.bundle, weights)
        shares = next((reranker.base.mixture for reranker in used if MIXTURE in reranker.needs), {})
        return replace(weights, mixture=shares) if shares else weights

    def without_models(self, weights: Weights, models: Collection[str] | None) -> Weights:
        used = used_rerankers(self.bundle, weights)
        unable = used if models is None else [one for one in used if set(one.models) - set(models)]
        return replace_by_base(weights, unable)

    def bind(self, options: RescoreOptions, weights: Weights) -> Component:
        bound = copy(self)
        bound.columns = tuple(one.component for one in used_rerankers(self.bundle, weights))
        return bound

    def prepare(self, prepared: PreparedList) -> PreparedList:
        """Raise InvalidList if the list lacks a stream that a reranker needs."""
        for reranker in used_rerankers(self.bundle, prepared.options.weights):
            if missing := self._find_missing_streams(prepared.nbest, reranker):
                message = f"missing, but reranker {quote(reranker.name)} needs it; the list has: "
                message += ", ".join(sorted(prepared.nbest.streams)) or "none"
                others = self.bundle.rerankers.values()
                if able := [
                    one.name for one in others if not self._find_missing_streams(prepared.nbest, one)
                ]:
                    message += f"; {', '.join(map(quote, able))} can rank it"
                raise InvalidList(message, list_id=prepared.nbest.id, field=f'streams["{missing[0]}"]')
        return prepared

    def _find_missing_streams(self, nbest: NBestList, reranker: Reranker) -> list[str]:
        return [name for name in needed_streams(self.bundle, reranker) if name not in nbest.streams]

    def encoders(self, weights: Weights) -> Mapping[str, WordEncoder]:
        used = used_rerankers(self.bundle, weights)
        return {one.name: one.encoder for one in used if one.encoder is not None}

    def add_columns(self, columns: Columns, scored: ScoredList) -> None:
        prepared = scored.prepared
        encodings = scored.gather(_encodings)
        said = words_said_before(prepared)
        for reranker in used_rerankers(self.bundle, scored.weights):
            try:
                columns[reranker.component] = reranker.score(
                    columns, prepared.words, said, encodings.get(reranker.name)
                )
            except LimitExceeded as error:
                raise InvalidList(error.message, list_id=prepared.nbest.id, field=error.field) from None

    def steps_to_rank(self, prepared: PreparedList, weights: Weights) -> int:
        from rescorer.reranking.reranker import estimate_steps

        said = words_said_before(prepared)
        used = used_rerankers(self.bundle, weights)
        return sum(estimate_steps(reranker, prepared.words, said) for reranker in used)


def used_rerankers(bundle: Bundle, weights: Weights) -> list[Reranker]:
    """The rerankers of a bundle to which weights give a weight other than 0."""
    names = [name for name, weight in weights.rerankers.items() if weight]
    return [bundle.rerankers[name] for name in names if name in bundle.rerankers]


def needed_streams(bundle: Bundle, reranker: Reranker) -> list[str]:
    """The streams that a list must have for a reranker."""
    own = {*bundle.model_kinds, MIXTURE, *COUNTED}
    return [name for name in reranker.needs if name not in own]


def words_said_before(prepared: PreparedList) -> Words:
    """What rerankers compare the hypotheses with: the words of previous utterances, then the context."""
    return join_words((one.words for one in prepared.spoken), prepared.context)


def _encodings(batch: Batch) -> Columns:
    return {name: rows for part in batch.scores.values() for name, rows in part.encodings.items()}
