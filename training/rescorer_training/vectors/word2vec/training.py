"""Train CBOW and skip-gram vectors over an encoded text, in one or several threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import torch

from rescorer.errors import ScoringError
from rescorer_training.progress import track
from rescorer_training.vectors.encoded_text import EncodedText
from rescorer_training.vectors.word2vec.hierarchical_softmax import HierarchicalSoftmax
from rescorer_training.vectors.word2vec.model import OutputLayer, train_block
from rescorer_training.vectors.word2vec.negative_sampling import NegativeSampling
from rescorer_training.vectors.word2vec.options import Word2VecOptions
from rescorer_training.vectors.word2vec.sampling import NoiseSampler, WindowSampler, keep_probabilities
from rescorer_training.vectors.word2vec.state import TrainingState

PART_IDS = 20_000
"""Number of ids per part of the text: what one thread trains on before it takes the next part."""
PARTS_PER_ROUND = 32
"""Number of parts after which all threads wait for each other, so that the state can be saved."""
SECONDS_BETWEEN_SAVES = 60.0
CHUNK_WORDS = {"negative": 16, "hierarchical": 8}
"""Number of neighbouring centre words per matrix product, by output layer. Larger chunks need fewer products,
of which a larger share is between words that are not in each other's windows."""
NOISE_WORDS = 16
"""Smallest number of noise words that the words of a chunk share; with fewer, vectors get worse."""
MAX_VALUE = 100.0
"""Largest value of a vector. Useful vectors stay within about ten; a training whose steps overshoot goes far
beyond, long before values are not finite."""
MAX_OCCURRENCES = 16
"""Largest expected number of occurrences of one word per block. Their steps add up: many more of them would
overshoot."""


class Word2VecTrainer:
    """Trains the vectors of a state on a text.

    With one thread, the result depends only on the text, the options and the seed, interrupted or not.
    Several threads change the same vectors without locks (Hogwild, Niu et al. 2011), so that results vary a
    little between runs.
    """

    def __init__(self, text: EncodedText, options: Word2VecOptions, state: TrainingState) -> None:
        self.text, self.options, self.state = text, options, state
        self.parts_per_epoch = -(-len(text.ids) // PART_IDS)
        self.n_parts = self.parts_per_epoch * options.epochs
        self.words_per_part = [
            np.count_nonzero(self._ids(part) != text.sentence_end) for part in range(self.parts_per_epoch)
        ]
        keep = keep_probabilities(text.counts, options.subsample)
        block_words = limit_block(text.counts * keep, options.block_words)
        chunk_words = min(CHUNK_WORDS[options.output_layer], block_words)
        self.windows = WindowSampler(keep, options.window, chunk_words, block_words)
        self.output = make_output_layer(text.counts, options, state)

    def train(self, threads: int, save: Callable[[], None]) -> None:
        """Train until the last epoch ends.

        Args:
            threads: number of threads that train.
            save: called about once per minute between rounds, and at the end.

        Raises:
            ScoringError: the vectors have grown beyond all bounds.
        """
        state, last_save = self.state, time.monotonic()
        remaining = self.count_words(range(state.n_parts, self.n_parts))
        with (
            use_one_thread_per_product(),
            track("training", "words", remaining) as task,
            ThreadPoolExecutor(threads) as pool,
        ):
            while state.n_parts < self.n_parts:
                begin = time.monotonic()
                parts = range(state.n_parts, min(state.n_parts + PARTS_PER_ROUND, self.n_parts))
                for part, _ in zip(parts, pool.map(self.train_part, parts), strict=True):
                    task.advance(self.count_words(range(part, part + 1)))
                self._check_bounds()
                state.n_parts, now = parts.stop, time.monotonic()
                state.seconds += now - begin
                if now - last_save > SECONDS_BETWEEN_SAVES:
                    save()
                    last_save = now
        save()

    def count_words(self, parts: range) -> int:
        """Count the words in parts of the text, also those that are too rare for the vocabulary."""
        return sum(int(self.words_per_part[part % self.parts_per_epoch]) for part in parts)

    def train_part(self, part: int) -> None:
        """Train on one part of the text."""
        random, rate = self._random(part), self.learning_rate(part)
        for block in self.windows.draw_blocks(self._ids(part), random):
            train_block(
                self.state.inputs, self.output, block, rate, random, cbow=self.options.model == "cbow"
            )

    def learning_rate(self, part: int) -> float:
        """Learning rate of a part, which decreases linearly over all epochs."""
        first, last = self.options.initial_learning_rate, self.options.final_learning_rate
        return first + (last - first) * part / self.n_parts

    def _ids(self, part: int) -> np.ndarray:
        begin = part % self.parts_per_epoch * PART_IDS
        return self.text.ids[begin : begin + PART_IDS]

    def _random(self, part: int) -> torch.Generator:
        seed = np.random.SeedSequence([self.options.seed, part]).generate_state(1, np.uint64)
        return torch.Generator().manual_seed(int(seed[0]))

    def _check_bounds(self) -> None:
        largest = float(torch.stack([self.state.inputs.abs().max(), self.state.outputs.abs().max()]).max())
        if not largest <= MAX_VALUE:  # also if it is not a number
            raise ScoringError(
                f"training diverged: vectors have values of {largest:g}; expected at most {MAX_VALUE:g}. "
                f"Start again with a lower --learning-rate (now {self.options.initial_learning_rate:g}) or "
                f"a lower --block-words (now {self.options.block_words})"
            )


def make_output_layer(counts: np.ndarray, options: Word2VecOptions, state: TrainingState) -> OutputLayer:
    """Return the output layer that the options name; it trains the state's output vectors."""
    if options.output_layer == "hierarchical":
        return HierarchicalSoftmax(state.outputs, counts)
    noise = NoiseSampler(counts, options.noise_exponent)
    return NegativeSampling(state.outputs, noise, options.negatives, max(NOISE_WORDS, options.negatives))


def limit_block(kept_counts: np.ndarray, block_words: int) -> int:
    """Limit the size of a block, so that the steps of one word do not add up to divergence.

    A block has at most as many words as the vocabulary, and ``MAX_OCCURRENCES`` of the most frequent one.

    Args:
        kept_counts: (V,) occurrences of each word after subsampling.
    """
    most = int(MAX_OCCURRENCES * kept_counts.sum() / kept_counts.max())
    return max(1, min(block_words, len(kept_counts), most))


@contextmanager
def use_one_thread_per_product() -> Iterator[None]:
    """Compute each matrix product in one thread, since parts of the text are trained in parallel."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
