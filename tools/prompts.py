"""Measure what a model in pieces of words gains from previous utterances, by the form of its prompt.

    python -m tools.prompts smollm calls.txt.gz --prompt lines --prompt sentences

The lines of a text are utterances in order. Stretches of 20 are scored after nothing; after the line before;
after 5 to 9; after 20 to 39; and, as a control, after 20 lines half the text away. Perplexities are per word,
without ends of sentences if the model has none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from rescorer.list_checks import join_history
from rescorer.trie import Words, build_trie
from rescorer.units.files import load_unit_model
from rescorer.units.model import UnitLanguageModel
from rescorer.units.prompts import Prompt
from rescorer_training.corpus import read_lines

STRETCH = 20
WAYS = {"nothing": (0, 1), "1": (1, 1), "5 to 9": (5, 5), "20 to 39": (20, STRETCH)}
"""For each way, how many lines are read before a block at least, and the length of blocks."""
ELSEWHERE = "20 others"


def pair_lines(lines: Sequence[Words], first: int, way: str) -> Iterator[tuple[Words, Words]]:
    """Yield the lines of a stretch, each with the history after which it is scored.

    Args:
        first: index of the first line of the stretch.
    """
    if way == ELSEWHERE:
        start = (first + len(lines) // 2) % (len(lines) - STRETCH)
        other = join_history(lines[start : start + STRETCH], ())
        yield from ((words, other) for words in lines[first : first + STRETCH])
        return
    n_before, size = WAYS[way]
    for place in range(STRETCH):
        begin = first + place - place % size - n_before
        yield lines[first + place], join_history(lines[begin : first + place], ())


def measure(model: UnitLanguageModel, lines: Sequence[Words], firsts: Sequence[int]) -> dict[str, float]:
    """Perplexity per word of all stretches, by the way."""
    found = {}
    n_words = sum(len(words) for first in firsts for words in lines[first : first + STRETCH])
    for way in (*WAYS, ELSEWHERE):
        log_prob = 0.0
        for first in firsts:
            trie = build_trie(*zip(*pair_lines(lines, first, way), strict=True))
            log_prob += float(model.score(trie).sum_paths(trie).sum())
        found[way] = math.exp(-log_prob / n_words)
    return found


def main(
    folder: Annotated[Path, typer.Argument(help="Folder that rescorer-train import wrote.")],
    text: Annotated[Path, typer.Argument(help="Canonical words, one utterance per line, in order.")],
    prompt: Annotated[list[str], typer.Option(help="Form or file of a prompt. May be repeated.")],
    stretches: Annotated[int, typer.Option(help="Number of stretches of 20 lines.")] = 8,
) -> None:
    """Print a row of perplexities for each form."""
    import torch  # takes seconds

    torch.set_num_threads(1)
    lines = [tuple(line.split()) for line in read_lines(text) if line.split()]
    firsts = [STRETCH + place * (len(lines) - 2 * STRETCH) // stretches for place in range(stretches)]
    model = load_unit_model(folder)
    print(f"{'':12}" + "".join(f"{way:>12}" for way in (*WAYS, ELSEWHERE)))
    for name in prompt:
        model.prompt = replace(Prompt.read(name), max_units=model.scorer.decoder.n_positions // 2)
        found = measure(model, lines, firsts)
        print(f"{name:12}" + "".join(f"{value:12.1f}" for value in found.values()), flush=True)


if __name__ == "__main__":
    typer.run(main)
