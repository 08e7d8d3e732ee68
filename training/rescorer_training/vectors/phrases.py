"""Find phrases in a text: pairs of words that follow each other far more often than by chance.

Texts come in; phrases come out, and texts in which each phrase is one word, ``new_york``, from which vectors
and n-grams are trained like from any other text (Mikolov et al. 2013, arXiv 1310.4546, section 4).
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rescorer.errors import ConfigError, FormatError, quote
from rescorer.formats.io.text_io import write_text
from rescorer_training.corpus import read_lines
from rescorer_training.progress import option

Pair = tuple[str, str]
Phrases = list[dict[Pair, float]]
"""For each pass over the text, the pairs that it joins, with their scores."""
JOINT = "_"
MAX_PASSES = 10
SENTENCE_END = 0


@dataclass(frozen=True, slots=True)
class PhraseOptions:
    """How phrases are found.

    Raises:
        ConfigError: a value is out of range.
    """

    min_count: int = option(5, "Count that is taken off that of a pair, so that rare pairs are no phrases.")
    threshold: float = option(100.0, "Score above which a pair is a phrase; a lower one finds more phrases.")
    passes: int = option(
        2, "Number of passes; each joins pairs of what the passes before have joined: 2 find up to 4 words."
    )

    def __post_init__(self) -> None:
        if self.min_count < 1:
            raise ConfigError(f"min count {self.min_count}: expected 1 or more")
        if not self.threshold > 0:
            raise ConfigError(f"threshold {self.threshold}: expected a number above 0")
        if not 1 <= self.passes <= MAX_PASSES:
            raise ConfigError(f"passes {self.passes}: expected 1 to {MAX_PASSES}")


def find_phrases(read: Callable[[], Iterable[Sequence[str]]], options: PhraseOptions) -> Phrases:
    """Find the phrases of a text, as the original program does.

    The score of a pair is (c(ab) - min_count) · N / (c(a) · c(b)), for a text of N words.

    Args:
        read: function that returns the sentences of the text; it is called for each pass.
    """
    found: Phrases = []
    for _ in range(options.passes):
        pairs = _find_pairs((join_phrases(sentence, found) for sentence in read()), options)
        if not pairs:
            break
        found.append(pairs)
    return found


def _find_pairs(sentences: Iterable[Sequence[str]], options: PhraseOptions) -> dict[Pair, float]:
    numbers: defaultdict[str, int] = defaultdict(itertools.count(SENTENCE_END + 1).__next__)
    ids = np.fromiter(
        itertools.chain.from_iterable(
            itertools.chain(map(numbers.__getitem__, sentence), (SENTENCE_END,)) for sentence in sentences
        ),
        dtype=np.int64,
    )
    words = ["", *numbers]
    counts = np.bincount(ids, minlength=len(words)).astype(np.float64)
    inside = (ids[:-1] != SENTENCE_END) & (ids[1:] != SENTENCE_END)
    keys, of_pair = np.unique(ids[:-1][inside] * len(words) + ids[1:][inside], return_counts=True)
    first, second = np.divmod(keys, len(words))
    scores = (of_pair - options.min_count) * counts[1:].sum() / (counts[first] * counts[second])
    chosen = np.flatnonzero(scores > options.threshold)
    best_first = chosen[np.argsort(-scores[chosen], kind="stable")]
    return {(words[first[i]], words[second[i]]): float(scores[i]) for i in best_first}


def join_phrases(sentence: Sequence[str], phrases: Sequence[Container[Pair]]) -> list[str]:
    """Join the phrases of a sentence, from left to right, in one pass after another.

    >>> join_phrases(["the", "new", "york", "times"], [{("new", "york")}, {("new_york", "times")}])
    ['the', 'new_york_times']
    """
    words = list(sentence)
    for pairs in phrases:
        joined: list[str] = []
        is_joined = False  # whether the last word was joined in this pass
        for word in words:
            if joined and not is_joined and (joined[-1], word) in pairs:
                joined[-1] += JOINT + word
                is_joined = True
            else:
                joined.append(word)
                is_joined = False
        words = joined
    return words


def write_phrases(path: Path, phrases: Phrases) -> None:
    """Write a line per pair: the number of the pass, the score and the two parts, with tabs between."""
    write_text(
        path,
        "".join(
            f"{number}\t{score:.4f}\t{first}\t{second}\n"
            for number, pairs in enumerate(phrases, start=1)
            for (first, second), score in pairs.items()
        ),
    )


def read_phrases(path: Path) -> Phrases:
    """Read a file of ``write_phrases``.

    Raises:
        FormatError: the file cannot be read, has no phrase, or a line is not one.
    """
    phrases: Phrases = []
    for line_number, line in enumerate(read_lines(path), start=1):
        match line.rstrip("\n").split("\t"):
            case [number, score, first, second] if _is_next(number, len(phrases)) and first and second:
                if int(number) > len(phrases):
                    phrases.append({})
                with suppress(ValueError):
                    phrases[-1][first, second] = float(score)
                    continue
        raise FormatError(
            f"expected the number of a pass, a score and two words, with tabs, got {quote(line.strip())}",
            file=str(path),
            line=line_number,
        )
    if not phrases:
        raise FormatError("no phrases in the file", file=str(path))
    return phrases


def _is_next(number: str, n_passes: int) -> bool:
    """Whether this is the number of the present pass, or of the next one."""
    return (
        number.isdecimal() and len(number) <= 2 and n_passes <= int(number) <= n_passes + 1 and number != "0"
    )


def join_sentences(sentences: Iterable[Sequence[str]], phrases: Sequence[Container[Pair]]) -> Iterator[str]:
    """Yield the line of each sentence, with its phrases joined."""
    for sentence in sentences:
        yield " ".join(join_phrases(sentence, phrases)) + "\n"
