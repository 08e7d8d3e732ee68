"""Make an archive from real lists: copies with perturbed words, in an order that keeps them apart."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rescorer.errors import ConfigError
from rescorer.formats.nbest.jsonlines_output import encode_list
from rescorer.types import Hypothesis, NBestList

REPLACED_SHARE = 0.1
"""Share of the different words of a copy that are replaced in all of its hypotheses."""
EDITED_SHARE = 0.3
"""Share of the hypotheses of a copy that get a word replaced, swapped with the next, or dropped."""
FILLED_STEP = 1.0
"""Nats by which the scores of a hypothesis that fills a list up are lower than those of its source."""
ID_DIGITS = 7


@dataclass(frozen=True, slots=True)
class ArchiveFile:
    """A file of a made archive."""

    path: Path
    lists: int
    hypotheses: int
    n_bytes: int
    sha256: str


class ListMaker:
    """Draws perturbed copies of lists; the same seed and number always give the same copy.

    Args:
        hypotheses: number of hypotheses of each copy; longer lists are cut, shorter ones filled up.
    """

    def __init__(self, lists: Sequence[NBestList], hypotheses: int, seed: int) -> None:
        names = sorted({name for nbest in lists for name in nbest.streams})
        if not all(sorted(nbest.streams) == names for nbest in lists):
            raise ConfigError(f"all lists need the same score streams; some lack one of {', '.join(names)}")
        self._lists = [nbest for nbest in lists if nbest.hypotheses]
        self._texts = [[item.text.split() for item in nbest.hypotheses] for nbest in self._lists]
        self._words = [word for texts in self._texts for words in texts for word in words if _is_word(word)]
        if len(self._lists) < 2 or not self._words:
            raise ConfigError("expected at least two lists with words")
        self._n_hypotheses, self._seed = hypotheses, seed

    @property
    def min_distance(self) -> int:
        """Smallest number of lists from one copy of a list to the next."""
        return len(self._lists) // 2 + 1

    def make(self, count: int) -> Iterator[NBestList]:
        """Yield copies, each with an id of its own."""
        order = order_copies(len(self._lists), random.Random(f"order {self._seed}"))
        for number, index in zip(range(count), order, strict=False):
            yield self._copy(index, number)

    def _copy(self, index: int, number: int) -> NBestList:
        rng = random.Random(f"{self._seed} {number}")
        nbest, texts = self._lists[index], self._texts[index][: self._n_hypotheses]
        known = sorted({word for words in texts for word in words if _is_word(word)})
        others = {word: rng.choice(self._words) for word in known if rng.random() < REPLACED_SHARE}
        copied = [[others.get(word, word) for word in words] for words in texts]
        spoken = [
            " ".join(self._edit(words, rng) if rng.random() < EDITED_SHARE else words) for words in copied
        ]
        sources = list(range(len(spoken)))
        while len(spoken) < self._n_hypotheses:
            sources.append(len(spoken) % len(copied))
            spoken.append(" ".join(self._edit(copied[sources[-1]], rng)))
        lowered = [FILLED_STEP * (place // len(copied)) for place in range(len(spoken))]
        streams = {
            name: tuple(values[source] - step for source, step in zip(sources, lowered, strict=True))
            for name, values in nbest.streams.items()
        }
        hypotheses = tuple(map(Hypothesis, spoken))
        return replace(
            nbest,
            id=f"{nbest.id}-{number:0{ID_DIGITS}}",
            hypotheses=hypotheses,
            streams=streams,
            reference=None,
            fields={},
        )

    def _edit(self, words: list[str], rng: random.Random) -> list[str]:
        """Replace, swap or drop a word; add one if there is none."""
        if not words:
            return [rng.choice(self._words)]
        words, place = list(words), rng.randrange(len(words))
        match rng.randrange(3):
            case 0:
                words[place] = rng.choice(self._words)
            case 1:
                words[place - 1], words[place] = words[place], words[place - 1]
            case _:
                del words[place]
        return words


def _is_word(word: str) -> bool:
    """Whether a word is neither a tag, such as ``<sil>``, nor a noise, such as ``[NOISE]``."""
    return word[0].isalpha()


def order_copies(n: int, rng: random.Random) -> Iterator[int]:
    """Yield numbers below ``n`` without end, the same one again only after more than half of the others.

    Each half is shuffled by itself, and the halves take turns, so that all of one half lie between two
    numbers of the other.
    """
    halves = [list(range(n // 2, n)), list(range(n // 2))]
    while True:
        for half in halves:
            rng.shuffle(half)
            yield from half


def write_archive(maker: ListMaker, count: int, folder: Path, n_files: int) -> Iterator[ArchiveFile]:
    """Write an archive as files of plain JSON lines; yield each when it is complete."""
    folder.mkdir(parents=True, exist_ok=True)
    lists, written = maker.make(count), 0
    for number in range(n_files):
        path, digest = folder / f"archive-{number:02}.jsonl", hashlib.sha256()
        n_lists, n_hypotheses, n_bytes = (number + 1) * count // n_files - written, 0, 0
        with open(path, "wb") as stream:
            for _ in range(n_lists):
                nbest = next(lists)
                line = encode_list(nbest).encode() + b"\n"
                n_hypotheses += len(nbest.hypotheses)
                n_bytes += stream.write(line)
                digest.update(line)
        written += n_lists
        yield ArchiveFile(path, n_lists, n_hypotheses, n_bytes, digest.hexdigest())
