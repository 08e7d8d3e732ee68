"""Owns the steps from a request message to what is to be scored, and from the scores to its response message.

Plain functions, run in threads beside the event loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from rescorer.errors import ConfigError, InputError, Unavailable
from rescorer.list_ranker import ListRanker, PreparedList, check_lengths, components_of
from rescorer.profiling import Phase, phase
from rescorer.protocol.messages import (
    list_from_proto,
    text_score_to_proto,
    weights_from_proto,
    weights_to_proto,
    write_ranking,
)
from rescorer.protocol.status import kind_of, status_from_error
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.ranking import Ranking, ranking
from rescorer.score_combination import totals
from rescorer.service.api.request_limits import check_list
from rescorer.service.engine.dispatch import ListOutcome
from rescorer.service.observability.metrics import Metrics
from rescorer.service.settings import ServiceSettings
from rescorer.trie import Words
from rescorer.types import Hypothesis, NBestList, TextScore, Weights

RescoreRequest = pb.RescoreRequest | pb.RescoreStreamRequest
RescoreAnswer = TypeVar("RescoreAnswer", pb.RescoreResponse, pb.RescoreStreamResponse)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a request asks for, checked and in canonical words."""

    ranker: ListRanker
    weights: Weights
    lists: tuple[PreparedList | InputError, ...]
    """What is wrong with a list in its place."""

    @property
    def good(self) -> list[PreparedList]:
        return [each for each in self.lists if isinstance(each, PreparedList)]

    @property
    def tokens(self) -> int:
        """Words to score, ends of sentences and contexts counted."""
        return sum(sum(map(len, each.words)) + len(each.words) + len(each.context) for each in self.good)


def plan_lists(ranker: ListRanker, request: RescoreRequest, settings: ServiceSettings) -> Plan:
    """Raises ConfigError where the weights do not fit the bundle."""
    weights = weights_of(ranker, request)

    def planned(message: pb.NBestList) -> PreparedList | InputError:
        try:
            check_list(message, settings)
            with phase(Phase.PARSE):
                nbest = list_from_proto(message)
            return ranker.prepare(nbest, weights)
        except InputError as fault:
            return fault

    return Plan(ranker, weights, tuple(planned(message) for message in request.lists))


def plan_texts(ranker: ListRanker, request: pb.ScoreTextRequest) -> Plan:
    """The texts as one list without scores; raises as ``plan_lists``."""
    words = tuple(ranker.bundle.normaliser.normalise(text) for text in request.texts)
    context: Words = ranker.bundle.normaliser.normalise(request.context)
    check_lengths("", words, context)
    nbest = NBestList("", tuple(Hypothesis(text) for text in request.texts))
    return Plan(ranker, weights_of(ranker, request), (PreparedList(nbest, words, context),) if words else ())


def weights_of(ranker: ListRanker, request: RescoreRequest | pb.ScoreTextRequest) -> Weights:
    """The weights that a request asks for, complete."""
    weighting = request.WhichOneof("weighting")
    if weighting == "weights":
        return ranker.effective_weights(weights_from_proto(request.weights))
    name = request.weights_name if weighting else "default"
    if name not in ranker.bundle.weights:
        have = ", ".join(sorted(ranker.bundle.weights))
        raise ConfigError(f"weights_name is {name!r}; the bundle has: {have}")
    return ranker.effective_weights(ranker.bundle.weights[name])


def answer_lists(
    plan: Plan,
    outcomes: Sequence[ListOutcome],
    request: RescoreRequest,
    response: RescoreAnswer,
    request_id: str,
    metrics: Metrics,
) -> RescoreAnswer:
    """Fills ``response`` with one answer a list, and tells the metrics of each.

    Raises:
        Unavailable: a list was not scored, for a reason that will pass.
        RescorerError: no list at all could be scored, through no fault of the request.
    """
    faults = [each.fault for each in outcomes if each.fault is not None]
    passing = [fault for fault in faults if isinstance(fault, Unavailable)]
    if passing or (faults and len(faults) == len(outcomes)):
        raise (passing or faults)[0]
    rest = iter(outcomes)
    for index, (message, each) in enumerate(zip(request.lists, plan.lists, strict=True)):
        outcome = next(rest) if isinstance(each, PreparedList) else ListOutcome(fault=each)
        fault = outcome.fault
        if isinstance(each, PreparedList) and fault is None:
            try:
                with phase(Phase.RANK):
                    ranked = ranked_list(plan, each, outcome, merge=request.merge)
                with phase(Phase.WRITE):
                    write_ranking(ranked, response.lists.add(degradation=outcome.degradation))
                metrics.ranked(plan.ranker.bundle.label, ranked, outcome.degradation)
            except InputError as of_list:
                fault = of_list
        if fault is not None:
            metrics.refused(plan.ranker.bundle.label, fault)
            hidden = request_id if kind_of(fault).hidden else ""
            response.lists.add(id=message.id, status=status_from_error(fault, hidden, path=f"lists[{index}]"))
            if message.HasField("fields"):
                response.lists[index].fields.CopyFrom(message.fields)
    response.weights.CopyFrom(weights_to_proto(plan.weights))
    response.model = plan.ranker.bundle.label
    return response


def ranked_list(plan: Plan, prepared: PreparedList, outcome: ListOutcome, *, merge: bool) -> Ranking:
    """One list in its new order; raises InvalidList where a total is not finite."""
    if outcome.degradation == pb.DEGRADATION_FIRST_PASS:
        return first_pass(prepared, plan.weights)
    weights = plan.weights
    if outcome.degradation == pb.DEGRADATION_NGRAM:
        weights = ngram_weights(weights, plan.ranker.bundle.ngram)
    sums: dict[str, np.ndarray] = {}
    for part in outcome.parts:
        for name, values in part.batch.sums(weights).items():
            sums.setdefault(name, np.empty(len(prepared.words)))[list(part.places)] = values[part.rows]
    return plan.ranker.rank(prepared, sums, weights, merge=merge)


def answer_texts(plan: Plan, outcomes: Sequence[ListOutcome]) -> pb.ScoreTextResponse:
    """Raises whatever kept the texts from being scored."""
    response = pb.ScoreTextResponse(
        weights=weights_to_proto(plan.weights), model=plan.ranker.bundle.label
    )  # fmt: skip
    for prepared, outcome in zip(plan.good, outcomes, strict=True):
        if outcome.fault is not None:
            raise outcome.fault
        found: dict[int, TextScore] = {}
        for part in outcome.parts:
            texts = [prepared.nbest.hypotheses[place].text for place in part.places]
            words = [prepared.words[place] for place in part.places]
            trie, scores, first = part.batch.trie, part.batch.scores, part.rows.start
            scored = plan.ranker.text_scores(texts, words, trie, scores, plan.weights, first)
            found.update(zip(part.places, scored, strict=True))
        response.scores.extend(text_score_to_proto(found[place]) for place in range(len(found)))
    return response


def ngram_weights(weights: Weights, ngram: str) -> Weights:
    """Weights that give the n-gram what all language models have together."""
    return replace(weights, lm={ngram: sum(weights.lm.values())}, mixture={ngram: 1.0})


def first_pass(prepared: PreparedList, weights: Weights) -> Ranking:
    """A list in its own order, its totals of streams and words only.

    Raises:
        InvalidList: a total is not finite.
    """
    components = components_of(prepared, {})
    total = totals(components, replace(weights, lm={}, oov=0.0))
    return ranking(prepared.nbest, components, total, keep_order=True)
