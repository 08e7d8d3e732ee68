"""Bound requests and answers: sizes and work, checked before anything costly is done for them.

The elements that a client sends are counted first, then the steps of searching and deciding and the words to
score, which components state before anything is built. A response repeats the name of every component for
every hypothesis, so it can be thousands of times as large as its request. The bound of its size follows from
the request and the bundle alone. It is at most a few times too high, except for lists of a few hypotheses,
where it allows for the status of an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import NamedTuple, TypeVar

from google.protobuf.struct_pb2 import Value

from rescorer.decision import estimate_confidence_steps, estimate_steps
from rescorer.errors import InputError, LimitExceeded
from rescorer.models.bundle import Bundle
from rescorer.protocol.messages import MAX_TEXT_CHARS
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.runtime import pause
from rescorer.scoring.batch import count_distinct, count_tokens
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
        (one.word_counts.max(initial=0) for one in lists if isinstance(one, PreparedList)), default=0
    )
    return TOKENS_PER_LEVEL * max(0, int(longest) - USUAL_WORDS) * -(-tokens // max_batch_tokens)


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
