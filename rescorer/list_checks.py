"""Check lists before anything is computed from them: their types, sizes, streams, and previous utterances."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple

from rescorer.errors import MAX_QUOTED_CHARS, InvalidList, quote, shorten
from rescorer.types import SENTENCE_END, Generated, Hypothesis, NBestList, Phrase, Utterance, Weights, Words
from rescorer.unread_scores import find_unread_fields, name_fields

MAX_PREVIOUS_WORDS = 1000
"""Largest number of words of previous utterances that models and rerankers read: the newest ones."""
MAX_PREVIOUS_CHARS = 65_536
"""Largest number of characters of previous utterances that are looked at: the newest ones."""
CUT_STEP = 16
"""If previous utterances are too long, the oldest are left out: a multiple of this number, if possible. The
first utterance that is read then stays the same for several requests of a growing conversation, so that
cached states of networks can be used again."""


class SpokenWords(NamedTuple):
    """A previous utterance as models read it."""

    words: Words  # canonical words, at least one
    confidence: float  # confidence of the utterance


def normalise_previous(
    previous: Sequence[Utterance], normalise: Callable[[str], Words]
) -> tuple[SpokenWords, ...]:
    """Return the canonical words of the newest utterances, oldest first, at most ``MAX_PREVIOUS_WORDS``.

    Only the last ``MAX_PREVIOUS_CHARS`` are looked at. Utterances without canonical words are left out. If
    the newest utterance with words exceeds the limit by itself, its last words are returned.

    Args:
        normalise: returns the canonical words of a text, which are those of its tokens one after the other.
    """
    newest: list[SpokenWords] = []
    n_words, first, left = 0, len(previous), MAX_PREVIOUS_CHARS
    while first and n_words < MAX_PREVIOUS_WORDS and left > 0:
        text = _last_chars(previous[first - 1].text, left)
        words = _last_words(text, normalise, MAX_PREVIOUS_WORDS - n_words + 1)
        if n_words + len(words) > MAX_PREVIOUS_WORDS:
            break
        newest.append(SpokenWords(words, previous[first - 1].confidence))
        n_words += len(words)
        first, left = first - 1, left - len(previous[first - 1].text)
    if not n_words and first and left > 0:  # the newest utterance with words is too long
        text = _last_chars(previous[first - 1].text, left)
        words = _last_words(text, normalise, MAX_PREVIOUS_WORDS)[-MAX_PREVIOUS_WORDS:]
        return (SpokenWords(words, previous[first - 1].confidence),)
    surplus = -first % CUT_STEP  # up to the next place at which a long past may be cut
    kept = newest[: len(newest) - surplus] if surplus < len(newest) else newest
    if not any(spoken.words for spoken in kept):
        kept = newest
    return tuple(spoken for spoken in reversed(kept) if spoken.words)


def _last_chars(text: str, n: int) -> str:
    """Return the last characters of a text, from the beginning of a token on, unless they are all of one."""
    if len(text) <= n:
        return text
    return text[-n:] if len(whole := text[-n - 1 :].split(maxsplit=1)) < 2 else whole[1]


def _last_words(text: str, normalise: Callable[[str], Words], enough: int) -> Words:
    """Return the canonical words at the end of a text: all of them, or at least ``enough``.

    Nothing is computed for the beginning of a long text, which is not read.
    """
    tokens, n = text.split(), enough
    while n < len(tokens):
        if len(words := normalise(" ".join(tokens[-n:]))) >= enough:
            return words
        n *= 2  # tokens without words
    return normalise(text)


def collect_confidences(previous: Iterable[SpokenWords]) -> tuple[float, ...]:
    """Return the confidence of each utterance, or an empty tuple if all are certain."""
    confidences = tuple(utterance.confidence for utterance in previous)
    return confidences if any(value < 1 for value in confidences) else ()


def join_history(previous: Iterable[Words], context: Words) -> Words:
    """Return the words before a sentence, for models that carry their state across sentences.

    These are the words of each previous utterance with ``SENTENCE_END`` after them, then the context.
    """
    return tuple(word for words in previous for word in (*words, SENTENCE_END)) + context


def join_words(previous: Iterable[Words], context: Words) -> Words:
    """Return the words of all previous utterances and of the context, without ends of sentences."""
    return tuple(word for words in previous for word in words) + context


MAX_WORDS = 100_000  # maximum number of words in a hypothesis or context; no real sentence is longer
NUMBERS = (float, int, numbers.Real)
"""Types of numbers, those that are fastest to check first. The last one includes the scalars of arrays."""
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
"""For each class, its fields that are scored or sent: their types, and the words for these in errors."""


def check_lengths(list_id: str, lengths: Sequence[int], context: Words, max_words: int = MAX_WORDS) -> None:
    """Raise InvalidList if a hypothesis or the context has more than ``max_words`` words.

    Args:
        lengths: number of words of each hypothesis.
    """
    if max([*lengths, len(context)]) <= max_words:
        return
    i = next((i for i, length in enumerate(lengths) if length > max_words), None)
    n_words, field = (len(context), "context") if i is None else (lengths[i], "text")
    setting = " (max_words); punctuation separates words" if max_words < MAX_WORDS else ""
    message = f"at least {n_words:,} words; expected at most {max_words:,}{setting}"
    raise InvalidList(message, list_id=list_id, hypothesis=i, field=field)


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
    """Say which streams a list has, where one is missing, and suggest weights that are safe to start from."""
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
    """Check the types of everything in a list that is scored or sent, because Python does not check them.

    Raises:
        InvalidList: a value has the wrong type; the error names it.
    """
    list_id = str(nbest.id)
    if wrong := find_wrong_type(nbest, NBestList):
        raise InvalidList(wrong[1], list_id=list_id, field=wrong[0])
    if not _have_usual_types(nbest) and (error := find_wrong_hypothesis(nbest)):
        raise error
    for name, values in nbest.streams.items():
        _check_stream(name, values, list_id)
    for name, parts, kind in (("previous", nbest.previous, Utterance), ("phrases", nbest.phrases, Phrase)):
        for index, part in enumerate(parts):
            if wrong := find_wrong_type(part, kind):
                place = f"{name}[{index}].{wrong[0]}".rstrip(".")
                raise InvalidList(wrong[1], list_id=list_id, field=place)


USUAL_TYPES = {(str, bool, type(None)), (str, bool, Generated)}
"""Types of the text, ``partial`` and ``generated`` of nearly all hypotheses."""


def _have_usual_types(nbest: NBestList) -> bool:
    """Whether all hypotheses have the usual types, which are right. This is faster than to look at each."""
    if nbest.is_plain:
        return {*map(type, nbest.texts)} <= {str}
    if not {*map(type, nbest.hypotheses)} <= {Hypothesis}:
        return False
    types = {(type(one.text), type(one.partial), type(one.generated)) for one in nbest.hypotheses}
    return types <= USUAL_TYPES


def find_wrong_types(lists: Sequence[NBestList]) -> Iterator[tuple[int, InvalidList]]:
    """Yield the index of each list with a wrong type, and the error of ``check_types``."""
    for index, nbest in enumerate(lists):
        try:
            check_types(nbest)
        except InvalidList as error:
            yield index, error


def find_wrong_hypothesis(nbest: NBestList) -> InvalidList | None:
    """Return the error about the first hypothesis with a wrong type; None if all types are right.

    Call it only after an operation on the hypotheses has failed, so that valid lists are not delayed.
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
    if not {*map(type, values)} <= {float} and not all(isinstance(value, NUMBERS) for value in values):
        index, wrong = next((i, v) for i, v in enumerate(values) if not isinstance(v, NUMBERS))
        reason = f"expected a number, got {type(wrong).__name__}"
        raise InvalidList(reason, list_id=list_id, hypothesis=index, field=field)
