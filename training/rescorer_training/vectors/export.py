"""Export the embeddings of a language model as word vectors."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rescorer.errors import ConfigError
from rescorer.lm.checkpoint import load_model
from rescorer.safe_input.files import Folder
from rescorer.vocabulary import SPECIAL_TOKENS
from rescorer_training.vectors.word_vectors import WordVectors


def export_embeddings(folder: Path | Folder, *, output: bool = False) -> WordVectors:
    """Return the vectors of the words of a network, without ``<s>``, ``</s>`` and ``<unk>``.

    Words are in the order of the network's vocabulary, which follows its word classes.

    Args:
        folder: folder of a trained network of any kind.
        output: the word weights of the output layer instead of the input embedding; both are the same if
            they are tied.

    Raises:
        BundleError: the network cannot be read.
        ConfigError: the output layer has no vector per word, or the vocabulary has only special tokens.
    """
    path = folder.path if isinstance(folder, Folder) else folder
    model, vocabulary = load_model(folder)
    if output and model.config.output == "tree":
        raise ConfigError(
            f"{path}: a tree softmax has vectors of decisions, not of words; export the input embedding"
        )
    weight = model.output.word_weight if output else model.network.embedding.weight
    rows = [row for row, word in enumerate(vocabulary.words) if word not in SPECIAL_TOKENS]
    if not rows:
        raise ConfigError(f"{path}: the vocabulary has no words apart from special tokens")
    matrix = np.ascontiguousarray(weight.detach().float().numpy()[rows])
    return WordVectors(tuple(vocabulary.words[row] for row in rows), matrix)
