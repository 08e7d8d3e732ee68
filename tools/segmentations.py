"""Measure how much words gain if all ways to divide them into pieces are counted, and not only the usual one.

    python -m tools.segmentations IMPORTED TEXT --words 300

``IMPORTED`` was imported by ``rescorer-train import``. The tokenizer divides a word in one way, but the model
gives other ways a probability too, and P(word | history) is the sum over all of them. Words are drawn from
the text, each with the words before it in its sentence. All ways to write a word by pieces of the vocabulary
are scored, the end of the word included, if they are at most ``MAX_WAYS``. Otherwise those with the fewest
pieces are: the sum is then a lower bound, but others have very small probabilities.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer

from rescorer.text import Normaliser
from rescorer.trie import Words, build_trie
from rescorer.units.files import load_unit_model
from rescorer.units.model import UnitLanguageModel
from rescorer_training.corpus import read_sentences

MAX_WAYS = 128
"""Largest number of ways to divide a word that are scored."""


def spell_pieces(model: UnitLanguageModel) -> dict[str, int]:
    """The pieces of the vocabulary, by their names, such as ``Ġthe``."""
    tokenizer = model.divider.tokenizer
    return {tokenizer.name(number): number for number in range(tokenizer.size)}


def list_ways(word: str, pieces: Mapping[str, int]) -> Iterator[tuple[int, ...]]:
    """List the ways to join pieces to a word, those with the fewest pieces first.

    Args:
        word: with the mark of its beginning, and in the letters of the vocabulary.
    """
    ways: list[tuple[int, tuple[int, ...]]] = [(0, ())]  # beginnings: how far they reach, and their pieces
    while ways:
        yield from (chosen for reached, chosen in ways if reached == len(word))
        ways = [
            (end, (*chosen, pieces[word[reached:end]]))
            for reached, chosen in ways
            for end in range(len(word), reached, -1)
            if word[reached:end] in pieces
        ][: 64 * MAX_WAYS]


def measure(
    model: UnitLanguageModel, text: Words, mark: str, pieces: Mapping[str, int]
) -> tuple[float, float]:
    """ln P of the last word of a text, divided as usual, and summed over all ways."""
    *history, word = text
    before = [*model.opening, *model.divider.divide_text(tuple(history))]
    (usual,) = model.divider.divide([word], after_space=True)
    ways = {tuple(usual), *islice(list_ways(mark + word, pieces), MAX_WAYS)}
    starts = model.divider.word_starts
    assert starts is not None
    said = tuple(map(str, before))
    trie = build_trie([tuple(map(str, way)) for way in ways], [said] * len(ways))
    together = starts if model.scorer.end is None else np.union1d(starts, model.scorer.end)
    scores, ends = model.scorer.score_together(trie, trie.hypothesis_node, together=together)
    totals = trie.sum_paths(scores.log_probs, np.ones(len(ways), dtype=bool)) + ends
    place = [*ways].index(tuple(usual))
    return float(totals[place]), float(np.logaddexp.reduce(totals))


def draw_words(sentences: Sequence[Words], n_words: int, seed: int) -> list[Words]:
    """Draw words that are not the first of their sentences, each with the words before it."""
    places = [(i, k) for i, words in enumerate(sentences) for k in range(1, len(words)) if words[k].isascii()]
    drawn = random.Random(seed).sample(places, min(n_words, len(places)))
    return [sentences[i][: k + 1] for i, k in drawn]


def main(
    imported: Annotated[Path, typer.Argument(help="Folder of an imported model.")],
    text: Annotated[Path, typer.Argument(help="One sentence per line.")],
    words: Annotated[int, typer.Option(help="Number of words to draw.")] = 300,
    seed: Annotated[int, typer.Option(help="Seed of the draw.")] = 1,
) -> None:
    """Print the mean gap in nats and in per cent of ln P."""
    torch.set_num_threads(1)
    model = load_unit_model(imported)
    pieces = spell_pieces(model)
    mark = next(mark for mark in ("Ġ", "▁") if f"{mark}a" in pieces)
    drawn = draw_words([*islice(read_sentences([text], Normaliser()), 20_000)], words, seed)
    found = np.array([measure(model, one, mark, pieces) for one in drawn])  # (n, 2)
    usual, every = found.T
    gaps = every - usual
    divided = np.array([len(model.divider.divide([one[-1]], after_space=True)[0]) > 1 for one in drawn])
    print(
        json.dumps(
            {
                "words": len(drawn),
                "mean_ln_p": usual.mean(),
                "mean_gap": gaps.mean(),
                "standard_error": gaps.std(ddof=1) / math.sqrt(len(gaps)),
                "percent": 100 * gaps.sum() / -usual.sum(),
                "largest_gap": gaps.max(),
                "word_of_largest_gap": drawn[int(gaps.argmax())][-1],
                "divided_words": int(divided.sum()),
                "mean_gap_of_divided": gaps[divided].mean() if divided.any() else 0.0,
                "mean_gap_of_others": gaps[~divided].mean(),
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    typer.run(main)
