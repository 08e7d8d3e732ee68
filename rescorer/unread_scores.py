"""Find mistakes to warn of: scores and hypotheses in fields that no option names, and untuned weights.

A reader keeps fields that it does not know, so that they come back with the answer. A score under an unknown
name is such a field: lists are not ranked by it until an option says that it is a score. A recogniser's beams
may also be such a field: unless an option names it, a list has only the best text.

Scores of end-to-end models call for weights that were tuned for them. An acoustic model's score is a sum over
frames: log-densities of a hundred nats and more per word, which a language model at weight 1 barely moves.
The score of an encoder-decoder, a transducer or a CTC model is ln P of the text given the audio: a fraction
of a nat to a few nats per word, which includes what the model itself knows of the language. A language model
at weight 1 outweighs such scores many times, and can triple the errors.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rescorer.errors import pluralise
from rescorer.types import NBestList, Weights

MAX_NAMED = 4  # number of fields that a message names
MAX_NAME_CHARS = 40
"""Longest name of a field that is considered, because messages show the name and users type it."""
MIN_LISTS_TO_TRUST = 5
"""From this number of lists on, their order decides whether lower values are better, not the field's name."""
SCORE_NAME = re.compile(
    r"(?:^|[^a-z])(?:am|[a-z]{0,3}lm|ac|tot|total|ll|lp|logits?|loss)(?:[^a-z]|$)"
    r"|score|prob|acoustic|cost|nll|conf|log_?p|likelihood|posterior",
    re.IGNORECASE,
)
"""Matches the names of fields that probably hold scores."""
OTHER_NAME = re.compile(r"no_?speech|lang(?:uage)?_?prob|temperature|compression", re.IGNORECASE)
"""Matches the names of numbers about the audio or the decoder, which are no scores of hypotheses."""
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
    """Name of the object that contains the field; empty if the hypothesis itself contains it."""
    is_likely: bool
    """Whether the field is probably a score, rather than a time, a count or a rank."""
    is_named: bool
    """Whether the field has the name of a score."""
    units: str
    """Base and sign of the numbers, as ``--stream NAME=FIELD`` takes them after FIELD: empty, ``:2``,
    ``:prob`` or ``:e:cost``."""

    @property
    def label(self) -> str:
        """The name to show: ``object.name``, or the name alone."""
        return f"{self.parent}.{self.name}" if self.parent else self.name


def find_unread_fields(lists: Sequence[NBestList]) -> list[UnreadField]:
    """Find the fields that have a number in every hypothesis of a list.

    Likely scores come first, then other fields with the name of a score; of each kind, the most frequent
    first.
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

    A stream cannot be read from such a field. Some services write a confidence only for the best text.
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
    """Return the names of the first ``MAX_NAMED`` fields, for a message."""
    return ", ".join(shorten_names([field.label for field in fields]))


def shorten_names(names: Sequence[str]) -> list[str]:
    """Return the first ``MAX_NAMED`` names, and an ellipsis if there are more."""
    return [*names[:MAX_NAMED], "…"] if len(names) > MAX_NAMED else list(names)


def _numbers_of(fields: Any) -> Iterator[tuple[str, str]]:
    """Yield the place of each number in the fields of a hypothesis: the field whose object contains the
    number (empty if none), and the number's name."""
    for name in fields:
        value = _value_of(fields, name)
        if hasattr(value, "keys"):  # an object, of JSON or of a message
            yield from ((name, key) for key in value if _is_usable(name) and _is_usable(key))
        elif _is_usable(name):
            yield "", name


def _value_of(fields: Any, name: str) -> Any:
    """Return the value of a field; None if there is none."""
    try:
        return fields[name]
    except (KeyError, ValueError):  # ValueError: in a message, a value that has nothing set
        return None


def _is_usable(name: Any) -> bool:
    return isinstance(name, str) and 0 < len(name) <= MAX_NAME_CHARS and name.isprintable()


def _read_number(fields: Any, parent: str, name: str) -> float | None:
    """Return the finite number in a field; None if the field has none."""
    holder = _value_of(fields, parent) if parent else fields
    value = _value_of(holder, name) if hasattr(holder, "keys") else None
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
"""A text counts as another hypothesis if it shares at least this part of its words with the best one."""
MAX_ITEMS = 100  # number of elements of an array that are looked at


@dataclass(frozen=True, slots=True)
class UnreadList:
    """A field with an array of texts that look like further hypotheses of the list."""

    name: str
    size: int
    text_name: str
    """Name of the text's field in each object; empty if the elements are texts, or pairs of text and
    score."""
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
"""Largest mean of -score per word at which scores are taken for those of an end-to-end model. Measured:
Moonshine 0.4, the log scores of DSTC10 2.3; a language model alone 4 to 9; PocketSphinx 100, Switchboard's
recogniser 277."""
MIN_RATIO = 0.5
"""A warning is given only if the language models' weight is at least this multiple of the scores' weight."""
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
    # A score that is 0 for every best hypothesis is a rank or a difference; log-probabilities never exceed 0.
    is_relative = all(top == 0.0 for _, top, _ in sums)
    if len(sums) < MIN_LISTS or best > 0.0 or is_relative or not math.isfinite(total):
        return None
    per_word = total / sum(words for _, _, words in sums)
    return UntunedWeights(weights.name, tuple(streams), per_word) if -per_word <= MAX_NATS_PER_WORD else None
