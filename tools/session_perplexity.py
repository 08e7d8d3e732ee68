"""Measure what the neural cache of a session gains: ``python -m tools.session_perplexity TEXT --bundle B``.

The lines of a text are the utterances of a session. Each is scored as the only hypothesis of a list whose
previous utterances are the lines before it, as in rescoring; as a control, the lines before the one half the
text away. A network that carries its state reads these as well, with the cache and without. λ and θ are
fitted on another text.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, product
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from rescorer.conversation import Utterance
from rescorer.pipeline import Rescorer
from rescorer.text import Normaliser, NormaliserSettings
from rescorer.types import Hypothesis, NBestList
from rescorer_training.data.corpus import read_sentences

N_PREVIOUS = 100
"""Number of lines before a line that are its session, at most."""
SHARES, FLATNESS = (0.05, 0.1, 0.2, 0.3), (0.1, 0.3, 1.0)
BATCH_LINES = 50


def read_lines(path: Path, n_lines: int) -> list[str]:
    """Read the first lines of a text."""
    sentences = read_sentences([path], Normaliser(NormaliserSettings.raw()))
    return [" ".join(words) for words in islice(sentences, n_lines)]


def make_lists(lines: Sequence[str], away: int) -> list[NBestList]:
    """Make a list of each line, after the lines before the one that is so many lines later."""
    lists = []
    for index, line in enumerate(lines):
        end = (index + away) % len(lines)
        previous = tuple(map(Utterance, lines[max(0, end - N_PREVIOUS) : end]))
        lists.append(NBestList(str(index), (Hypothesis(line),), previous=previous))
    return lists


def measure(
    rescorer: Rescorer, lines: Sequence[str], choices: Sequence[tuple[float, float]], away: int = 0
) -> np.ndarray:
    """Perplexity of a text under the mixture with each λ and θ of a neural cache."""
    mixture = rescorer.bundle.weights["default"].mixture
    lists, sums = make_lists(lines, away), np.zeros(len(choices))
    for begin in range(0, len(lists), BATCH_LINES):
        batch = lists[begin : begin + BATCH_LINES]
        mixtures = [mixture] * len(choices)
        sums += rescorer.mixture_log_probs(batch, mixtures, neural_cache=choices).sum(axis=1)
    n_tokens = sum(len(words) + 1 for words in rescorer.ranker.normalise_texts(lines))
    perplexities: np.ndarray = np.exp(-sums / n_tokens)
    return perplexities


def main(
    text: Annotated[Path, typer.Argument(help="Text to measure.")],
    validation: Annotated[Path, typer.Option(help="Text on which λ and θ are fitted.")],
    bundle: Annotated[Path, typer.Option(help="Bundle with a network.")],
    lines: Annotated[int, typer.Option(help="Number of lines of the text.")] = 2000,
    validation_lines: Annotated[int, typer.Option(help="Number of lines of the other text.")] = 500,
) -> None:
    """Print the perplexities after the session, and after another one, each without a cache and with one."""
    rescorer = Rescorer.load(bundle)
    choices = [*product(SHARES, FLATNESS)]
    fitted = measure(rescorer, read_lines(validation, validation_lines), choices)
    chosen = choices[int(fitted.argmin())]
    print(f"λ = {chosen[0]:g}, θ = {chosen[1]:g}")
    measured = read_lines(text, lines)
    for session, away in (("its session", 0), ("another session", len(measured) // 2)):
        without, with_cache = measure(rescorer, measured, [(0.0, 0.0), chosen], away)
        print(f"after {session}: without a cache {without:.2f}, with one {with_cache:.2f}")


if __name__ == "__main__":
    typer.run(main)
