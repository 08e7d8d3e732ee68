"""Check lists before anything is computed from them: sizes, words, past, and what of them was not read.

A reader keeps fields that it does not know, so that they come back with the answer. A score under an unknown
name is such a field: nothing ranks by it until an option says that it is one. So are the beams of a
recogniser under an unknown name: without a word about them, a list has only the best text.

Scores of end-to-end models call for weights that were tuned for them. An acoustic model's score is a sum over
frames: log-densities of a hundred nats and more per word, which a language model at weight 1 barely moves.
The score of an encoder-decoder, a transducer or a CTC model is ln P of the text given the audio: a fraction
of a nat to a few nats per word, with the model's own knowledge of the language in it. A language model at
weight 1 outweighs such scores many times, and can triple the errors.
"""

from __future__ import annotations

import math
import numbers
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

from rescorer.errors import MAX_QUOTED_CHARS, InvalidList, pluralise, quote, shorten
from rescorer.types import SENTENCE_END, Generated, Hypothesis, NBestList, Phrase, Utterance, Weights, Words

MAX_PREVIOUS_WORDS = 1000
"""Largest number of previous words that models and rerankers read. They read the newest."""
CUT_STEP = 16
"""Too many previous utterances are cut at a multiple of this number. The first utterance that is read then
stays the same for several requests of a growing conversation, and caches have the states of networks after
it."""


class SpokenWords(NamedTuple):
    """A previous utterance as models read it."""

    words: Words  # canonical words, at least one
    confidence: float  # confidence of the utterance


def normalise_previous(
    previous: Sequence[Utterance], normalise: Callable[[str], Words]
) -> tuple[SpokenWords, ...]:
    """Return the canonical words of the newest utterances, oldest first, at most ``MAX_PREVIOUS_WORDS``.

    Utterances without canonical words are left out. If the newest utterance with words is too long by itself,
    its last words are returned.
    """
    newest: list[SpokenWords] = []
    n_words, first = 0, len(previous)
    while first and n_words < MAX_PREVIOUS_WORDS:
        words = normalise(previous[first - 1].text)
        if n_words + len(words) > MAX_PREVIOUS_WORDS:
            break
        newest.append(SpokenWords(words, previous[first - 1].confidence))
        n_words += len(words)
        first -= 1
    if not n_words and first:  # the newest utterance with words is too long
        words = normalise(previous[first - 1].text)[-MAX_PREVIOUS_WORDS:]
        return (SpokenWords(words, previous[first - 1].confidence),)
    surplus = -first % CUT_STEP  # up to the next place at which a long past may be cut
    kept = newest[: len(newest) - surplus] if surplus < len(newest) else newest
    if not any(spoken.words for spoken in kept):
        kept = newest
    return tuple(spoken for spoken in reversed(kept) if spoken.words)


def collect_confidences(previous: Iterable[SpokenWords]) -> tuple[float, ...]:
    """Return the confidence of each utterance, or an empty tuple if all are certain."""
    confidences = tuple(utterance.confidence for utterance in previous)
    return confidences if any(value < 1 for value in confidences) else ()


def join_history(previous: Iterable[Words], context: Words) -> Words:
    """Return the words that models read before a sentence if they carry their state across sentences.

    These are the words of each previous utterance with ``SENTENCE_END`` after them, then the context.
    """
    return tuple(word for words in previous for word in (*words, SENTENCE_END)) + context


def join_words(previous: Iterable[Words], context: Words) -> Words:
    """Return the words of all previous utterances and of the context, without ends of sentences."""
    return tuple(word for words in previous for word in words) + context


MAX_NAMED = 4  # number of fields that a message names
MAX_NAME_CHARS = 40
"""Longest name of a field that is considered, because messages show the name and users type it."""
MIN_LISTS_TO_TRUST = 5
"""Number of lists whose order is trusted more than a field's name to say whether lower is better."""
SCORE_NAME = re.compile(
    r"(?:^|[^a-z])(?:am|[a-z]{0,3}lm|ac|tot|total|ll|lp|logits?|loss)(?:[^a-z]|$)"
    r"|score|prob|acoustic|cost|nll|conf|log_?p|likelihood|posterior",
    re.IGNORECASE,
)
"""Matches the names of fields that probably hold scores."""
OTHER_NAME = re.compile(r"no_?speech|lang(?:uage)?_?prob|temperature|compression", re.IGNORECASE)
"""Matches the names of numbers about the audio or the decoder, which do not tell hypotheses apart."""
OTHER_WORDS = re.compile(
    r"begin|start|end|stop|from|to|times?|duration|offset|seek|frames?|secs?|seconds?|ms|rank|index|idx|id|"
    r"pos|position|n|num|count|len|length|size|n?toks?|tokens?|n?words?|chars?|speaker|channel|speed|rate|version",
    re.IGNORECASE,
)
"""Words in the names of numbers that are no scores, such as ``startTime`` and ``n_tokens``."""
COST_NAME = re.compile(
    r"cost|nll|nlog|penalt|perplex|distance|negative|(?:^|[^a-z])(?:neg|loss|ppl)(?:[^a-z]|$)", re.IGNORECASE
)
PROBABILITY_NAME = re.compile(r"prob|conf|log_?p|likelihood|posterior", re.IGNORECASE)
BASE_IN_NAME = re.compile(r"log_?(10|2)(?![0-9])", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class UnreadField:
    """A field with a number in every hypothesis of a list, from which no stream was read."""

    name: str
    parent: str
    """Name of the object, in the hypothesis, that has the field; empty if the hypothesis itself has it."""
    is_likely: bool
    """Whether the field is probably a score, rather than a time, a count or a rank."""
    is_named: bool
    """Whether the field has the name of a score."""
    units: str
    """Base and sign as ``--stream NAME=FIELD`` takes them: empty, ``:2``, ``:prob`` or ``:e:cost``."""

    @property
    def label(self) -> str:
        """The name to show: ``object.name``, or the name alone."""
        return f"{self.parent}.{self.name}" if self.parent else self.name


def find_unread_fields(lists: Sequence[NBestList]) -> list[UnreadField]:
    """Find the fields that have a number in every hypothesis of a list.

    Likely scores come first, then fields with the name of a score, then those of most lists.
    """
    values: dict[tuple[str, str], list[list[float]]] = {}
    for nbest in lists:
        for key in _numbers_of(nbest.hypotheses[0].fields) if nbest.hypotheses else ():
            column = [_read_number(hypothesis.fields, *key) for hypothesis in nbest.hypotheses]
            if all(value is not None for value in column):
                values.setdefault(key, []).append([value for value in column if value is not None])
    found = [_describe_scores(name, parent, columns) for (parent, name), columns in values.items()]
    order = {field.label: len(values[field.parent, field.name]) for field in found}
    return sorted(found, key=lambda field: (not field.is_likely, not field.is_named, -order[field.label]))


def find_partial_scores(lists: Sequence[NBestList]) -> dict[str, int]:
    """Count, by name, the lists in which only some hypotheses have a field with the name of a score.

    Services may write the confidence of the best text only. No option can read a stream from such a field.
    """
    found: Counter[str] = Counter()
    for nbest in lists:
        keys = {key for hypothesis in nbest.hypotheses for key in _numbers_of(hypothesis.fields)}
        for parent, name in keys:
            values = [_read_number(hypothesis.fields, parent, name) for hypothesis in nbest.hypotheses]
            is_partial = 0 < sum(value is not None for value in values) < len(values)
            label = f"{parent}.{name}" if parent else name
            if is_partial and SCORE_NAME.search(label) and not OTHER_NAME.search(label):
                found[label] += 1
    return dict(found.most_common())


def name_fields(fields: Sequence[UnreadField]) -> str:
    """Return the names of the first fields, for a message."""
    return ", ".join(shorten_names([field.label for field in fields]))


def shorten_names(names: Sequence[str]) -> list[str]:
    """Return the first names, and an ellipsis if there are more."""
    return [*names[:MAX_NAMED], "…"] if len(names) > MAX_NAMED else list(names)


def _numbers_of(fields: Any) -> Iterator[tuple[str, str]]:
    """Yield the places of numbers in the fields of a hypothesis: the field with the object, and the name."""
    for name, value in fields.items():
        if isinstance(value, dict):
            yield from ((name, key) for key in value if _is_usable(name) and _is_usable(key))
        elif _is_usable(name):
            yield "", name


def _is_usable(name: Any) -> bool:
    return isinstance(name, str) and 0 < len(name) <= MAX_NAME_CHARS and name.isprintable()


def _read_number(fields: Any, parent: str, name: str) -> float | None:
    """Return the finite number in a field; None if the field has none."""
    holder = fields.get(parent) if parent else fields
    value = holder.get(name) if hasattr(holder, "get") else None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:  # an integer of hundreds of digits
        return None
    return number if math.isfinite(number) else None


def _describe_scores(name: str, parent: str, columns: Sequence[Sequence[float]]) -> UnreadField:
    label = f"{parent}.{name}"
    is_named = bool(SCORE_NAME.search(label)) and not OTHER_NAME.search(label)
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)
    is_other = bool(OTHER_NAME.search(label)) or any(map(OTHER_WORDS.fullmatch, words))
    is_measured = any(value < 0 or not value.is_integer() for column in columns for value in column)
    base = match[1] if (match := BASE_IN_NAME.search(name)) else "e"
    may_be_probability = PROBABILITY_NAME.search(label) and "log" not in name.lower()
    if may_be_probability and all(0.0 < value <= 1.0 for column in columns for value in column):
        base = "prob"
    sign = ":cost" if base != "prob" and _is_cost(label, columns) else ""
    units = f":{base}{sign}" if sign or base != "e" else ""
    return UnreadField(name, parent, is_named or (is_measured and not is_other), is_named, units)


def _is_cost(name: str, columns: Sequence[Sequence[float]]) -> bool:
    """Whether lower values are better, judged by the name and by the order of the lists.

    Recognisers order lists from best to worst, so the order of enough lists outweighs the name.
    """
    differing = [list(column) for column in columns if len(set(column)) > 1]
    rising = bool(differing) and all(column == sorted(column) for column in differing)
    falling = bool(differing) and all(column == sorted(column, reverse=True) for column in differing)
    is_certain = len(differing) >= MIN_LISTS_TO_TRUST
    if COST_NAME.search(name):
        return not (falling and is_certain)
    lowest, highest = min(map(min, columns)), max(map(max, columns))
    if PROBABILITY_NAME.search(name):
        return rising and is_certain and lowest >= 0.0 and highest > 1.0
    return rising and (is_certain or lowest >= 0.0)


TEXT_NAMES = ("text", "transcript", "transcription", "hypothesis", "hyp", "sentence", "generated_text")
"""Names of the texts of hypotheses."""
PART_NAME = re.compile(r"word|token|piece|symbol|char|phone|sentence|paragraph", re.IGNORECASE)
"""Matches the names of arrays that hold the parts of one text."""
MIN_SHARED = 0.5
"""Smallest share of words in common with the best hypothesis for a text to count as another hypothesis."""
MAX_ITEMS = 100  # number of elements of an array that are looked at


@dataclass(frozen=True, slots=True)
class UnreadList:
    """A field with an array of texts that look like further hypotheses of the list."""

    name: str
    size: int
    text_name: str
    """Name of the text in each object; empty if the elements are texts or pairs of text and score."""
    kind: str
    """Kind of the elements: ``object``, ``text`` or ``pair``."""

    @property
    def description(self) -> str:
        """The field and its elements, for messages: ``a list 'beams' of 4 objects with text``."""
        items = pluralise(self.size, self.kind)
        ending = {"object": f" with {self.text_name}", "pair": " of text and score", "text": ""}[self.kind]
        return f"a list {self.name!r} of {items}{ending}"

    @property
    def map_option(self) -> str:
        """The value of ``--map`` that reads the field from JSON lines."""
        text = f",text={self.text_name}" if self.text_name not in ("", "text") else ""
        return f"hypotheses={self.name}{text}"


def find_unread_lists(lists: Sequence[NBestList]) -> list[UnreadList]:
    """Find arrays that look like hypotheses, in fields of lists and of their first hypotheses.

    Such an array has more elements than the list has hypotheses, and at least half of its texts share at
    least half of their words with the first hypothesis. Arrays of the words or sentences of one text are left
    out.
    """
    found: dict[str, UnreadList] = {}
    for nbest in lists:
        if not nbest.hypotheses:
            continue
        first = nbest.hypotheses[0]
        for name, value in (*_arrays(nbest.fields), *_arrays(first.fields)):
            if name in found or len(value) <= len(nbest.hypotheses):
                continue
            if unread := _describe_array(name, value, first.text):
                found[name] = unread
    return list(found.values())


def _arrays(fields: Mapping[str, Any]) -> Iterator[tuple[str, list[Any]]]:
    for name, value in fields.items():
        if _is_usable(name) and not PART_NAME.search(name) and isinstance(value, list) and len(value) > 1:
            yield name, value


def _describe_array(name: str, items: list[Any], best: str) -> UnreadList | None:
    text_name = kind = ""
    if all(isinstance(item, dict) for item in items):
        text_name = next((key for key in TEXT_NAMES if isinstance(items[0].get(key), str)), "")
        texts, kind = [item.get(text_name) for item in items[:MAX_ITEMS]], "object"
    elif all(isinstance(item, list) and len(item) == 2 for item in items):
        texts, kind = [item[0] for item in items[:MAX_ITEMS]], "pair"
    else:
        texts, kind = items[:MAX_ITEMS], "text"
    if (kind == "object" and not text_name) or not all(isinstance(text, str) for text in texts):
        return None
    words = best.lower().split()
    joined = "".join(text.lower() for text in texts)
    if not words or "".join(joined.split()) == "".join(words):  # the parts of the text
        return None
    similar = sum(_shares_words(text.lower().split(), words) for text in texts)
    return UnreadList(name, len(items), text_name, kind) if 2 * similar >= len(texts) else None


def _shares_words(words: list[str], others: list[str]) -> bool:
    shared = len({*words} & {*others})
    return shared >= MIN_SHARED * max(len({*words}), len({*others}))


MAX_NATS_PER_WORD = 3.0
"""Largest mean of -score per word of an end-to-end model. Measured: Moonshine 0.4 and the log scores of
DSTC10 2.3, but PocketSphinx 100, Switchboard's recogniser 277; a language model alone has 4 to 9."""
MIN_RATIO = 0.5
"""Smallest weight of the language models, relative to that of the scores, that is worth a warning."""
MIN_LISTS = 5  # number of lists from which scores are judged


@dataclass(frozen=True, slots=True)
class UntunedWeights:
    """Weights that were never tuned and give language models too much say over scores."""

    name: str  # name of the weights
    streams: tuple[str, ...]  # the streams that have a weight
    nats_per_word: float  # mean score per word, where the end of the sentence counts as a word; 0 or below

    def describe(self) -> str:
        """Say what is wrong, without the remedy."""
        scores = ", ".join(map(repr, self.streams))
        return (
            f"weights {self.name!r} were never tuned, and the scores {scores} look like those of an "
            f"end-to-end model ({self.nats_per_word:.2g} nats per word): it has a language model inside, and "
            "an untuned weight of another can triple its errors"
        )


def find_untuned_weights(lists: Sequence[NBestList], weights: Weights) -> UntunedWeights | None:
    """Find untuned weights that give language models too much say; None if there is no reason to warn."""
    streams = {name: weight for name, weight in weights.streams.items() if weight}
    if weights.tuned_on or not streams or any(weights.rerankers.values()):
        return None
    heaviest = max(map(abs, streams.values()))
    if sum(weights.lm.values()) < MIN_RATIO * heaviest:
        return None
    sums = []
    for nbest in lists:
        if nbest.hypotheses and streams.keys() <= nbest.streams.keys():
            columns = [nbest.streams[name] for name in streams]
            score = math.fsum(
                w * math.fsum(column) for w, column in zip(streams.values(), columns, strict=True)
            )
            n_words = sum(len(hypothesis.text.split()) + 1 for hypothesis in nbest.hypotheses)
            sums.append((score / heaviest, max(map(max, columns)), n_words))
    total, best = math.fsum(part for part, _, _ in sums), max((top for _, top, _ in sums), default=0.0)
    # The best of every list at exactly 0 is a rank or a difference, and a log-probability is never above 0.
    is_relative = all(top == 0.0 for _, top, _ in sums)
    if len(sums) < MIN_LISTS or best > 0.0 or is_relative or not math.isfinite(total):
        return None
    per_word = total / sum(words for _, _, words in sums)
    return UntunedWeights(weights.name, tuple(streams), per_word) if -per_word <= MAX_NATS_PER_WORD else None


MAX_WORDS = 100_000  # maximum number of words in a hypothesis or context; no real sentence is longer
NUMBERS = (float, int, numbers.Real)
"""Types of numbers; the first two are recognised fastest, the last one includes those of arrays."""
TEXT, NUMBER = (str, "a string"), (NUMBERS, "a number")
EXPECTED_TYPES: Mapping[type[Any], Mapping[str, tuple[Any, str]]] = {
    NBestList: {
        "id": TEXT,
        "hypotheses": (Sequence, "a tuple of Hypothesis objects"),
        "streams": (Mapping, "scores by the name of the stream"),
        "context": TEXT,
        "previous": (Sequence, "a tuple of Utterance objects"),
        "phrases": (Sequence, "a tuple of Phrase objects"),
    },
    Hypothesis: {
        "text": TEXT,
        "partial": (int, "True or False"),
        "generated": ((Generated, type(None)), "a Generated or None"),
    },
    Utterance: {"text": TEXT, "speaker": TEXT, "confidence": NUMBER},
    Phrase: {
        "text": TEXT,
        "weight": NUMBER,
        "spellings": ((tuple, list), "a tuple of strings"),
        "slot": TEXT,
    },
}
"""Types of the fields that are scored or sent, and how errors describe them."""


def check_lengths(list_id: str, words: Sequence[Words], context: Words) -> None:
    """Raise InvalidList if a hypothesis or the context is longer than ``MAX_WORDS``."""
    if max(map(len, words), default=0) > MAX_WORDS:
        i = next(i for i, hypothesis_words in enumerate(words) if len(hypothesis_words) > MAX_WORDS)
        message = f"{len(words[i]):,} words; expected at most {MAX_WORDS:,}"
        raise InvalidList(message, list_id=list_id, hypothesis=i, field="text")
    if len(context) > MAX_WORDS:
        message = f"{len(context):,} words; expected at most {MAX_WORDS:,}"
        raise InvalidList(message, list_id=list_id, field="context")


def check_list(nbest: NBestList, weights: Weights, reserved_names: frozenset[str] = frozenset()) -> None:
    """Check that a list can be scored under these weights.

    Args:
        reserved_names: component names that streams may not have.

    Raises:
        InvalidList: the list cannot be scored; the error names the field.
    """

    def invalid(message: str, field: str = "", hypothesis: int | None = None) -> InvalidList:
        return InvalidList(message, list_id=nbest.id, field=field, hypothesis=hypothesis)

    if not nbest.hypotheses:
        raise invalid("no hypotheses; expected at least one", "hypotheses")
    for name, values in nbest.streams.items():
        field = f'streams["{name}"]'
        if len(values) != len(nbest.hypotheses):
            raise invalid(
                f"{len(values)} scores for {len(nbest.hypotheses)} hypotheses; expected one per hypothesis",
                field,
            )
        if not _are_finite(values):
            i = next(i for i, value in enumerate(values) if not _are_finite([value]))
            raise invalid(f"{shorten(str(values[i]), MAX_QUOTED_CHARS)}; expected a finite number", field, i)
    for name, weight in weights.streams.items():
        if weight != 0 and name not in nbest.streams:
            raise invalid(_describe_missing(nbest, weights), f'streams["{name}"]')
    for index, utterance in enumerate(nbest.previous):
        confidence = utterance.confidence
        if not (isinstance(confidence, (int, float)) and 0 <= confidence <= 1):
            message = f"{shorten(repr(confidence), MAX_QUOTED_CHARS)}; expected a number from 0 to 1"
            raise invalid(message, f"previous[{index}].confidence")
    reserved = sorted(set(nbest.streams) & reserved_names)
    if reserved:
        raise invalid(f"the name {reserved[0]!r} is reserved; send the stream under another name", "streams")


def _are_finite(values: Sequence[float]) -> bool:
    try:
        return all(map(math.isfinite, values))
    except OverflowError:  # an integer beyond all floats
        return False


def _describe_missing(nbest: NBestList, weights: Weights) -> str:
    """Describe the streams of a list that lacks one, and suggest weights that are safe to start from."""
    streams = ", ".join(sorted(nbest.streams)) or "none"
    message = f"missing, but weights {quote(weights.name)} need it; the list has: {streams}"
    if any(weights.streams.get(name) for name in nbest.streams):
        return message
    if len(nbest.streams) == 1:
        alone = f"weights with streams={{{quote(streams)}: 1}} and lm={{'mixture': 0}}"
        return f"{message}; {alone} rank by it alone, and `rescorer tune` finds better ones from there"
    likely = [field for field in find_unread_fields([nbest]) if field.is_likely]
    if likely and not nbest.streams:
        return f"{message}; numbers in fields of its hypotheses are not read as scores: {name_fields(likely)}"
    return message


def check_types(nbest: NBestList) -> None:
    """Check the types of everything in a list that is scored or sent, which Python itself does not check.

    Raises:
        InvalidList: a value has the wrong type; the error names it.
    """
    list_id = str(nbest.id)
    if wrong := find_wrong_type(nbest, NBestList):
        raise InvalidList(wrong[1], list_id=list_id, field=wrong[0])
    if not all(
        isinstance(hypothesis, Hypothesis)
        and isinstance(hypothesis.text, str)
        and isinstance(hypothesis.partial, int)
        and (hypothesis.generated is None or isinstance(hypothesis.generated, Generated))
        for hypothesis in nbest.hypotheses
    ) and (error := find_wrong_hypothesis(nbest)):
        raise error
    for name, values in nbest.streams.items():
        _check_stream(name, values, list_id)
    for name, parts, kind in (("previous", nbest.previous, Utterance), ("phrases", nbest.phrases, Phrase)):
        for index, part in enumerate(parts):
            if wrong := find_wrong_type(part, kind):
                place = f"{name}[{index}].{wrong[0]}".rstrip(".")
                raise InvalidList(wrong[1], list_id=list_id, field=place)


def find_wrong_types(lists: Sequence[NBestList]) -> Iterator[tuple[int, InvalidList]]:
    """Yield the index of each list with a wrong type, and the error of ``check_types``."""
    for index, nbest in enumerate(lists):
        try:
            check_types(nbest)
        except InvalidList as error:
            yield index, error


def find_wrong_hypothesis(nbest: NBestList) -> InvalidList | None:
    """Return the error about the first hypothesis with a wrong type; None if all types are right.

    It is called after an operation on the hypotheses has failed, so that it does not delay valid lists.
    """
    for index, hypothesis in enumerate(nbest.hypotheses):
        if wrong := find_wrong_type(hypothesis, Hypothesis):
            return InvalidList(wrong[1], list_id=str(nbest.id), hypothesis=index, field=wrong[0])
    return None


def find_wrong_type(value: Any, kind: type[Any]) -> tuple[str, str] | None:
    """Return the name of the first field with a wrong type and what was expected; None if there is none.

    The name is empty if the value itself is not of this kind.

    >>> find_wrong_type(Phrase("Ada", weight="high"), Phrase)
    ('weight', 'expected a number, got str')
    """
    if not isinstance(value, kind):
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        hint = f"; write {kind.__name__}({quote(value)})" if isinstance(value, str) else ""
        return "", f"expected {article} {kind.__name__}, got {type(value).__name__}{hint}"
    for name, (types, description) in EXPECTED_TYPES[kind].items():
        if not isinstance(getattr(value, name), types):
            return name, f"expected {description}, got {type(getattr(value, name)).__name__}"
    for index, spelling in enumerate(getattr(value, "spellings", ())):
        if not isinstance(spelling, str):
            return f"spellings[{index}]", f"expected a string, got {type(spelling).__name__}"
    return None


def _check_stream(name: Any, values: Any, list_id: str) -> None:
    """Raise InvalidList unless a stream has a string as its name, and numbers in a sequence or array."""
    if not isinstance(name, str):
        reason = f"expected a string as the name of a stream, got {type(name).__name__}"
        raise InvalidList(reason, list_id=list_id, field="streams")
    field = f'streams["{name}"]'
    try:
        len(values)
        is_column = not isinstance(values, (str, bytes, Mapping, Set))
    except TypeError:
        is_column = False
    if not is_column:
        reason = f"expected a tuple with one number per hypothesis, got {type(values).__name__}"
        raise InvalidList(reason, list_id=list_id, field=field)
    if not all(isinstance(value, NUMBERS) for value in values):
        index, wrong = next((i, v) for i, v in enumerate(values) if not isinstance(v, NUMBERS))
        reason = f"expected a number, got {type(wrong).__name__}"
        raise InvalidList(reason, list_id=list_id, hypothesis=index, field=field)
