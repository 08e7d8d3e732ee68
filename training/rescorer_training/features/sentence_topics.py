"""Compute the topics of the words before each sentence of a text, once for a whole training run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.lib.format import open_memmap

from rescorer.lm.features.topics import TopicReader
from rescorer_training.data.sentence_batches import Sentences
from rescorer_training.progress import track

CHUNK_SENTENCES = 64
"""Number of sentences whose topics are inferred together; few, so that their words stay in the cache."""


def write_sentence_topics(path: Path, reader: TopicReader, text: Sentences, progress: str = "") -> None:
    """Write the topic features of the text before each sentence, (S, K) float32, as an npy file.

    Args:
        progress: description under which progress is reported; empty for no report.
    """
    topical_words, n_before = find_topical_words(reader, text)
    last = np.arange(reader.n_read)
    features = open_memmap(path, "w+", np.float32, (len(text.starts), reader.n_topics))
    with track(progress, "sentences", len(text.starts)) as task:
        for begin in range(0, len(text.starts), CHUNK_SENTENCES):
            chunk = slice(begin, begin + CHUNK_SENTENCES)
            positions = np.maximum(n_before[chunk, None] - 1 - last, 0)
            words = topical_words[positions] if len(topical_words) else np.zeros_like(positions)
            features[chunk] = reader.read_last(words, np.minimum(n_before[chunk], reader.n_read)).numpy()
            task.advance(len(positions))
    features.flush()


def find_topical_words(reader: TopicReader, text: Sentences) -> tuple[np.ndarray, np.ndarray]:
    """Find the topical words of a text, (n,) int64, and how many of them come before each sentence, (S,)."""
    positions = np.flatnonzero(reader.topical(text.ids))
    return text.ids[positions].astype(np.int64), np.searchsorted(positions, text.starts)
