"""Read published outputs of recognisers on LibriSpeech with their biasing lists, and merge them into lists.

The files are those of Le et al., "Contextualized Streaming End-to-End Speech Recognition with Trie-Based Deep
Biasing and Shallow Fusion" (Interspeech 2021): a table of references, with the rare words of each and a list
of 100 words that has them, and one table for each recogniser.
"""

from __future__ import annotations

import gzip
import json
import math
import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rescorer.conversation import Phrase
from rescorer.text import Normaliser
from rescorer.trie import Words
from rescorer.types import Hypothesis, NBestList

PARTS = ("test-clean", "test-other")
VOTES = "votes"
"""Stream of the logarithm of the number of recognisers that wrote a hypothesis."""


@dataclass(frozen=True, slots=True)
class Utterance:
    """What was said, what recognisers wrote, and the words that they had been given."""

    id: str
    reference: Words
    rare: frozenset[str]
    """The words of the reference that are in the biasing list."""
    listed: tuple[str, ...]
    """The biasing list: the rare words, and others that were not said."""
    outputs: Mapping[str, Words]
    """By name of the recogniser."""

    @property
    def speaker(self) -> str:
        return self.id.split("-")[0]

    def votes(self) -> dict[Words, int]:
        """Number of recognisers by what they wrote, the largest first; ties in the order of recognisers."""
        counts: dict[Words, int] = {}
        for words in self.outputs.values():
            counts[words] = counts.get(words, 0) + 1
        return dict(sorted(counts.items(), key=lambda item: -item[1]))


def read_utterances(folder: Path, part: str) -> list[Utterance]:
    """Read references, biasing lists and all recognisers' outputs of ``test-clean`` or ``test-other``."""
    outputs = {
        file.name.removeprefix(f"{part}.").removesuffix(".tsv.gz"): dict(_read_outputs(file))
        for file in sorted((folder / "hyp").glob(f"{part}.*.tsv.gz"))
    }
    if not outputs:
        raise SystemExit(f"{folder}: no file hyp/{part}.*.tsv.gz; expected the folder librispeech-systems")
    utterances = []
    for row in _read_rows(folder / "ref" / f"{part}.biasing_100.tsv.gz"):
        name, reference, rare, listed = row
        written = {system: texts[name] for system, texts in outputs.items()}
        words = tuple(reference.split())
        utterances.append(Utterance(name, words, frozenset(json.loads(rare)), _parse(listed), written))
    return utterances


def _read_rows(file: Path) -> Iterator[list[str]]:
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield line.rstrip("\n").split("\t")


def _read_outputs(file: Path) -> Iterator[tuple[str, Words]]:
    for name, *text in _read_rows(file):
        yield name, tuple(text[0].split()) if text else ()


def _parse(listed: str) -> tuple[str, ...]:
    return tuple(json.loads(listed))


def keep_recognisers(utterances: Iterable[Utterance], names: Collection[str]) -> list[Utterance]:
    """The same utterances with the outputs of some recognisers."""
    return [
        replace(item, outputs={name: words for name, words in item.outputs.items() if name in names})
        for item in utterances
    ]


def add_words(utterances: Sequence[Utterance], size: int, seed: int) -> list[Utterance]:
    """Extend each biasing list by words of the lists of other utterances, drawn without replacement.

    A word of the reference is not added, so that the rare words stay the same.
    """
    words = sorted({word for item in utterances for word in item.listed})
    random_numbers = random.Random(seed)
    extended = []
    for item in utterances:
        known = {*item.listed, *item.reference}
        drawn = random_numbers.sample(words, min(len(words), size + len(known)))
        others = [word for word in drawn if word not in known]
        extended.append(replace(item, listed=(*item.listed, *others[: size - len(item.listed)])))
    return extended


def make_list(item: Utterance, normaliser: Normaliser) -> NBestList:
    """Merge the outputs of an utterance into a list whose phrases are the words of its biasing list.

    Words that the normaliser drops, such as "sil", are left out: no hypothesis can have them.
    """
    votes = item.votes()
    return NBestList(
        item.id,
        tuple(Hypothesis(" ".join(words)) for words in votes),
        {VOTES: tuple(math.log(count) for count in votes.values())},
        reference=" ".join(item.reference),
        group=item.speaker,
        phrases=tuple(Phrase(word) for word in item.listed if normaliser.normalise_token(word)),
    )
