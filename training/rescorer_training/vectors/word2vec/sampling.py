"""Draw what is random in training: the occurrences that are kept, windows and noise words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rescorer_training.vectors.word2vec.chunks import Chunks, pad_rows

NO_SENTENCE = -1
"""Number of the sentence of padding."""


def keep_probabilities(counts: np.ndarray, subsample: float) -> np.ndarray:
    """Probability with which an occurrence of each word is kept, (V,) float64.

    This is the original program's √(t/f) + t/f for a word of relative frequency f and the threshold t, which
    is close to the paper's √(t/f).
    """
    if not subsample:
        return np.ones(len(counts))
    ratio = subsample * counts.sum() / counts
    return np.minimum(np.sqrt(ratio) + ratio, 1.0)


@dataclass(frozen=True, slots=True)
class Block:
    """Centre words in chunks, and the context of each."""

    words: Tensor
    """(n_rows,) int64: ids of the centre words, with the widest context before the first and after the last;
    V is padding."""
    contexts: Chunks
    """Chunks of centre words with their context; ``stride`` centre words each."""
    mask: Tensor
    """(n, stride, width) float32: 1 where a word of the chunk is in the window of a centre word."""

    @property
    def centres(self) -> Tensor:
        """(n, stride) ids of the centre words."""
        window = (self.contexts.width - self.contexts.stride) // 2
        return self.words[window : len(self.words) - window].view(self.contexts.n, self.contexts.stride)


class WindowSampler:
    """Turns parts of an encoded text into blocks of words with dynamic windows.

    Args:
        keep: (V,) probability with which an occurrence of each word is kept.
        window: largest distance of a context word.
        chunk_words: number of centre words per chunk.
        block_words: number of centre words per block, about.
    """

    def __init__(self, keep: np.ndarray, window: int, chunk_words: int, block_words: int) -> None:
        self.window, self.chunk_words = window, chunk_words
        self.block_chunks = max(1, block_words // chunk_words)
        self.sentence_end = len(keep)
        # sentence ends must not be kept as words, nor must rare words
        self.keep = torch.tensor([*keep, 0.0, 0.0], dtype=torch.float32)
        centre = torch.arange(chunk_words)[:, None] + window
        distance = (torch.arange(chunk_words + 2 * window) - centre).abs()
        self.distance = torch.where(distance == 0, 127, distance.clamp(max=127)).to(torch.int8)
        """(chunk_words, width): distance of each word of a chunk from each centre word; 127 from itself."""

    def draw_blocks(self, ids: np.ndarray, random: torch.Generator) -> Iterator[Block]:
        """Yield blocks of about equal size; contexts end at the ends of sentences and of ``ids``."""
        words = torch.from_numpy(ids.astype(np.int64))
        sentences = torch.cumsum(words == self.sentence_end, 0, dtype=torch.int32)
        is_kept = torch.rand(len(words), generator=random) < self.keep.index_select(0, words)
        words, sentences = words[is_kept], sentences[is_kept]
        if not len(words):
            return
        n_chunks = -(-len(words) // self.chunk_words)
        padding = n_chunks * self.chunk_words - len(words)
        reach = torch.randint(1, self.window + 1, (n_chunks * self.chunk_words,), generator=random)
        reach = reach.to(torch.int8)
        reach[len(words) :] = 0
        words = pad_rows(words, self.window, self.window + padding, self.sentence_end)
        sentences = pad_rows(sentences, self.window, self.window + padding, NO_SENTENCE)
        n_blocks = -(-n_chunks // self.block_chunks)
        for number in range(n_blocks):
            begin, end = (n_chunks * part // n_blocks for part in (number, number + 1))
            rows = slice(begin * self.chunk_words, end * self.chunk_words + 2 * self.window)
            centres = slice(begin * self.chunk_words, end * self.chunk_words)
            yield self._make_block(words[rows], sentences[rows], reach[centres])

    def _make_block(self, words: Tensor, sentences: Tensor, reach: Tensor) -> Block:
        stride, window = self.chunk_words, self.window
        contexts = Chunks(len(reach) // stride, stride, stride + 2 * window)
        own = sentences[window : len(sentences) - window].view(-1, stride, 1)
        mask = self.distance <= reach.view(-1, stride, 1)
        mask &= contexts.unfold(sentences)[:, None] == own
        return Block(words, contexts, mask.float())


class NoiseSampler:
    """Draws noise words in proportion to a power of their counts."""

    def __init__(self, counts: np.ndarray, exponent: float) -> None:
        mass = np.cumsum(counts.astype(np.float64) ** exponent)
        self.cumulative = torch.from_numpy(mass / mass[-1])

    def draw(self, n: int, random: torch.Generator) -> Tensor:
        """Draw word ids, (n,) int64."""
        points = torch.rand(n, generator=random, dtype=torch.float64)
        return torch.searchsorted(self.cumulative, points, right=True)
