"""Small back-off models for tests, and slow reference implementations of their probabilities."""

from __future__ import annotations

from pathlib import Path

from rescorer.models.network_files import START
from rescorer.text import Normaliser, NormaliserSettings
from rescorer_training.ngram.backoff_model import BackoffModel
from rescorer_training.ngram.estimate import NGramOptions, train_ngram

FIRST_TEXT = "the cat sat on the mat\nthe cat ran\na dog sat on the cat\non the mat the dog sat\nthe mat\n"
SECOND_TEXT = "a dog ran on the road\nthe road ran\nthe dog sat\na cat on a road\nthe cat on the road sat\n"


def train_small_model(folder: Path, text: str, order: int = 3, name: str = "model") -> Path:
    (folder / f"{name}.txt").write_text(text)
    path = folder / f"{name}.arpa.gz"
    train_ngram([folder / f"{name}.txt"], Normaliser(NormaliserSettings.raw()), path, NGramOptions(order))
    return path


def map_ngrams_to_rows(model: BackoffModel) -> dict[tuple[str, ...], int]:
    """Map each n-gram, as words, to its row in the model's arrays."""
    ngrams: dict[int, tuple[str, ...]] = {0: ()}
    for row in range(1, len(model.trie.word)):
        ngrams[row] = (*ngrams[int(model.trie.prefix[row])], model.trie.words[model.trie.word[row]])
    return {ngram: row for row, ngram in ngrams.items()}


def reference_prob(orders: list[dict], context: tuple[str, ...], word: str) -> float:
    """Compute P(word | context) by Katz's recursion over dictionaries."""
    if len(context) < len(orders) and (*context, word) in orders[len(context)]:
        return 10 ** orders[len(context)][(*context, word)][0]
    weight = 10 ** orders[len(context) - 1].get(context, (0, 0))[1] if len(context) < len(orders) else 1.0
    return weight * reference_prob(orders, context[1:], word)


def reference_total(orders: list[dict], context: tuple[str, ...]) -> float:
    """Sum P(word | context) over all words that can follow."""
    return sum(reference_prob(orders, context, word) for (word,) in orders[0] if word != START)
