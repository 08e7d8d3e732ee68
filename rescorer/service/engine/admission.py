"""Decide which calls are admitted: the sizes of requests and answers, the work they ask for, and quotas.

A request is checked before costly work is done for it. The elements that a client sends are counted first,
then the steps of searching and deciding and the words to score, which components state before anything is
built. A response repeats the name of every component for every hypothesis, so it can be thousands of times as
large as its request. The bound of its size follows from the request and the bundle alone. It is at most a few
times too high, except for lists of a few hypotheses, where it allows for the status of an error.

Then a call is admitted by what is in flight, whose it is, and whether its deadline can be met. How long a
call would take follows from its client's turn in the fair queue: other clients may have more work in flight
that is scored later. Calls are counted here rather than by gRPC, whose own limit would also refuse health
checks.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import accumulate, chain
from statistics import median
from typing import NamedTuple, TypeVar

from google.protobuf.struct_pb2 import Value

from rescorer.decision import estimate_confidence_steps, estimate_steps
from rescorer.errors import InputError, LimitExceeded, Overloaded
from rescorer.models.bundle import Bundle
from rescorer.protocol.messages import MAX_TEXT_CHARS
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.runtime import pause
from rescorer.scoring.batch import count_distinct
from rescorer.scoring.components import BoundOptions, Outline, PreparedList
from rescorer.scoring.ranker import ListRanker
from rescorer.service.engine.census import NAMES_OF_WEIGHTS, limits_of
from rescorer.service.settings import ServiceSettings
from rescorer.text import utf8_bytes
from rescorer.types import DecisionRule, Weights
from rescorer.units.tokens import DEEP
from rescorer.weights import MIXTURE

Item = TypeVar("Item")
RescoreRequest = pb.RescoreRequest | pb.RescoreStreamRequest
Lists = Sequence[PreparedList | InputError]
"""The lists of a request: each prepared, or the error for which it cannot be scored."""


def check_request(request: RescoreRequest, settings: ServiceSettings) -> int:
    """Check the numbers of elements in a request, and the lengths of names.

    A message of a few megabytes can have millions of empty elements, which take far more memory and time than
    the size of the message suggests. So the elements are counted before any of them is looked at.

    Returns:
        The number of values in the clients' fields.

    Raises:
        LimitExceeded: a repeated field has too many elements, or a name is too long.
    """
    limits = limits_of(settings)
    limits["lists"].check(len(request.lists))
    phrases = [request.phrases, *(nbest.phrases for nbest in request.lists)]
    counts = {
        # A list that alone has too many gets its own error later; until then it is in memory.
        "hypotheses": sum(len(nbest.hypotheses) for nbest in request.lists),
        "streams": sum(len(nbest.streams) for nbest in request.lists),
        "previous": sum(len(nbest.previous) for nbest in request.lists),
        "phrases": sum(map(len, phrases)),
        "phrase_lists": len(request.phrase_lists),
    }
    for kind, count in counts.items():
        limits[kind].check(count)
    spellings = sum(len(phrase.spellings) for phrase in chain.from_iterable(phrases))
    limits["phrases"].check(counts["phrases"] + spellings)
    if (n_values := count_values(request, settings.max_field_values)) > settings.max_field_values:
        expected = f"expected at most {settings.max_field_values} (max_field_values)"
        raise LimitExceeded(f"at least {n_values} values in lists and hypotheses; {expected}", field="fields")
    _check_names(request, settings)
    _check_each(request.phrase_lists, settings.max_name_chars, "phrase_lists[{}]")
    return n_values


def count_values(request: RescoreRequest, limit: int) -> int:
    """Count the values in the user-defined fields of lists and hypotheses, and all values inside of values.

    Counting ends as soon as the count exceeds the limit.
    """
    hypotheses = chain.from_iterable(nbest.hypotheses for nbest in request.lists)
    owners: Iterable[pb.NBestList | pb.Hypothesis] = chain(request.lists, hypotheses)
    waiting: list[Iterable[Value]] = []
    count = 0
    for owner in owners:
        if owner.HasField("fields"):
            count += len(owner.fields.fields)
            waiting.append(owner.fields.fields.values())
        while waiting and count <= limit:
            for value in waiting.pop():
                kind = value.WhichOneof("kind")
                if kind == "struct_value":
                    count += len(value.struct_value.fields)
                    waiting.append(value.struct_value.fields.values())
                elif kind == "list_value":
                    count += len(value.list_value.values)
                    waiting.append(value.list_value.values)
        if count > limit:
            break
    return count


def check_list(nbest: pb.NBestList, settings: ServiceSettings) -> None:
    """Check the size of one list.

    Raises:
        LimitExceeded: the list has too many hypotheses or streams, a text has too many words, or a name is
            too long.
    """
    _check_count(len(nbest.hypotheses), "hypotheses", settings, "max_hypotheses")
    _check_count(len(nbest.streams), "streams", settings, "max_score_streams")
    names, texts = settings.max_name_chars, settings.max_words
    _check_each([nbest.id], names, "id")
    _check_each((stream.name for stream in nbest.streams), names, "streams[{}].name")
    _check_texts((hypothesis.text for hypothesis in nbest.hypotheses), texts, "hypotheses[{}].text")
    _check_words(nbest.context, texts, "context")
    _check_texts((utterance.text for utterance in nbest.previous), texts, "previous[{}].text")
    _check_each((utterance.speaker for utterance in nbest.previous), names, "previous[{}].speaker")


def check_texts(request: pb.ScoreTextRequest, settings: ServiceSettings) -> None:
    """Check the size of a request to score texts.

    Raises:
        LimitExceeded: there are too many texts, a text has too many words, or a name is too long.
    """
    _check_count(len(request.texts), "texts", settings, "max_hypotheses")
    _check_names(request, settings)
    _check_texts(request.texts, settings.max_words, "texts[{}]")
    _check_words(request.context, settings.max_words, "context")


def _check_count(count: int, field: str, settings: ServiceSettings, setting: str) -> None:
    limit = getattr(settings, setting)
    if count > limit:
        raise LimitExceeded(f"{count} {field}; expected at most {limit} ({setting})", field=field)


def _check_names(request: RescoreRequest | pb.ScoreTextRequest, settings: ServiceSettings) -> None:
    """Check the names of the model and of the weights."""
    limit = settings.max_name_chars
    _check_each([request.model], limit, "model")
    _check_each([request.weights_name], limit, "weights_name")
    if request.HasField("weights"):
        _check_each([request.weights.name], limit, "weights.name")
        limits = limits_of(settings)
        for field in NAMES_OF_WEIGHTS:
            names = getattr(request.weights, field)
            limits[f"weights.{field}"].check(len(names))
            _check_each(names, limit, f"a name in weights.{field}")


def _check_each(names: Iterable[str], limit: int, field: str) -> None:
    """Check the lengths of names. ``field`` is their path, with ``{}`` for the index if they have one."""
    for index, name in enumerate(names):
        if len(name) > limit:
            expected = f"expected at most {limit} (max_name_chars)"
            raise LimitExceeded(f"{len(name)} characters; {expected}", field=field.format(index))


def _check_texts(texts: Iterable[str], limit: int, field: str) -> None:
    """Check the numbers of words of texts. ``field`` is their path, with ``{}`` for the index."""
    for index, text in enumerate(texts):
        if 2 * len(text) > limit:  # seldom; shorter texts cannot have too many words
            _check_words(text, limit, field.format(index))


def _check_words(text: str, limit: int, field: str) -> None:
    # The normaliser may split words at hyphens and underscores: count them too, so that a long token cannot
    # get around the limit.
    words = len(text.split()) + text.count("-") + text.count("_")
    if words > limit:
        raise LimitExceeded(f"{words} words; expected at most {limit} (max_words)", field=field)


class RequestTooCostly(LimitExceeded):
    """The lists of a request exceed a limit together, although no list exceeds it alone."""


class RequestBudget:
    """Work that the lists of a request may cost, each alone and all together.

    Args:
        alone: error message for a list that costs too much alone. It may contain ``{amount}``, and ``{what}``
            for the costly work.
        field: field of the list that this error names.
        together: error message if all lists so far cost too much. It may also contain ``{lists}``.
    """

    def __init__(self, n_lists: int, limit: int, alone: str, field: str, together: str) -> None:
        self._n_lists, self._limit = n_lists, limit
        self._alone, self._field, self._together = alone, field, together
        self._n_begun = self._of_list = 0
        self.total = 0

    def spend(self, amount: int, what: str = "") -> None:
        """Count work for the current list, before the work is done.

        Raises:
            LimitExceeded: the list costs too much alone.
            RequestTooCostly: all lists so far cost too much together.
        """
        pause()
        self._of_list += amount
        if self._of_list > self._limit:
            message = self._alone.format(amount=self._of_list, what=what)
            raise LimitExceeded(message, field=self._field)
        if self.total + amount > self._limit:
            lists = f"the first {self._n_begun} of {self._n_lists} lists"
            message = self._together.format(amount=self.total + amount, what=what, lists=lists)
            raise RequestTooCostly(message, field=f"lists[{self._n_begun - 1}]")
        self.total += amount

    def each(self, lists: Iterable[Item], prepare: Callable[[Item], PreparedList | InputError]) -> Lists:
        """Prepare the lists of a request one by one. If a list raises an error, the error takes its place.

        Args:
            prepare: prepares a list, and calls ``spend`` for the work.

        Raises:
            RequestTooCostly: all lists so far cost too much together.
        """
        prepared = list[PreparedList | InputError]()
        for one in lists:
            self._n_begun += 1
            self._of_list = 0
            try:
                prepared.append(prepare(one))
            except RequestTooCostly:
                raise
            except InputError as error:
                prepared.append(error)
        return prepared


def search_budget(n_lists: int, limit: int) -> RequestBudget:
    """Return a budget for searching lists for phrases, and for words that sound like them."""
    expected = f"expected at most {limit} (max_search_steps); send fewer hypotheses or phrases"
    return RequestBudget(
        n_lists,
        limit,
        f"finding its phrases could take {{amount}} steps; {expected}",
        "phrases",
        f"finding the phrases of {{lists}} could take {{amount}} steps; {expected} per message",
    )


def limit_words(
    lists: Lists, limit: int, field: str = "hypotheses", *, backward: bool = False
) -> tuple[Lists, int]:
    """Replace each list that has too many words by an error. Return the lists and the number of all words.

    Args:
        backward: whether a backward model scores the lists too; see ``count_distinct``.

    Raises:
        RequestTooCostly: the lists have too many words together.
    """
    tokens = sum(count_tokens(prepared) for prepared in lists if isinstance(prepared, PreparedList))
    if tokens <= limit:
        return lists, tokens
    expected = f"expected at most {limit} (max_request_words)"
    expected += "" if backward else "; words shared from the start count once"
    alone, together = f"{{amount}} words; {expected}", f"{{lists}} have {{amount}} words; {expected}"
    budget = RequestBudget(len(lists), limit, alone, field, together)

    def count(prepared: PreparedList | InputError) -> PreparedList | InputError:
        if isinstance(prepared, PreparedList):
            budget.spend(count_distinct(prepared.words, prepared.history, backward=backward))
        return prepared

    return budget.each(lists, count), budget.total


def limit_units(lists: Lists, limit: int, field: str = "hypotheses") -> tuple[Lists, int]:
    """Replace each list that has too many pieces of words by an error. Return the lists and all their pieces.

    Raises:
        RequestTooCostly: the lists have too many pieces together.
    """
    expected = f"pieces of words; expected at most {limit} (max_request_words)"
    expected += f"; those of texts of over {DEEP:,} pieces count several times"
    budget = RequestBudget(
        len(lists), limit, f"{{amount}} {expected}", field, f"{{lists}} have {{amount}} {expected}"
    )

    def count(prepared: PreparedList | InputError) -> PreparedList | InputError:
        if isinstance(prepared, PreparedList):
            budget.spend(prepared.n_units)
        return prepared

    return budget.each(lists, count), budget.total


USUAL_WORDS = 64
"""Number of words up to which the length of hypotheses costs nothing besides their words."""
TOKENS_PER_LEVEL = 32
"""Time that networks take for each further level of a trie, in tokens, however few words are on it."""


def depth_tokens(bundle: Bundle, lists: Lists, tokens: int, max_batch_tokens: int) -> int:
    """Return what the depth of lists costs in addition to their words, in tokens.

    Networks score the trie of a batch level by level, and short levels take longer for their words. Lists
    that are scored in one batch share their levels.

    Args:
        tokens: number of words of all lists together.
        max_batch_tokens: largest batch.
    """
    if set(bundle.model_kinds.values()) <= {"ngram"}:
        return 0
    longest = max(
        (len(text) for one in lists if isinstance(one, PreparedList) for text in one.words), default=0
    )
    return TOKENS_PER_LEVEL * max(0, longest - USUAL_WORDS) * -(-tokens // max_batch_tokens)


def limit_steps(lists: Lists, options: BoundOptions, limit: int) -> tuple[Lists, int]:
    """Replace each list that takes too long to decide by an error. Return the lists and all their steps.

    Raises:
        RequestTooCostly: the lists take too long together.
    """
    decision = options.decision
    costly: list[str] = [decision.kind]
    advice = "" if decision.kind == "maximum" else "use the rule maximum, or "
    expected = f"expected at most {limit} (max_decision_steps); {advice}send fewer hypotheses"

    alone = f"{{what}} takes {{amount}} steps; {expected}"
    together = f"{{what}} of {{lists}} takes {{amount}} steps; {expected} per message"
    budget = RequestBudget(len(lists), limit, alone, "hypotheses", together)

    def count(prepared: PreparedList | InputError) -> PreparedList | InputError:
        if isinstance(prepared, PreparedList):
            steps = estimate_steps(decision, prepared.compared)
            if own_steps := estimate_confidence_steps(options.weights.calibration, prepared.compared):
                steps += own_steps
                costly.append("confidences")
            for component in prepared.components:
                if own_steps := component.steps_to_rank(prepared, options.weights):
                    steps += own_steps
                    costly.extend(component.columns)
            budget.spend(steps, " and ".join(dict.fromkeys(costly)))
        return prepared

    return budget.each(lists, count), budget.total


def count_tokens(prepared: PreparedList) -> int:
    """Count the words of a list, the ends of its sentences and the words of its context."""
    return sum(map(len, prepared.words)) + len(prepared.words) + len(prepared.history)


HYPOTHESIS_BYTES = 80
"""Upper bound of a rescored hypothesis, without components and without text that is copied from the request:
ranks, total, posterior, confidence, expected errors, place in the merged ranks, and lengths."""
WORD_BYTES = 24
"""Upper bound of the confidence of a word, without the word."""
CONSENSUS_WORD_BYTES = 48
"""Upper bound of a word of a consensus, without the word itself."""
COMPONENT_BYTES = 24
"""Upper bound of a component, or of a model's log-probabilities of a text, without name and values."""
LIST_BYTES = 256
"""Upper bound of a rescored list, without hypotheses and without text that is copied from the request."""
LIST_STATUS_BYTES = 6 * 4 * MAX_TEXT_CHARS
"""Upper bound of the status of a list; a status contains each of its texts up to six times."""
EMPTY_WEIGHTS_BYTES = 96
"""Upper bound of weights without names, with a default value for each part."""
RESPONSE_BYTES = 2048
"""Upper bound of a response without lists, texts and weights: timing and the model's label."""


def check_response_size(request: RescoreRequest, request_bytes: int, ranker: ListRanker, limit: int) -> int:
    """Return an upper bound of the size of a response in bytes.

    Raises:
        LimitExceeded: the bound is above the limit. A list that exceeds the limit alone counts little here,
            because its answer will be an error, see ``check_list_response_size``.
    """
    weights, parts = requested_parts(request, ranker.bundle)
    total = RESPONSE_BYTES + weights_bytes(request, ranker.bundle) + request_bytes
    for index, nbest in enumerate(request.lists):
        list_bytes = list_response_bytes(Outline(nbest, weights, request), ranker, parts, limit)
        total += LIST_STATUS_BYTES if list_bytes > limit else list_bytes
        if total > limit:
            raise LimitExceeded(
                f"the answers to the first {index + 1} of {len(request.lists)} lists could have {total} "
                f"bytes; expected at most {limit} (max_response_bytes); send fewer lists per message, or "
                "shorter names of streams",
                field=f"lists[{index}]",
            )
    return total


def check_list_response_size(
    nbest: pb.NBestList, request: RescoreRequest, ranker: ListRanker, options: BoundOptions, limit: int
) -> None:
    """Check the size of the answer to one list.

    Args:
        options: the options of the request.

    Raises:
        LimitExceeded: the answer could exceed the limit.
    """
    parts = AnswerParts.of(options.weights, options.decision)
    outline = Outline(nbest, options.weights, request)
    if (size := list_response_bytes(outline, ranker, parts, limit)) > limit:
        raise LimitExceeded(
            f"the answer to {len(nbest.hypotheses)} hypotheses with {len(nbest.streams)} streams could have "
            f"{size} bytes; expected at most {limit} (max_response_bytes); send fewer hypotheses or streams, "
            "or shorter names",
            field="hypotheses",
        )


def check_text_response_size(
    request: pb.ScoreTextRequest, prepared: Sequence[PreparedList], bundle: Bundle, limit: int
) -> int:
    """Return an upper bound of the size of a response to ScoreText in bytes.

    Raises:
        LimitExceeded: the bound is above the limit.
    """
    names = (*bundle.model_kinds, MIXTURE)
    per_text = HYPOTHESIS_BYTES + names_bytes(names)
    total = RESPONSE_BYTES + weights_bytes(request, bundle) + len(request.texts) * per_text
    for nbest in prepared:
        for hypothesis, words in zip(nbest.nbest.hypotheses, nbest.words, strict=True):
            # A word has its text, a flag, and a value of 8 bytes per model; one more value is for </s>.
            total += utf8_bytes(hypothesis.text) + (8 * len(names) + 4) * (len(words) + 1)
            total += sum(map(len, words)) if hypothesis.text.isascii() else sum(map(utf8_bytes, words))
    if total > limit:
        raise LimitExceeded(
            f"the scores of {len(request.texts)} texts could have {total} bytes; expected at most {limit} "
            "(max_response_bytes); send fewer or shorter texts per request",
            field="texts",
        )
    return total


def list_response_bytes(outline: Outline, ranker: ListRanker, parts: AnswerParts, limit: int) -> int:
    """Return an upper bound of the size of the answer to a list, without text that is copied from the list.

    Args:
        parts: parts that the answer may have.
        limit: if the numbers of hypotheses and streams alone exceed this limit, nothing else is looked at.
    """
    nbest = outline.nbest
    least = len(nbest.hypotheses) * (HYPOTHESIS_BYTES + COMPONENT_BYTES * len(nbest.streams))
    if least > limit:
        return max(least, LIST_STATUS_BYTES)
    names = [name for component in ranker.components for name in component.column_names(outline)]
    row_bytes = HYPOTHESIS_BYTES + names_bytes(names)
    total = LIST_BYTES + len(nbest.hypotheses) * row_bytes
    added = [growth for component in ranker.components if (growth := component.growth(outline))]
    has_words = parts.confidences or parts.consensus or added
    texts = [hypothesis.text for hypothesis in nbest.hypotheses] if has_words else []
    for growth in added:
        total += growth.n_hypotheses * (row_bytes + growth.bytes_each)
        texts += [growth.text] * growth.n_hypotheses
    if parts.confidences:
        total += max((WORD_BYTES * len(text.split()) + utf8_bytes(text) for text in texts), default=0)
    if parts.consensus:
        # A slot of the network gets a word only if words have half of its posterior probability or more. So
        # a consensus has at most twice the words of the longest hypothesis, which has at most half as many
        # words as bytes. Each word is sent in its canonical form and as it is written.
        normaliser = ranker.text_normaliser
        words_bytes = [utf8_bytes(text) * normaliser.max_growth(text) for text in texts]
        total += CONSENSUS_WORD_BYTES * (max(words_bytes, default=0) + 1) + 2 * sum(words_bytes)
    return max(total, LIST_STATUS_BYTES)


class AnswerParts(NamedTuple):
    """Which optional parts an answer has, apart from the columns of components."""

    confidences: bool
    """Whether it has the words of the best hypothesis with their confidences."""
    consensus: bool
    """Whether it has a consensus, whose words may come from any hypotheses."""

    @classmethod
    def of(cls, weights: Weights, decision: DecisionRule) -> AnswerParts:
        has_word_confidences = weights.calibration is not None and weights.calibration.word is not None
        return cls(has_word_confidences, decision.kind == "confusion_network")


def requested_parts(request: RescoreRequest, bundle: Bundle) -> tuple[Weights | pb.Weights, AnswerParts]:
    """Return the weights of a request, not checked yet, and the parts of an answer that it asks for."""
    weights: Weights | pb.Weights
    network = pb.DECISION_KIND_CONFUSION_NETWORK
    if request.WhichOneof("weighting") == "weights":
        weights = request.weights
        parts = AnswerParts(weights.calibration.HasField("word"), weights.decision.kind == network)
    else:
        weights = bundle.weights.get(request.weights_name or "default", Weights())
        parts = AnswerParts.of(weights, weights.decision)
    if request.HasField("decision"):
        parts = parts._replace(consensus=request.decision.kind == network)
    return weights, parts


def weights_bytes(request: RescoreRequest | pb.ScoreTextRequest, bundle: Bundle) -> int:
    """Return an upper bound of the size of the weights in a response: those of the request or the bundle."""
    if request.WhichOneof("weighting") == "weights":
        return EMPTY_WEIGHTS_BYTES + request.weights.ByteSize() + names_bytes(bundle.model_kinds)
    weights = bundle.weights.get(request.weights_name or "default")
    if weights is None:  # the request will be refused
        return 0
    maps = (weights.streams, weights.lm, weights.mixture, weights.rerankers, weights.components)
    names = (*(name for part in maps for name in part), *weights.tuned_on, weights.name)
    total = EMPTY_WEIGHTS_BYTES + names_bytes(names)
    if weights.calibration is not None:  # two numbers per point, and the temperature
        parts = [part for part in (weights.calibration.utterance, weights.calibration.word) if part]
        total += EMPTY_WEIGHTS_BYTES + sum(EMPTY_WEIGHTS_BYTES + 16 * len(part.posteriors) for part in parts)
    return total


def names_bytes(names: Iterable[str]) -> int:
    return sum(COMPONENT_BYTES + utf8_bytes(name) for name in names)


SETTINGS = {
    "lists": ("max_in_flight_lists", "max_client_lists"),
    "tokens": ("max_in_flight_tokens", "max_in_flight_tokens"),
    "bytes": ("max_in_flight_bytes", "max_client_bytes"),
}
"""Names of the settings that bound each quantity, over all clients and per client, for error messages."""


class Quota:
    """A bounded quantity that clients share.

    While several clients are active, none may hold more than the amount that is still free (dynamic
    thresholds, Choudhury and Hahne 1998). If n clients take as much as they can, each holds 1/(n+1) of the
    capacity, and the same amount stays free for another client.

    Args:
        name: name of the quantity, a key of ``SETTINGS``.
        capacity: bound over all clients. A single amount above it is admitted if nothing else is held.
        per_client: bound per client, with the same exception; None: the capacity.
    """

    def __init__(self, name: str, capacity: int, per_client: int | None = None) -> None:
        self.name, self.capacity = name, capacity
        self._capacity_setting, self._client_setting = SETTINGS[name]
        self._per_client = capacity if per_client is None else per_client
        self.held = 0
        self._held_by: dict[Hashable, int] = {}

    def reason_to_refuse(self, client: Hashable, amount: int, *, shared: bool, reserved: int = 0) -> str:
        """Return why an amount is refused; empty if it is admitted.

        Args:
            shared: whether other clients are active.
            reserved: amount to keep free for another client, at most ``max_reserved``.
        """
        own = self._held_by.get(client, 0)
        taken = self.held + min(reserved, self.max_reserved)
        if taken + amount > self.capacity and taken:
            kept = f", {taken - self.held} are kept free for a call that waits" if reserved else ""
            return (
                f"{self.held} {self.name} are in flight{kept} and {amount} more were requested; "
                f"expected at most {self.capacity} ({self._capacity_setting})"
            )
        request = f"this client has {own} {self.name} in flight and requested {amount} more"
        if own and own + amount > self._per_client:
            return f"{request}; expected at most {self._per_client} ({self._client_setting})"
        free = self.capacity - taken
        if shared and own and own + amount > free:
            return (
                f"{request}; while other clients are active, expected at most as many as are free, "
                f"{free} of {self.capacity} ({self._capacity_setting})"
            )
        return ""

    @property
    def max_reserved(self) -> int:
        """Largest amount that is kept free for a client that waits: half of the capacity.

        Otherwise large requests that follow one another would leave too little to all other clients.
        """
        return self.capacity // 2

    def has(self, client: Hashable) -> bool:
        """Whether a client holds anything of this quantity."""
        return client in self._held_by

    def has_others(self, client: Hashable) -> bool:
        """Whether a client other than this one holds anything of this quantity."""
        return has_other_keys(self._held_by, client)

    def add(self, client: Hashable, amount: int) -> None:
        """Take an amount, or return it if ``amount`` is negative."""
        self.held += amount
        own = self._held_by.get(client, 0) + amount
        if own:
            self._held_by[client] = own
        else:
            self._held_by.pop(client, None)


def has_other_keys(mapping: Mapping[Hashable, object], key: Hashable) -> bool:
    """Whether a mapping has a key other than this one, in constant time."""
    return len(mapping) > (key in mapping)


class Work(NamedTuple):
    """The cost of some items, and their number."""

    cost: int = 0
    items: int = 0

    def plus(self, cost: int, items: int) -> Work:
        return Work(self.cost + cost, self.items + items)

    def due_within(self, span: float) -> float:
        """Return the cost of the items that are due within a span of virtual time, its end included.

        All items are assumed to cost the same. The first is due at the beginning of the span. Each of the
        others is due when virtual time has advanced by the cost of the previous one. A cost without items,
        such as that of a large request without lists, is never due.
        """
        if span < 0 or not self.cost or not self.items:
            return 0.0
        cost_per_item = self.cost / self.items
        return min(self.cost, (span // cost_per_item + 1) * cost_per_item)


NO_WORK = Work()


REFUSED_MEMORY_S = 10.0
"""Time after a refusal for which other clients have to leave capacity for the refused client."""
USABLE_DEADLINE_SHARE = 2 / 3
"""Largest predicted scoring time, as a share of the time to the deadline. Predictions are uncertain, and a
call that misses its deadline has delayed others for nothing. Under overload, every admitted call takes about
as long as this limit permits."""
RETRY_BOUNDS_S = (0.05, 5.0)
"""Least and greatest time after which a refused caller should try again."""


STARVED_REFUSALS = 10
"""A client that is refused this many times in a row, each time while a worker is idle and the client has
nothing in flight, is starved."""
RECENT_BATCHES = 31
"""Number of batches of a client from which its pace follows."""
LEAST_TOKENS = 256
"""Batches with fewer tokens take as long as one with this many; see ``Pace``."""
MAX_PACES = 1024
"""Number of clients whose paces are remembered."""


class Pace:
    """Seconds per token of each client's batches, in the unit in which the queue counts costs.

    A client's pace is the median of its recent batches, in which large ones count more: under load, batches
    are large and more efficient, while the time of a list of a few words hardly depends on the pace. What one
    client sends affects the predictions for others only as far as it is scored before their lists. Clients
    that are not known yet get the median of the known ones.
    """

    def __init__(self) -> None:
        self._recent: dict[Hashable, deque[tuple[float, int]]] = {}  # (pace, tokens); latest client last
        self._paces: dict[Hashable, float] = {}
        self._typical: float | None = 0.0  # None: to be computed again

    def record(self, tokens: Mapping[Hashable, int], seconds: float) -> None:
        """Record a scored batch.

        Args:
            tokens: the batch's tokens by client.
            seconds: how long it kept the workers busy: the time of one of them, divided by their number.
        """
        pace = seconds / max(LEAST_TOKENS, sum(tokens.values()))
        for client, count in tokens.items():
            recent = self._recent.pop(client, None) or deque(maxlen=RECENT_BATCHES)
            self._recent[client] = recent
            recent.append((pace, count))
            self._paces[client] = weighted_median(recent)
        while len(self._recent) > MAX_PACES:
            del self._recent[oldest := next(iter(self._recent))]
            del self._paces[oldest]
        self._typical = None

    def seconds_for(self, costs: Mapping[Hashable, float]) -> float:
        """Predict how long some tokens will take, by their clients; 0 before anything is recorded."""
        if self._typical is None:
            self._typical = median(self._paces.values())
        return sum(cost * self._paces.get(client, self._typical) for client, cost in costs.items())


def weighted_median(values: Iterable[tuple[float, int]]) -> float:
    """Return the smallest of some weighted values up to which there is half of the weight.

    >>> weighted_median([(3.0, 1), (1.0, 1), (2.0, 5)])
    2.0
    """
    ordered, weights = zip(*sorted(values), strict=True)
    half = sum(weights) / 2
    return next(value for value, total in zip(ordered, accumulate(weights), strict=True) if total >= half)


CostsBefore = Callable[[Hashable, Work, Mapping[Hashable, Work]], Mapping[Hashable, float]]
"""Predicts the cost, by client, of everything that is scored before the last of some new items of a client.
The last argument is work that clients will add before these items."""


class Refusals(NamedTuple):
    """The latest refusals of a client."""

    at: float
    """Time of the last one, in ``time.monotonic`` seconds."""
    while_idle: int
    """How many in a row there were while a worker was idle."""


@dataclass(eq=False, slots=True)
class Ticket:
    """The capacity that an admitted call holds."""

    client: Hashable
    lists: int
    tokens: int
    items: int
    """Number of parts in which the lists will be scored, as far as it is known."""
    is_expected: bool = False
    """True until the work of the call is put into the queue."""

    @property
    def work(self) -> Work:
        return Work(self.tokens, self.items)


class Admission:
    """Admit or refuse calls.

    Args:
        lists: quota of lists in flight.
        tokens: quota of tokens in flight.
        min_tokens: if fewer tokens than this precede a call, its deadline is no reason to refuse it.
        costs_before: predicts, from the queue, the tokens that are scored before a call.
        pace: predicts how long tokens take.
        max_item_tokens: longer lists are scored in parts of at most this many tokens.
        is_idle: whether a worker has nothing to do.
        on_starved: called with a client that is refused again and again although workers are idle.
    """

    def __init__(
        self,
        lists: Quota,
        tokens: Quota,
        min_tokens: int,
        costs_before: CostsBefore,
        pace: Pace,
        *,
        max_item_tokens: float = math.inf,
        is_idle: Callable[[], bool] = lambda: False,
        on_starved: Callable[[Hashable], None] = lambda client: None,
    ) -> None:
        self.lists, self.tokens = lists, tokens
        self._min_tokens, self._costs_before, self._pace = min_tokens, costs_before, pace
        self._max_item_tokens, self._is_idle, self._on_starved = max_item_tokens, is_idle, on_starved
        self._expected: dict[Hashable, Work] = {}
        """Work of admitted calls that are being prepared, by client."""
        self._refusals: dict[Hashable, Refusals] = {}  # by client, oldest first
        self._waiting: list[asyncio.Future[None]] = []  # calls that wait for capacity, longest wait first
        self._reserving: Ticket | None = None
        """The waiting call for which capacity is kept free. Otherwise small calls would take it all."""

    @asynccontextmanager
    async def admit(
        self,
        client: Hashable,
        lists: int,
        tokens: int,
        *,
        remaining_s: float = math.inf,
        wait: bool = False,
    ) -> AsyncIterator[Ticket]:
        """Reserve capacity for a call for the duration of the ``with`` block.

        Args:
            tokens: estimated number of tokens to score.
            remaining_s: time to the caller's deadline.
            wait: wait for capacity instead of refusing the call.

        Raises:
            Overloaded: there is no capacity, or the deadline would probably be missed.
        """
        ticket = Ticket(client, lists, tokens, max(lists, math.ceil(tokens / self._max_item_tokens)))
        if wait:
            await self._wait_for_capacity(ticket)
        elif reason := self._reason_to_refuse(ticket, remaining_s):
            self._remember_refused(client)
            raise Overloaded(f"{reason}; try again later", retry_after_s=self.retry_after_s(client))
        if (refusals := self._refusals.get(client)) is not None:
            self._refusals[client] = refusals._replace(while_idle=0)
        self.lists.add(client, lists)
        self.tokens.add(client, tokens)
        ticket.is_expected = True
        self._expected[client] = self._expected.get(client, NO_WORK).plus(*ticket.work)
        try:
            yield ticket
        finally:
            self._stop_expecting(ticket)
            self.lists.add(client, -ticket.lists)
            self.tokens.add(client, -ticket.tokens)
            self._wake_waiting()

    def begin_scoring(self, ticket: Ticket, tokens: int) -> None:
        """Record that the work of a call is put into the queue now.

        Args:
            tokens: the counted number of tokens, which replaces the estimate.
        """
        self._stop_expecting(ticket)
        self.tokens.add(ticket.client, tokens - ticket.tokens)
        ticket.tokens = tokens

    def retry_after_s(self, client: Hashable) -> float:
        """Return how long a refused client should wait before retrying, with jitter.

        By then the work that the client has in flight should be scored.
        """
        wait_s = self._predict(client, NO_WORK)[1]
        low, high = RETRY_BOUNDS_S
        return min(max(wait_s, low), high) * random.uniform(0.8, 1.2)

    def _reason_to_refuse(self, ticket: Ticket, remaining_s: float) -> str:
        client, first = ticket.client, self._reserving
        shared = self._has_other_clients(client)
        reserved = None if first is ticket else first
        for quota, amount, reserved_amount in (
            (self.lists, ticket.lists, 0 if reserved is None else reserved.lists),
            (self.tokens, ticket.tokens, 0 if reserved is None else reserved.tokens),
        ):
            if reason := quota.reason_to_refuse(client, amount, shared=shared, reserved=reserved_amount):
                return reason
        if remaining_s == math.inf:
            return ""
        tokens_before, wait_s = self._predict(client, ticket.work)
        if tokens_before >= self._min_tokens and wait_s > USABLE_DEADLINE_SHARE * remaining_s:
            return f"an answer would take about {wait_s:.2f} s, but the deadline is in {remaining_s:.2f} s"
        return ""

    def _predict(self, client: Hashable, work: Work) -> tuple[float, float]:
        """Predict the tokens that are scored before new items, and the time until the last one is scored.

        No more tokens are predicted than the server holds.
        """
        costs = dict(self._costs_before(client, work, self._expected))
        last = work.cost / work.items if work.items else work.cost
        first = min(costs.get(client, 0.0), work.cost - last)  # the new items before it
        held, before = self.tokens.held + first, sum(costs.values())
        if before > held:
            costs = {other: cost * held / before for other, cost in costs.items()}
        costs[client] = costs.get(client, 0.0) + last
        return min(before, held) - first, self._pace.seconds_for(costs)

    async def _wait_for_capacity(self, ticket: Ticket) -> None:
        """Wait until there is capacity for a call; meanwhile other clients have to leave some of it.

        For the first waiting call whose client has nothing in flight, up to half of the capacity is reserved.
        """
        try:
            while self._reason_to_refuse(ticket, math.inf):
                self._remember_refused(ticket.client)
                if self.lists.has(ticket.client) or self.tokens.has(ticket.client):
                    if self._reserving is ticket:
                        self._reserving = None
                elif self._reserving is None:
                    self._reserving = ticket
                released = asyncio.get_running_loop().create_future()
                self._waiting.append(released)
                await released
        finally:
            if self._reserving is ticket:
                self._reserving = None
                self._wake_waiting()

    def _wake_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for released in waiting:
            if not released.done():
                released.set_result(None)

    def _stop_expecting(self, ticket: Ticket) -> None:
        if ticket.is_expected:
            ticket.is_expected = False
            expected = self._expected.pop(ticket.client).plus(-ticket.tokens, -ticket.items)
            if expected != NO_WORK:
                self._expected[ticket.client] = expected

    def _remember_refused(self, client: Hashable) -> None:
        former = self._refusals.pop(client, None)  # reinsert at the end, so that the oldest come first
        is_left_out = self._is_idle() and not self.lists.has(client)
        count = (former.while_idle if former else 0) + 1 if is_left_out else 0
        self._refusals[client] = Refusals(time.monotonic(), count)
        if count and count % STARVED_REFUSALS == 0:
            self._on_starved(client)

    def _has_other_clients(self, client: Hashable) -> bool:
        """Whether another client has lists in flight or was refused recently."""
        now = time.monotonic()
        refusals = self._refusals
        while refusals and now - refusals[oldest := next(iter(refusals))].at > REFUSED_MEMORY_S:
            del refusals[oldest]
        return self.lists.has_others(client) or has_other_keys(refusals, client)


DECAY = 0.9
"""Factor by which the weight of earlier responses shrinks with each new one."""
MIN_TOKENS = 1024
"""Smallest response that is recorded. Smaller ones take a few milliseconds whatever their size is, so that
their time does not predict that of large ones."""
SAFETY_FACTOR = 1.5
"""The prediction is the mean times this factor, because a late answer is worth nothing."""


class ResponseTime:
    """Moving average of the time per token that deciding and writing a response takes, including waiting.

    A call with a fallback stops scoring this long before its deadline, so that its answer, however degraded,
    is sent in time.
    """

    def __init__(self) -> None:
        self._tokens = self._seconds = 0.0

    def record(self, tokens: int, seconds: float) -> None:
        """Record a response that costs as much to decide and write as ``tokens`` tokens."""
        if tokens < MIN_TOKENS:
            return
        self._tokens = DECAY * self._tokens + tokens
        self._seconds = DECAY * self._seconds + seconds

    def seconds_for(self, tokens: int) -> float:
        """Predict how long a response takes, generously; 0 before anything is recorded."""
        return SAFETY_FACTOR * tokens * self._seconds / self._tokens if self._tokens else 0.0
