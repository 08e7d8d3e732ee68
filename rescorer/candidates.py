"""Generate hypotheses that a list lacks, by replacing spans of its hypotheses by phrases that sound alike.

A list, its phrases and a pronunciation dictionary come in. The list goes out with new hypotheses at its end;
each says which phrase replaces which span, and how different the two sound.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from itertools import accumulate, chain, combinations, islice, pairwise
from math import comb
from operator import or_
from typing import Any, NamedTuple

from rescorer.consensus import WORDS_FIELD, is_time
from rescorer.errors import InvalidList
from rescorer.sounds import MAX_MATCHES, SILENCE, UNIT, Phones, Pronouncer, find_similar
from rescorer.sounds import estimate_steps as estimate_search_steps
from rescorer.trie import Words
from rescorer.types import Generated, Hypothesis, NBestList, Phrase

TOKEN = re.compile(r"\S+")
WORD_CHARACTER = re.compile(r"\w")
TIME_DECIMALS = 6


def replace_spans(text: str, fields: Mapping[str, Any], made: Generated) -> tuple[str, Mapping[str, Any]]:
    """Return the text and the fields of a generated hypothesis, made from those of its source."""
    for part in reversed(made.parts):  # the last one first: words before it keep their indices
        replaced = replace_words(text, part.start, part.end, part.phrase)
        text, fields = replaced, replace_fields(fields, text, replaced, part)
    return text, fields


def replace_words(text: str, start: int, end: int, phrase: str) -> str:
    """Replace words of a text by a phrase.

    White space, all other words, and punctuation next to the span stay as they are. In a text without small
    letters, the phrase is written in capitals; at the beginning of a text with a first capital, its first
    letter is a capital.

    Args:
        start, end: index of the first word (in the sense of ``split``) to replace, and index after the last
            one.
    """
    spans = find_tokens(text)
    return put(text, spans, start, end, fit_phrase(text, spans, start, end, phrase))


def find_tokens(text: str) -> list[tuple[int, int]]:
    """Return where each word of a text, separated by white space, begins and ends."""
    return [token.span() for token in TOKEN.finditer(text)]


def put(text: str, spans: Sequence[tuple[int, int]], start: int, end: int, middle: str) -> str:
    """Put the text ``middle`` in place of words; the other arguments are those of ``fit_phrase``."""
    return f"{text[: spans[start][0]]}{middle}{text[spans[end - 1][1] :]}"


def fit_phrase(text: str, spans: Sequence[tuple[int, int]], start: int, end: int, phrase: str) -> str:
    """Return a phrase with the capitals and punctuation that it needs in a text; see ``replace_words``.

    Args:
        spans: where each word of the text begins and ends.
    """
    first, last = (text[slice(*spans[place])] for place in (start, end - 1))
    before, after = first[: _before_word(first)], last[_after_word(last) :]
    inner = " ".join(phrase.split())
    if text.isupper():
        inner = inner.upper()
    elif start == 0 and first[len(before) : len(before) + 1].isupper():
        inner = inner[:1].upper() + inner[1:]
    if before and inner.startswith(before):
        before = ""
    if after and inner.endswith(after):
        after = ""
    return f"{before}{inner}{after}"


def _before_word(token: str) -> int:
    """Number of characters before the first letter or digit; all characters if there is none."""
    found = WORD_CHARACTER.search(token)
    return found.start() if found else len(token)


def _after_word(token: str) -> int:
    """Index after the last letter or digit; the length of the token if there is none."""
    found = WORD_CHARACTER.search(token[::-1])
    return len(token) - found.start() if found else len(token)


def replace_fields(fields: Mapping[str, Any], source: str, text: str, made: Generated) -> Mapping[str, Any]:
    """Return the fields of a generated hypothesis: those of its source, with ``words`` changed to the new
    text.

    The time of the replaced span is divided among the new words in proportion to their letters. The new
    hypothesis has no ``words`` if those of the source do not fit the source's text, or have no times.

    Args:
        fields: fields of the source, plain data or a protobuf ``Struct``.
        source, text: texts of the source and of the new hypothesis.
    """
    if WORDS_FIELD not in fields:
        return fields
    others = {name: fields[name] for name in fields if name != WORDS_FIELD}
    words, new_words = source.split(), text.split()
    entries = fields[WORDS_FIELD]
    if not isinstance(entries, Sequence) or isinstance(entries, str) or len(entries) != len(words):
        return others
    for entry, word in zip(entries, words, strict=True):
        if not isinstance(entry, Mapping) or "word" not in entry or entry["word"] != word:
            return others
    entries = [*entries]  # a protobuf ListValue cannot be cut
    times = _find_times(entries[made.start : made.end])
    if times is None:
        return others
    n_after = len(words) - made.end
    new = _share_time(new_words[made.start : len(new_words) - n_after], *times)
    return {**others, WORDS_FIELD: [*entries[: made.start], *new, *entries[made.end :]]}


def _find_times(entries: Sequence[Mapping[str, Any]]) -> tuple[float, float] | None:
    """The start of the first word and the end of the last one, in seconds; None unless all have times."""
    if not all("start_s" in entry and "duration_s" in entry for entry in entries):
        return None
    if not all(is_time(entry["start_s"]) and is_time(entry["duration_s"]) for entry in entries):
        return None
    start_s, end_s = entries[0]["start_s"], entries[-1]["start_s"] + entries[-1]["duration_s"]
    return (start_s, end_s) if is_time(end_s) and start_s <= end_s else None


def _share_time(words: Sequence[str], start_s: float, end_s: float) -> list[dict[str, Any]]:
    per_letter_s = (end_s - start_s) / max(1, sum(map(len, words)))
    entries: list[dict[str, Any]] = []
    for word in words:
        duration_s = len(word) * per_letter_s
        times = {"start_s": round(start_s, TIME_DECIMALS), "duration_s": round(duration_s, TIME_DECIMALS)}
        entries.append({"word": word, **times})
        start_s += duration_s
    return entries


Normalise = Callable[[str], Words]
MAX_SOUNDS = 2_000
"""Largest number of phrases, including their other spellings, that a list may have if hypotheses are to be
generated. The search for so many takes one core half a second."""
MAX_PHRASE_CHARS = 100
"""Phrases with longer texts are not proposed, and longer spellings are not searched for."""
PHONES_PER_LETTER = 2  # largest number of phones of a letter in a word
MAX_SEARCHED_WORDS = 1_000  # best hypotheses are searched until they have this many words together
MAX_SEARCHED_CHARS = 20_000  # or until they have this many characters together
MAX_REPLACED_CHARS = 400  # longer spans, which are mostly fillers or punctuation, are not replaced
MAX_REPLACED = 3  # largest number of spans that are replaced in a hypothesis
MAX_COMBINED_SPANS = 12  # number of proposals for a hypothesis that take part in combinations
MAX_COMBINATIONS = sum(comb(MAX_COMBINED_SPANS, size) for size in range(2, MAX_REPLACED + 1))
"""Largest number of combinations of two or three proposals for a hypothesis: 286."""
KEPT_SETS = 16
"""Number of sets of phrases whose sounds are kept for later lists: those of a conversation have the same."""
BARRIER = bytes([SILENCE])  # stands for words that cannot be pronounced


@dataclass(frozen=True, slots=True)
class GenerationSettings:
    """Limits of generation: how many hypotheses are made for a list, and how similar they must sound."""

    top: int = 5
    """Number of the recogniser's best hypotheses in which phrases are searched."""
    max_new: int = 10
    """Largest number of new hypotheses of a list in which one span is replaced."""
    max_combined: int = 5
    """Largest number of further new hypotheses, in which several of these spans are replaced."""
    max_distance: float = 0.4
    """Largest distance per phone of the phrase; see ``Generated.distance``."""


DEFAULT = GenerationSettings()


class Sound(NamedTuple):
    """A way to say a phrase."""

    phrase: int  # index of the phrase
    phones: Phones


class SpokenPhrases(NamedTuple):
    """Phrases, and the ways to say them."""

    texts: tuple[str, ...]
    ways: tuple[tuple[Words, ...], ...]
    """For each phrase, its canonical words and those of its other spellings. Where a text has these already,
    the phrase replaces none of their words."""
    sounds: tuple[Sound, ...]


class SpokenText:
    """A hypothesis word by word: the canonical words and the phones of each word.

    Args:
        words: canonical words of each word of the text; none for fillers.
        sounds: phones of each word of the text; ``BARRIER`` if it cannot be pronounced.
    """

    def __init__(self, text: str, words: Sequence[Words], sounds: Sequence[Phones]) -> None:
        self.text, self.words, self.phones = text, tuple(words), b"".join(sounds)
        self.spans = find_tokens(text)
        """Where each word begins and ends."""
        spoken = [index for index, part in enumerate(self.words) if part]
        places = [0, *accumulate(map(len, sounds))]
        self.starts = {places[index]: index for index in spoken}
        """Index of the word that begins after a number of phones."""
        self.ends = {places[index + 1]: index + 1 for index in spoken}
        """Index after the word that ends after a number of phones."""
        self._flat = tuple(chain.from_iterable(self.words))
        self._begins = [0, *accumulate(map(len, self.words))]

    def mask(self, start: int, end: int) -> int:
        """Return the canonical words of a span as bits: bit i is set if the i-th canonical word of the text
        is in the span."""
        return (1 << self._begins[end]) - (1 << self._begins[start])

    def find_known(self, ways: Collection[Words]) -> dict[Words, int]:
        """Return those ``ways`` (sequences of words) that occur in the text, each with the bits of its
        words."""
        found: dict[Words, int] = {}
        for length in {len(way) for way in ways}:
            for begin in range(len(self._flat) - length + 1):
                if (part := self._flat[begin : begin + length]) in ways:
                    found[part] = found.get(part, 0) | ((1 << length) - 1) << begin
        return found

    def written(self, start: int, end: int) -> str:
        return " ".join(self.text[begin:stop] for begin, stop in self.spans[start:end])

    def words_with(self, made: Generated, normalise: Normalise) -> Words:
        """Return the canonical words of the text after the replacements ``made``."""
        text, parts, last = self.text, [], len(self.words)
        for part in reversed(made.parts):
            middle = fit_phrase(text, self.spans, part.start, part.end, part.phrase)
            text = put(text, self.spans, part.start, part.end, middle)
            parts += [*reversed(self.words[part.end : last]), normalise(middle)]
            last = part.start
        parts += reversed(self.words[:last])
        return tuple(chain.from_iterable(reversed(parts)))


class Generator:
    """Makes hypotheses for lists with phrases.

    Args:
        normalise: converts a text to canonical words.
        pronouncer: says how canonical words sound.
    """

    def __init__(
        self, normalise: Normalise, pronouncer: Pronouncer, settings: GenerationSettings = DEFAULT
    ) -> None:
        self._normalise, self._pronouncer, self.settings = normalise, pronouncer, settings
        self._spoken = lru_cache(KEPT_SETS)(self._pronounce_phrases)

    def extend(self, nbest: NBestList, phrases: tuple[Phrase, ...]) -> NBestList:
        """Return the list with generated hypotheses added at its end, or the list itself if there are none.

        A generated hypothesis has the scores and fields of its source, but its new words have new times.

        Raises:
            InvalidList: there are too many phrases.
        """
        new = self.generate(nbest, phrases)
        if not new:
            return nbest
        sources = [made.generated.source for made in new if made.generated is not None]
        streams = {
            name: (*values, *(values[source] for source in sources)) for name, values in nbest.streams.items()
        }
        return replace(nbest, hypotheses=(*nbest.hypotheses, *new), streams=streams)

    def generate(self, nbest: NBestList, phrases: tuple[Phrase, ...]) -> list[Hypothesis]:
        """Return new hypotheses for a list, beginning with those that sound most like what was heard.

        Raises:
            InvalidList: there are too many phrases.
        """
        _check_count(nbest, phrases)
        texts, spoken = self._pronounce_texts(nbest), self._spoken(phrases)
        proposals = self._propose(texts, spoken)
        known = {self._normalise(text) for text in {hypothesis.text for hypothesis in nbest.hypotheses}}
        sources = dict(enumerate(texts))
        single = self._choose(sources, _alternate(proposals), self.settings.max_new, known)
        combined = combine(proposals) if single else ()
        chosen = single + self._choose(sources, combined, self.settings.max_combined, known)
        return [_build(nbest.hypotheses[made.source], made) for made in chosen]

    def estimate_steps(self, nbest: NBestList, phrases: tuple[Phrase, ...]) -> int:
        """Return an upper bound of the steps of ``generate``, with the same arguments.

        The bound follows from what is known before the search: phones, words, and places where a word may
        begin. All other work is in proportion to the texts, or has constant bounds.

        Raises:
            InvalidList: there are too many phrases.
        """
        _check_count(nbest, phrases)
        texts, spoken = self._pronounce_texts(nbest), self._spoken(phrases)
        n_places = sum(len(text.starts) + 1 for text in texts)
        lengths = [len(sound.phones) for sound in spoken.sounds]
        n_ways = sum(map(len, spoken.ways))
        n_lengths = len({len(way) for ways in spoken.ways for way in ways})
        n_words = sum(len(part) for text in texts for part in text.words)
        n_proposals = min(MAX_MATCHES, n_places * len(lengths)) + MAX_COMBINATIONS * len(texts)
        search = estimate_search_steps(n_places, lengths, self.settings.max_distance)
        return search + n_words * n_lengths + n_ways * len(texts) + n_proposals * max(1, n_words)

    def _choose(
        self, texts: Mapping[int, SpokenText], proposals: Iterable[Generated], count: int, known: set[Words]
    ) -> list[Generated]:
        """Choose up to ``count`` proposals whose words are not in ``known``, and add them to ``known``."""
        chosen: list[Generated] = []
        for made in proposals:
            if len(chosen) == count:
                break
            if (words := texts[made.source].words_with(made, self._normalise)) not in known:
                known.add(words)
                chosen.append(made)
        return chosen

    def _pronounce_phrases(self, phrases: tuple[Phrase, ...]) -> SpokenPhrases:
        sayable = [phrase for phrase in phrases if len(phrase.text) <= MAX_PHRASE_CHARS]
        ways = [tuple(filter(None, map(self._normalise, (one.text, *one.spellings)))) for one in sayable]
        short = [[words for words in part if sum(map(len, words)) <= MAX_PHRASE_CHARS] for part in ways]
        pronounced = iter(self._pronouncer.pronounce_each(chain.from_iterable(short)))
        sounds = [
            Sound(index, phones)
            for index, part in enumerate(short)
            for phones in dict.fromkeys(islice(pronounced, len(part)))
            if phones
        ]
        return SpokenPhrases(tuple(phrase.text for phrase in sayable), tuple(ways), tuple(sounds))

    def _propose(self, texts: Sequence[SpokenText], spoken: SpokenPhrases) -> list[Generated]:
        """Find all spans of the searched hypotheses that sound like a phrase, the most similar ones first."""
        matches = find_similar(
            [text.phones for text in texts],
            [sorted(text.starts.keys() | text.ends.keys()) for text in texts],  # where words begin or end
            [sound.phones for sound in spoken.sounds],
            self.settings.max_distance,
        )
        matched = {spoken.sounds[match.phrase].phrase for match in matches}
        ways = {way for phrase in matched for way in spoken.ways[phrase]}
        known = [text.find_known(ways) for text in texts]
        covered: dict[tuple[int, int], int] = {}
        proposals = []
        for match in matches:
            text, sound = texts[match.text], spoken.sounds[match.phrase]
            if match.start not in text.starts or match.end not in text.ends:
                continue  # only fillers begin or end there
            start, end = text.starts[match.start], text.ends[match.end]
            key = match.text, sound.phrase
            if key not in covered:
                parts = (known[match.text].get(way, 0) for way in spoken.ways[sound.phrase])
                covered[key] = reduce(or_, parts)
            n_chars = text.spans[end - 1][1] - text.spans[start][0]  # with white space
            if covered[key] & text.mask(start, end) or n_chars > MAX_REPLACED_CHARS:
                continue
            written, distance = text.written(start, end), match.distance / UNIT
            phrase, n_phones = spoken.texts[sound.phrase], len(sound.phones)
            proposals.append(Generated(match.text, start, end, written, phrase, distance, n_phones))
        return _drop_overlapping(proposals)

    def _pronounce_texts(self, nbest: NBestList) -> list[SpokenText]:
        """Pronounce the best hypotheses, as many as the limits on number, words and characters permit."""
        texts = [hypothesis.text for hypothesis in nbest.hypotheses[: self.settings.top]]
        tokens = [text[: MAX_SEARCHED_CHARS + 1].split() for text in texts]
        n_words, n_chars = accumulate(map(len, tokens)), accumulate(map(len, texts))
        searched = [
            (text, [self._normalise(token) for token in part])
            for text, part, words, chars in zip(texts, tokens, n_words, n_chars, strict=True)
            if words <= MAX_SEARCHED_WORDS and chars <= MAX_SEARCHED_CHARS
        ]
        phones = iter(self._pronouncer.pronounce_each(part for _, words in searched for part in words))
        sounds = ([next(phones) or BARRIER * bool(part) for part in words] for _, words in searched)
        return [SpokenText(text, words, said) for (text, words), said in zip(searched, sounds, strict=True)]


def estimate_steps_by_size(
    texts: Sequence[str], phrases: Sequence[Phrase], max_words: Callable[[str], int]
) -> int:
    """Return an upper bound of the steps of ``Generator.generate`` for a list, before its words are known.

    It allows for ``PHONES_PER_LETTER``, which only names of letters exceed.

    Args:
        texts: texts of the hypotheses, best first.
        phrases: phrases that were not checked yet, or messages with the same fields.
        max_words: returns an upper bound of the words of a text.
    """
    ways = [way for phrase in phrases for way in (phrase.text, *phrase.spellings)][:MAX_SOUNDS]
    if not ways:
        return 0
    searched = texts[: DEFAULT.top]
    n_words = sum(min(MAX_SEARCHED_WORDS, max_words(text)) for text in searched)
    n_words = min(n_words, MAX_SEARCHED_CHARS)
    lengths = [PHONES_PER_LETTER * min(len(way), MAX_PHRASE_CHARS) for way in ways]
    n_places = n_words + len(searched)
    n_proposals = min(MAX_MATCHES, n_places * len(ways)) + MAX_COMBINATIONS * len(searched)
    search = estimate_search_steps(n_places, lengths, DEFAULT.max_distance)
    n_lengths = max(map(max_words, ways))
    return search + n_words * (n_lengths + n_proposals) + len(ways) * len(searched)


def _check_count(nbest: NBestList, phrases: Sequence[Phrase]) -> None:
    count = sum(1 + len(phrase.spellings) for phrase in phrases)
    if count > MAX_SOUNDS:
        message = f"{count:,} phrases and spellings; expected at most {MAX_SOUNDS:,} to generate from"
        raise InvalidList(message, list_id=nbest.id, field="phrases")


def combine(proposals: Sequence[Generated]) -> list[Generated]:
    """Combine replacements of two or three spans of the same source that do not overlap.

    Of each source, only the first ``MAX_COMBINED_SPANS`` proposals are combined. The result is sorted by
    ``sound_match``, the highest first. Ties go to fewer spans, then to better sources, then to earlier spans.
    """
    by_source: dict[int, list[Generated]] = {}
    for made in proposals:
        found = by_source.setdefault(made.source, [])
        if len(found) < MAX_COMBINED_SPANS:
            found.append(made)
    combined = []
    for found in by_source.values():
        in_order = sorted(found, key=lambda made: (made.start, made.end, made.phrase))
        for size in range(2, MAX_REPLACED + 1):
            for first, *others in combinations(in_order, size):
                if all(one.end <= next_one.start for one, next_one in pairwise((first, *others))):
                    combined.append(replace(first, further=tuple(others)))

    def rank(made: Generated) -> tuple[float, int, int, list[int]]:
        return -made.sound_match, len(made.parts), made.source, [part.start for part in made.parts]

    return sorted(combined, key=rank)


def _build(source: Hypothesis, made: Generated) -> Hypothesis:
    text, fields = replace_spans(source.text, source.fields, made)
    return replace(source, text=text, fields=fields, generated=made)


def _alternate(proposals: Iterable[Generated]) -> list[Generated]:
    """Put the first proposal for each phrase and span before equal ones that come from other hypotheses."""
    seen = Counter[tuple[str, str]]()
    turns = []
    for made in proposals:
        key = made.phrase, made.heard
        turns.append((seen[key], made))
        seen[key] += 1
    return [made for _, made in sorted(turns, key=lambda turn: turn[0])]


def _drop_overlapping(proposals: Iterable[Generated]) -> list[Generated]:
    """Sort proposals by ``sound_match``; where spans for the same phrase overlap, keep only the best."""
    kept: list[Generated] = []
    taken: dict[tuple[int, str], int] = {}  # bits of the words of these spans
    for made in sorted(proposals, key=lambda made: (-made.sound_match, made.source, made.start)):
        key, span = (made.source, made.phrase), (1 << made.end) - (1 << made.start)
        if not taken.get(key, 0) & span:
            taken[key] = taken.get(key, 0) | span
            kept.append(made)
    return kept
