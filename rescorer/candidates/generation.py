"""Make hypotheses that a list lacks, by putting phrases in place of spans that sound like them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, combinations, pairwise
from typing import NamedTuple

import numpy as np

from rescorer.candidates.phone_distance import SILENCE, find_similar
from rescorer.candidates.phones import UNIT, Phones
from rescorer.candidates.pronunciation import Pronouncer
from rescorer.candidates.replacement import replace_spans
from rescorer.conversation import Generated, Phrase
from rescorer.errors import InvalidList
from rescorer.score_combination import GENERATED, SOUND_MATCH
from rescorer.trie import Words
from rescorer.types import Hypothesis, NBestList

Normalise = Callable[[str], Words]
MAX_SOUNDS = 2_000
"""Largest number of phrases, with their other spellings, of a list for which hypotheses are generated. The
search takes one core half a second for so many."""
MAX_PHRASE_CHARS = 100
"""Phrases with longer texts are not generated, and longer spellings are not searched for."""
MAX_SEARCHED_WORDS = 1_000
"""Hypotheses are searched as long as they have no more words together."""
MAX_REPLACED = 3
"""Largest number of spans that are replaced in a hypothesis."""
MAX_COMBINED_SPANS = 12
"""Number of proposals for a hypothesis of which two or three are combined: at most 286 ways."""
KEPT_SETS = 16
"""Number of sets of phrases whose sounds are kept: the lists of a conversation have the same phrases."""
BARRIER = bytes([SILENCE])
"""Stands for words that cannot be pronounced."""


@dataclass(frozen=True, slots=True)
class GenerationSettings:
    """How many hypotheses are generated for a list, and how near they must sound."""

    top: int = 5
    """Number of hypotheses, the recogniser's best, whose spans are compared with the phrases."""
    max_new: int = 10
    """Largest number of new hypotheses of a list."""
    max_combined: int = 5
    """Largest number of further hypotheses, in which several of the spans are replaced."""
    max_distance: float = 0.4
    """Largest distance per phone of the phrase, of the kind of ``Generated.distance``."""


DEFAULT = GenerationSettings()


class Sound(NamedTuple):
    """A way to say a phrase."""

    phrase: str
    """Text of the phrase."""
    phones: Phones
    words: tuple[Words, ...]
    """Canonical words of the phrase and its other spellings; where they stand, nothing is to be replaced."""


class SpokenText(NamedTuple):
    """A hypothesis, word by word."""

    words: tuple[Words, ...]
    """Canonical words of each word of the text, separated by white space; none for fillers."""
    phones: Phones
    starts: dict[int, int]
    """Index of the word that begins after a number of phones."""
    ends: dict[int, int]
    """Index after the word that ends after a number of phones."""


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
        self._sounds_of = lru_cache(KEPT_SETS)(self._pronounce_phrases)

    def extend(self, nbest: NBestList, phrases: tuple[Phrase, ...]) -> NBestList:
        """Return a list with the hypotheses that it lacks at its end, or the list itself if there are none.

        A new hypothesis has the scores and fields of its source; only the times of the new words differ.

        Args:
            phrases: those that are expected in the list.

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
        """Return the hypotheses that a list lacks, those that sound most like what was heard first.

        Raises:
            InvalidList: there are too many phrases.
        """
        count = sum(1 + len(phrase.spellings) for phrase in phrases)
        if count > MAX_SOUNDS:
            message = f"{count:,} phrases and spellings; expected at most {MAX_SOUNDS:,} to generate from"
            raise InvalidList(message, list_id=nbest.id, field="phrases")
        proposals = self._propose(nbest, self._sounds_of(phrases))
        known = {self._normalise(hypothesis.text) for hypothesis in nbest.hypotheses}
        single = self._build_new(nbest, _alternate(proposals), self.settings.max_new, known)
        combined = combine(proposals) if single else ()
        return single + self._build_new(nbest, combined, self.settings.max_combined, known)

    def _build_new(
        self, nbest: NBestList, proposals: Iterable[Generated], count: int, known: set[Words]
    ) -> list[Hypothesis]:
        """Make hypotheses, at most ``count``, whose words are not known; they are from then on."""
        new: list[Hypothesis] = []
        for made in proposals:
            if len(new) == count:
                break
            hypothesis = _build(nbest.hypotheses[made.source], made)
            if (words := self._normalise(hypothesis.text)) not in known:
                known.add(words)
                new.append(hypothesis)
        return new

    def _pronounce_phrases(self, phrases: tuple[Phrase, ...]) -> list[Sound]:
        sounds = []
        for phrase in phrases:
            if len(phrase.text) > MAX_PHRASE_CHARS:
                continue
            ways = tuple(filter(None, map(self._normalise, (phrase.text, *phrase.spellings))))
            short = (words for words in ways if sum(map(len, words)) <= MAX_PHRASE_CHARS)
            pronounced = dict.fromkeys(map(self._pronouncer.pronounce_all, short))
            sounds += [Sound(phrase.text, phones, ways) for phones in pronounced if phones]
        return sounds

    def _propose(self, nbest: NBestList, sounds: Sequence[Sound]) -> list[Generated]:
        """All spans of the best hypotheses that sound like a phrase, those that sound most like it first."""
        texts = self._pronounce_texts([h.text for h in nbest.hypotheses[: self.settings.top]])
        boundaries = [sorted(text.starts.keys() | text.ends.keys()) for text in texts]
        matches = find_similar(
            [text.phones for text in texts],
            boundaries,
            [sound.phones for sound in sounds],
            self.settings.max_distance,
        )
        proposals = []
        for match in matches:
            text, sound = texts[match.text], sounds[match.phrase]
            if match.start not in text.starts or match.end not in text.ends:
                continue  # only fillers begin or end there
            start, end = text.starts[match.start], text.ends[match.end]
            if any(_overlaps(text.words, start, end, words) for words in sound.words):
                continue
            written = " ".join(nbest.hypotheses[match.text].text.split()[start:end])
            distance = match.distance / UNIT
            proposals.append(
                Generated(match.text, start, end, written, sound.phrase, distance, len(sound.phones))
            )
        return _drop_overlapping(proposals)

    def _pronounce_texts(self, texts: Sequence[str]) -> list[SpokenText]:
        """Pronounce the first texts, as long as they have ``MAX_SEARCHED_WORDS`` words together at most."""
        tokens = [text.split(maxsplit=MAX_SEARCHED_WORDS) for text in texts]
        ends = accumulate(map(len, tokens))
        return [
            self._pronounce_tokens(part)
            for part, end in zip(tokens, ends, strict=True)
            if end <= MAX_SEARCHED_WORDS
        ]

    def _pronounce_tokens(self, tokens: Sequence[str]) -> SpokenText:
        words = tuple(map(self._normalise, tokens))
        phones, starts, ends = b"", {}, {}
        for index, part in enumerate(words):
            if part:
                starts[len(phones)] = index
                phones += self._pronouncer.pronounce_all(part) or BARRIER
                ends[len(phones)] = index + 1
        return SpokenText(words, phones, starts, ends)


def components_of_generated(hypotheses: Sequence[Hypothesis]) -> dict[str, np.ndarray]:
    """The components that generated hypotheses have, (H,) float64 by name; none for a list without any."""
    made = [hypothesis.generated for hypothesis in hypotheses]
    if made[-1] is None:  # generated ones are the last
        return {}
    return {
        GENERATED: np.array([0.0 if one is None else float(len(one.parts)) for one in made]),
        SOUND_MATCH: np.array([0.0 if one is None else one.sound_match for one in made]),
    }


def combine(proposals: Sequence[Generated]) -> list[Generated]:
    """Replacements of two or three spans of a source, which do not overlap; those for which sound says most
    first, of equal ones those of fewer spans, then of better sources and earlier spans.

    Args:
        proposals: those that say most first; of each source, the first ``MAX_COMBINED_SPANS`` are combined.
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
    return sorted(combined, key=_rank_combined)


def _rank_combined(made: Generated) -> tuple[float, int, int, list[int]]:
    return -made.sound_match, len(made.parts), made.source, [part.start for part in made.parts]


def _build(source: Hypothesis, made: Generated) -> Hypothesis:
    text, fields = replace_spans(source.text, source.fields, made)
    return replace(source, text=text, fields=fields, generated=made)


def _alternate(proposals: Iterable[Generated]) -> list[Generated]:
    """Put the first proposal of each phrase and span before the second ones, from other hypotheses."""
    seen = Counter[tuple[str, str]]()
    turns = []
    for made in proposals:
        key = made.phrase, made.heard
        turns.append((seen[key], made))
        seen[key] += 1
    return [made for _, made in sorted(turns, key=lambda turn: turn[0])]


def _drop_overlapping(proposals: Iterable[Generated]) -> list[Generated]:
    """Sort by what sound says for each, and drop spans that overlap better ones for the same phrase."""
    kept: list[Generated] = []
    taken: dict[tuple[int, str], list[Generated]] = {}
    for made in sorted(proposals, key=lambda made: (-made.sound_match, made.source, made.start)):
        others = taken.setdefault((made.source, made.phrase), [])
        if all(made.end <= other.start or other.end <= made.start for other in others):
            others.append(made)
            kept.append(made)
    return kept


def _overlaps(words: Sequence[Words], start: int, end: int, phrase: Words) -> bool:
    """Whether a phrase stands in a text where some of its words are among those from ``start`` to ``end``.

    Args:
        words: canonical words of each word of the text.
    """
    before = [word for part in words[:start] for word in part]
    span = [word for part in words[start:end] for word in part]
    after = [word for part in words[end:] for word in part]
    first = max(0, len(before) - len(phrase) + 1)
    last = len(before) + len(span) + len(phrase) - 1
    near = (*before, *span, *after)[first:last]
    return any(near[i : i + len(phrase)] == phrase for i in range(len(near) - len(phrase) + 1))
