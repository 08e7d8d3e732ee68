"""Train word vectors by CBOW and skip-gram (Mikolov et al. 2013, arXiv 1301.3781 and 1310.4546).

Words are trained in blocks of about a thousand, so that scores and gradients are matrix products.
Neighbouring words share noise words (Ji et al. 2016, arXiv 1604.04661).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from rescorer.errors import BundleError, ConfigError, ScoringError
from rescorer.models.tree_softmax import concatenate_runs, leaf_paths, score_nodes, sum_by_node, sum_rows
from rescorer.runtime import keep_freed_memory
from rescorer.text import Normaliser
from rescorer_training.classes.trees import build_huffman_tree
from rescorer_training.progress import option
from rescorer_training.state_files import read_options
from rescorer_training.vectors import runs
from rescorer_training.vectors.files import WordVectors

if TYPE_CHECKING:
    from scipy.sparse import csr_array


MODELS = ("skip-gram", "cbow")
OUTPUT_LAYERS = ("negative", "hierarchical", "full")
CBOW_STEPS = ("undivided", "divided")
MAX_FULL_WORDS = 20_000
"""Largest vocabulary of a full softmax, which scores every word for each context word."""
DEFAULT_LEARNING_RATES = {"skip-gram": 0.025, "cbow": 0.05}
"""Default learning rates of the original program."""
MAX_WINDOW = 50
MAX_DIMENSIONS = 4096
MAX_NEGATIVES = 1000


@dataclass(frozen=True, slots=True)
class Word2VecOptions:
    """Training options, which are saved with the run. A resumed run must have the same options.

    Raises:
        ConfigError: a value is out of range or unknown.
    """

    model: str = option(
        "skip-gram",
        "Predict a word from each word near it (skip-gram), or from the mean of the words near it (cbow).",
        metavar="skip-gram|cbow",
    )
    output_layer: str = option(
        "negative",
        "Tell words from random noise words (negative), decide at every node of a Huffman tree "
        "(hierarchical), or choose among all words (full): the softmax that the others approximate, for "
        "small vocabularies.",
        metavar="negative|hierarchical|full",
    )
    cbow_step: str | None = option(
        None,
        "With cbow, of the step for the mean of C vectors: add all of it to each of these vectors "
        "(undivided, the default), as in the original program, or a C-th (divided), as the gradient has it.",
        metavar="undivided|divided",
    )
    dimensions: int = option(100, "Number of values per vector.")
    window: int = option(
        5, "Largest distance of a context word. Each word draws its own distance, from 1 to this one."
    )
    negatives: int = option(5, "With negative sampling: noise words per predicted word.")
    noise_exponent: float = option(
        0.75, "With negative sampling: noise words are drawn in proportion to their count to this power."
    )
    subsample: float = option(
        1e-3, "Relative frequency above which occurrences of a word are skipped at random; 0 skips none."
    )
    min_count: int = option(5, "Leave out words that occur less often.")
    epochs: int = option(5, "Number of passes over the text.")
    learning_rate: float | None = option(
        None, "Learning rate at the start. Default: 0.025 for skip-gram, 0.05 for cbow."
    )
    final_learning_rate: float = option(
        1e-4, "Learning rate at the end; it decreases linearly with the words read."
    )
    block_words: int = option(
        1024,
        "Number of words whose gradients are computed together. Smaller blocks are slower and nearer to the "
        "original algorithm, which updates after each pair of words.",
    )
    seed: int = option(1, "Random seed.")

    def __post_init__(self) -> None:
        _check(self.model in MODELS, f"model {self.model!r}: expected skip-gram or cbow")
        _check(
            self.output_layer in OUTPUT_LAYERS,
            f"output layer {self.output_layer!r}: expected one of {', '.join(OUTPUT_LAYERS)}",
        )
        _check(
            self.cbow_step in (None, *CBOW_STEPS),
            f"cbow step {self.cbow_step!r}: expected undivided or divided",
        )
        _check(
            self.cbow_step is None or self.model == "cbow",
            f"cbow step {self.cbow_step}: {self.model} has no such step; leave it out, or choose cbow",
        )
        for name in ("min_count", "epochs", "block_words"):
            value = getattr(self, name)
            _check(value >= 1, f"{name.replace('_', ' ')} {value}: expected 1 or more")
        for name, most in (
            ("dimensions", MAX_DIMENSIONS),
            ("window", MAX_WINDOW),
            ("negatives", MAX_NEGATIVES),
        ):
            value = getattr(self, name)
            _check(1 <= value <= most, f"{name} {value}: expected 1 to {most}")
        _check(self.subsample >= 0, f"subsample {self.subsample}: expected 0 or more")
        _check(0 <= self.noise_exponent <= 1, f"noise exponent {self.noise_exponent}: expected 0 to 1")
        _check(
            0 < self.final_learning_rate <= self.initial_learning_rate < float("inf"),
            f"learning rates {self.initial_learning_rate} to {self.final_learning_rate}: expected numbers "
            "above 0 that do not increase",
        )
        _check(self.seed >= 0, f"seed {self.seed}: expected 0 or more")

    @property
    def initial_learning_rate(self) -> float:
        """Learning rate at the start: the given one, or the default of the model."""
        return DEFAULT_LEARNING_RATES[self.model] if self.learning_rate is None else self.learning_rate


def _check(valid: bool, message: str) -> None:
    if not valid:
        raise ConfigError(message)


@dataclass(frozen=True, slots=True)
class Chunks:
    """Chunks of consecutive rows. Every ``stride`` rows, a chunk of ``width`` begins; chunks may overlap."""

    n: int
    stride: int
    width: int

    @property
    def n_rows(self) -> int:
        """Number of rows that all chunks cover together."""
        return self.n * self.stride + self.width - self.stride

    def unfold(self, rows: Tensor) -> Tensor:
        """View rows as chunks without copying them: (n_rows, …) to (n, width, …)."""
        first, *rest = rows.stride()
        return rows.as_strided((self.n, self.width, *rows.shape[1:]), (self.stride * first, first, *rest))

    def fold(self, chunks: Tensor) -> Tensor:
        """Sum the values of each row in all chunks, (n, width, D) to (n_rows, D): transposed ``unfold``."""
        if self.width == self.stride:
            return chunks.reshape(self.n_rows, -1)
        n_parts = -(-self.width // self.stride)
        depth = chunks.shape[2]
        rows = chunks.new_zeros((self.n + n_parts) * self.stride, depth)
        for part, columns in enumerate(chunks.split(self.stride, dim=1)):
            begin = part * self.stride
            window = rows[begin : begin + self.n * self.stride].view(self.n, self.stride, depth)
            window[:, : columns.shape[1]] += columns
        return rows[: self.n_rows]


def add_rows(matrix: Tensor, ids: Tensor, changes: Tensor) -> None:
    """Add ``changes`` (n, D) to the rows ``ids`` (n,) of a matrix in place. An id may occur several times."""
    # with an expanded index, scatter_add_ sorts the ids and adds whole rows: twice as fast as index_add_
    matrix.scatter_add_(0, ids[:, None].expand(-1, matrix.shape[1]), changes)


def pad_rows(rows: Tensor, before: int, after: int, value: float) -> Tensor:
    """Pad a one-dimensional tensor at both ends with a value."""
    return torch.nn.functional.pad(rows, (before, after), value=value)


NO_SENTENCE = -1
"""Sentence number of padding."""


def keep_probabilities(counts: np.ndarray, subsample: float) -> np.ndarray:
    """Compute the probability with which an occurrence of each word is kept, (V,) float64.

    For a word of relative frequency f and the threshold t it is √(t/f) + t/f, as in the original program.
    This is close to the paper's √(t/f).
    """
    if not subsample:
        return np.ones(len(counts))
    ratio = subsample * counts.sum() / counts
    return np.minimum(np.sqrt(ratio) + ratio, 1.0)


@dataclass(frozen=True, slots=True)
class Block:
    """Centre words in chunks, with the context of each centre word."""

    words: Tensor
    """(n_rows,) int64 ids of the centre words, with the words of the widest windows before and after.

    The id V is padding."""
    contexts: Chunks
    """Chunks of ``stride`` centre words each, with their context."""
    mask: Tensor
    """(n, stride, width) float32: 1 if a word of the chunk is in the window of a centre word."""

    @property
    def centres(self) -> Tensor:
        """Ids of the centre words, (n, stride)."""
        window = (self.contexts.width - self.contexts.stride) // 2
        return self.words[window : len(self.words) - window].view(self.contexts.n, self.contexts.stride)


class WindowSampler:
    """Turns parts of an encoded text into blocks. The window of each centre word has a random size.

    Args:
        keep: (V,) probability with which an occurrence of each word is kept.
        window: largest distance of a context word.
        chunk_words: number of centre words per chunk.
        block_words: approximate number of centre words per block.
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
        """(chunk_words, width) distance of each word of a chunk from each centre word; 127 from itself."""

    def draw_blocks(self, ids: np.ndarray, random: torch.Generator) -> Iterator[Block]:
        """Yield blocks of about equal size. Contexts do not reach beyond sentences or the part ``ids``."""
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


N_TOP_NODES = 16
"""Number of nodes, the most frequent ones, whose scores are computed for every query of a block.

Over a third of the nodes on paths are among them. One product with all of them is faster than looking them up
by path."""
MAX_NODE_STEPS = 128.0
"""Maximum number of steps of a node per block.

The root is on every path, and the sum of its thousands of steps per block would diverge."""


class HierarchicalSoftmax:
    """Output layer that maximises Σ log σ(±q·v) for a query q, over the nodes v on the path of its word.

    The sign is + where the path turns to the first child, and - otherwise.

    Args:
        vectors: (V + 1, D) vectors of the tree's V - 1 nodes, and padding. They are changed in place.
        counts: (V,) occurrences of each word.
    """

    def __init__(self, vectors: Tensor, counts: np.ndarray) -> None:
        self.vectors = vectors
        n_words = len(counts)
        starts, nodes, sides = leaf_paths(build_huffman_tree(counts), n_words)
        words = np.repeat(np.arange(n_words), np.diff(starts))
        self.n_top = min(N_TOP_NODES, n_words - 1)
        top, turns = nodes < self.n_top, (1 - sides).astype(np.float32)
        self.top_paths = torch.zeros(n_words, 2 * self.n_top)
        """(V, 2·n_top): whether each node is on the word's path, then whether it turns to the first child."""
        self.top_paths[words[top], nodes[top]] = 1
        self.top_paths[words[top], self.n_top + nodes[top]] = torch.from_numpy(turns[top])
        self.starts = torch.from_numpy(np.searchsorted(words[~top], np.arange(n_words + 1)))
        """(V + 1,) where the path of each word begins in ``nodes`` and ``turns``, without the top nodes."""
        self.nodes, self.turns = torch.from_numpy(nodes[~top]), torch.from_numpy(turns[~top])

    def train(
        self, queries: Tensor, chunks: Chunks, pairs: Tensor, centres: Tensor, rate: float,
        random: torch.Generator,
    ) -> Tensor:  # fmt: skip
        """Take one gradient step; return the step for the queries. See ``NegativeSampling.train``."""
        n, width, stride = pairs.shape
        rows, places = pairs.reshape(n * width, stride).nonzero().unbind(1)
        words = centres.reshape(-1).index_select(0, rows // width * stride + places)
        starts = torch.searchsorted(rows, torch.arange(n * width + 1))
        queries = chunks.unfold(queries).reshape(n * width, -1)
        steps = self._train_top_nodes(queries, words, starts, rate)
        steps += self._train_deep_nodes(queries, rows, words, starts, rate)
        return chunks.fold(steps.view(n, width, -1))

    def _train_top_nodes(self, queries: Tensor, words: Tensor, starts: Tensor, rate: float) -> Tensor:
        """Train all queries with the most frequent nodes.

        Args:
            words: words that the queries predict, in the order of the queries.
            starts: (n_queries + 1,) index of the first word of each query.
        """
        weights, turns = sum_rows(self.top_paths, words, starts).split(self.n_top, dim=1)
        top = self.vectors[: self.n_top]
        errors = (queries @ top.T).sigmoid_().mul_(weights).neg_().add_(turns).mul_(rate)
        query_steps = errors @ top
        top += (errors * _limit_steps(weights.sum(0))).T @ queries
        return query_steps

    def _train_deep_nodes(
        self, queries: Tensor, rows: Tensor, words: Tensor, starts: Tensor, rate: float
    ) -> Tensor:
        """Train queries with all other nodes on the paths of their words. ``rows``: query of each word."""
        indices, begins = concatenate_runs(self.starts, words)
        nodes = self.nodes.index_select(0, indices)
        of_words = queries.index_select(0, rows)
        scores = score_nodes(of_words, self.vectors, begins, nodes, torch.zeros(len(nodes)))
        starts = begins.index_select(0, starts)
        errors = torch.sub(self.turns.index_select(0, indices), scores.sigmoid_()).mul_(rate)
        query_steps = sum_rows(self.vectors, nodes, starts, errors)
        found = sum_by_node(queries, starts, nodes, errors)
        self.vectors.index_add_(0, found.nodes, found.sums * _limit_steps(found.counts)[:, None])
        return query_steps


def _limit_steps(counts: Tensor) -> Tensor:
    """Return a factor for each sum of steps, so that it moves no farther than ``MAX_NODE_STEPS`` mean steps.

    Sum i has ``counts[i]`` steps.
    """
    return (MAX_NODE_STEPS / counts).clamp_(max=1.0)


class NegativeSampling:
    """Output layer that maximises log σ(q·v) for a query and its word, and log σ(-q·v) for noise words.

    The centre words of a chunk share ``noise_words`` noise words. Each of these counts
    ``negatives`` / ``noise_words`` times. On average, this is the same as separate noise words for each pair.
    As in the original program, a noise word that equals the centre word is skipped.

    Args:
        vectors: (V + 1, D) output vectors, changed in place; the last row is for padding.
        negatives: number of noise words that count for each pair of a query and a centre word.
        noise_words: number of noise words that are drawn per chunk.
    """

    def __init__(self, vectors: Tensor, noise: NoiseSampler, negatives: int, noise_words: int) -> None:
        self.vectors, self.noise = vectors, noise
        self.noise_words, self.noise_weight = noise_words, negatives / noise_words

    def train(
        self, queries: Tensor, chunks: Chunks, pairs: Tensor, centres: Tensor, rate: float,
        random: torch.Generator,
    ) -> Tensor:  # fmt: skip
        """Take one gradient step; return the step for the queries.

        Args:
            queries: (n_rows, D) vectors of context words, or their means.
            chunks: division of the queries into chunks.
            pairs: (n, width, stride): 1 if a query of the chunk predicts a centre word.
            centres: (n, stride) ids of the centre words.

        Returns:
            (n_rows, D) step, to be added to the queries.
        """
        n, stride = centres.shape
        noise = self.noise.draw(n * self.noise_words, random).view(n, self.noise_words)
        targets = torch.cat([centres, noise], 1).view(-1)
        vectors = self.vectors.index_select(0, targets).view(n, stride + self.noise_words, -1)
        is_noise = (centres[:, :, None] != noise[:, None]).float().mul_(self.noise_weight)
        weights = torch.cat([pairs, torch.bmm(pairs, is_noise)], 2)
        unfolded = chunks.unfold(queries)
        errors = torch.bmm(unfolded, vectors.transpose(1, 2)).sigmoid_().mul_(weights).neg_()
        errors[:, :, :stride] += pairs
        errors *= rate
        query_steps = chunks.fold(torch.bmm(errors, vectors))
        steps = torch.bmm(errors.transpose(1, 2), unfolded)
        add_rows(self.vectors, targets, steps.view(len(targets), -1))
        return query_steps


class ExactSoftmax:
    """Output layer that maximises Σ ln P(w | q) by its exact gradient, P(w | q) = exp q·v_w / Σ_u exp q·v_u.

    With y = P(· | q), the one-hot t of the word, and e = y - t, the gradient of -ln P(w | q) is e_j q for
    v_j, and Σ_j e_j v_j for the query (Rong 2014, arXiv 1411.2738).

    Args:
        vectors: (V + 1, D) output vectors, changed in place; the last row is for padding.
    """

    def __init__(self, vectors: Tensor) -> None:
        self.vectors = vectors

    def train(
        self, queries: Tensor, chunks: Chunks, pairs: Tensor, centres: Tensor, rate: float,
        random: torch.Generator,
    ) -> Tensor:  # fmt: skip
        """Take one gradient step; return the step for the queries. See ``NegativeSampling.train``."""
        n, width, stride = pairs.shape
        vectors = self.vectors[:-1]
        targets = pairs.new_zeros(n, width, len(self.vectors))
        targets.scatter_add_(2, centres[:, None].expand(n, width, stride), pairs)
        errors = targets[:, :, :-1].reshape(n * width, -1)  # Σ t, without padding
        unfolded = chunks.unfold(queries).reshape(n * width, -1)
        errors -= errors.sum(1, keepdim=True) * (unfolded @ vectors.T).softmax(1)
        errors *= rate
        query_steps = errors @ vectors
        vectors += errors.T @ unfolded
        return chunks.fold(query_steps.view(n, width, -1))


CentrePredictor = HierarchicalSoftmax | NegativeSampling | ExactSoftmax
"""Layer that predicts centre words from queries; see ``NegativeSampling.train``."""


def train_block(
    vectors: Tensor,
    output: CentrePredictor,
    block: Block,
    rate: float,
    random: torch.Generator,
    *,
    cbow: bool,
    divided: bool = False,
) -> None:
    """Take one gradient step with the words of a block.

    All gradients are computed with the vectors before the block, and then added up. A query is the vector of
    a context word (skip-gram) or the mean of the vectors in the window (CBOW).

    Args:
        vectors: (V + 1, D) input vectors, which are changed in place. The last row is for padding.
        divided: divide the step for a mean among the vectors of the window, as the gradient has it. As in the
            original program, all of it is added to each vector by default.
    """
    rows = vectors.index_select(0, block.words)
    contexts, mask = block.contexts, block.mask
    if not cbow:
        steps = output.train(rows, contexts, mask.transpose(1, 2), block.centres, rate, random)
        add_rows(vectors, block.words, steps)
        return
    chunks = Chunks(contexts.n, contexts.stride, contexts.stride)
    sizes = mask.sum(2, keepdim=True)
    means = torch.bmm(mask, contexts.unfold(rows)).div_(sizes.clamp(min=1))
    pairs = (sizes > 0) * torch.eye(contexts.stride)
    steps = output.train(means.view(chunks.n_rows, -1), chunks, pairs, block.centres, rate, random)
    shares = mask / sizes.clamp(min=1) if divided else mask
    spread = torch.bmm(shares.transpose(1, 2), chunks.unfold(steps))
    add_rows(vectors, block.words, contexts.fold(spread))


@dataclass
class TrainingState:
    """Everything that changes in training.

    Generators of random numbers need not be saved, because they are seeded by the position in the text.
    """

    inputs: Tensor
    """(V + 1, D) vectors of context words, the result of training. The last row is for padding."""
    outputs: Tensor
    """(V + 1, D) vectors of predicted words, or of the nodes of the Huffman tree."""
    n_parts: int = 0
    """Number of parts of the text trained on, over all epochs."""
    seconds: float = 0.0
    """Time spent in training."""


def initialise_state(n_words: int, options: Word2VecOptions) -> TrainingState:
    """Return random input vectors in ±1/(2D) and output vectors of zero, as in the original program."""
    random = torch.Generator().manual_seed(options.seed)
    inputs = torch.rand(n_words + 1, options.dimensions, generator=random)
    inputs = inputs.sub_(0.5).div_(options.dimensions)
    return TrainingState(inputs, torch.zeros(n_words + 1, options.dimensions))


def save_state(folder: Path, state: TrainingState, options: Word2VecOptions) -> None:
    """Write the state and the options to ``folder``; raises the errors of ``write_state_file``."""
    tensors = {"inputs": state.inputs, "outputs": state.outputs}
    progress = {"n_parts": state.n_parts, "seconds": state.seconds}
    runs.Run(folder, options).save(tensors, progress, f"part {state.n_parts} of the text")


def load_state(folder: Path, n_words: int, options: Word2VecOptions) -> TrainingState:
    """Restore a saved state; raises the errors of ``Run.load``."""
    return runs.Run(folder, options).load(
        lambda tensors, progress: TrainingState(tensors["inputs"], tensors["outputs"], **progress),
        dict.fromkeys(("inputs", "outputs"), (n_words + 1, options.dimensions)),
        "word vectors",
    )


@dataclass(frozen=True, eq=False)
class NeighbourModel:
    """Input and output vectors of CBOW or skip-gram, whose rows are in the order of the vocabulary."""

    words: tuple[str, ...]
    counts: np.ndarray
    """(V,) occurrences of each word in the training text."""
    inputs: np.ndarray
    """(V, D) float32, vectors of context words."""
    outputs: np.ndarray
    """(V, D) float32, vectors of predicted words; or (V - 1, D), of the nodes of the Huffman tree."""
    options: Word2VecOptions

    @cached_property
    def index(self) -> dict[str, int]:
        """Row of each word."""
        return {word: row for row, word in enumerate(self.words)}

    def log_probs(self, queries: np.ndarray) -> np.ndarray:
        """Compute ln P(word | query) of all words, (N, D) → (N, V) float64.

        With negative sampling, the score q·v estimates ln P(w | q) / (k P'(w)), where P' is the distribution
        of noise words (Levy & Goldberg 2014). So P(w | q) is proportional to P'(w) exp q·v.
        """
        scores = (queries.astype(np.float32) @ self.outputs.T).astype(np.float64)
        if self.options.output_layer == "hierarchical":
            decisions = np.concatenate([_log_sigmoid(scores), _log_sigmoid(-scores)], axis=1)
            return np.asarray((self._paths @ decisions.T).T)
        if self.options.output_layer == "negative":
            scores += self.options.noise_exponent * np.log(self.counts)
        scores -= scores.max(axis=1, keepdims=True)
        return np.asarray(scores - np.log(np.exp(scores).sum(axis=1, keepdims=True)))

    @cached_property
    def _paths(self) -> csr_array:
        """Decisions on the path to each word, (V, 2 (V - 1)): first the nodes of which the path takes the
        first child, then those of which it takes the other one.
        """
        from scipy.sparse import csr_array

        n_words = len(self.words)
        starts, nodes, sides = leaf_paths(build_huffman_tree(self.counts), n_words)
        shape = (n_words, 2 * (n_words - 1))
        return csr_array((np.ones(len(nodes)), nodes + sides * (n_words - 1), starts), shape=shape)


def load_neighbour_model(folder: Path) -> NeighbourModel:
    """Load the vectors of a run, which may still be in training.

    Raises:
        ConfigError: the folder has no run of CBOW or skip-gram.
        BundleError: the run's files are damaged.
    """
    if not (folder / runs.VECTORS_STATE_FILE).exists():
        raise ConfigError(f"{folder} has no run of vectors train; expected a folder given to its --run")
    words, counts = runs.load_vocabulary(folder)
    try:
        options = Word2VecOptions(**read_options(folder / runs.VECTORS_STATE_FILE))
    except (KeyError, TypeError, ValueError, ConfigError) as error:
        path = folder / runs.VECTORS_STATE_FILE
        raise BundleError(f"{path} is not the state of a run of word vectors: {error!r}") from None
    state = load_state(folder, len(words), options)
    n_outputs = len(words) - (options.output_layer == "hierarchical")
    inputs, outputs = state.inputs[:-1].numpy(), state.outputs[:n_outputs].numpy()
    return NeighbourModel(words, counts, inputs, outputs, options)


def _log_sigmoid(values: np.ndarray) -> np.ndarray:
    return -np.logaddexp(0, -values)


PART_IDS = 20_000
"""Number of ids per part of the text. Each thread trains on one part after another."""
CHUNK_WORDS = {"negative": 16, "hierarchical": 8, "full": 8}
"""Number of neighbouring centre words per matrix product, by output layer.

Larger chunks need fewer products, but compute more scores between words that are not in the same window."""
NOISE_WORDS = 16
"""The words of a chunk share at least this many noise words. With fewer, vectors get worse."""
MAX_VALUE = 100.0
"""Largest absolute value in a vector. Useful vectors stay within about ten; in training that diverges, values
exceed this limit long before they become infinite."""
MAX_OCCURRENCES = 16
"""Maximum expected number of occurrences of one word per block. The sum of more steps would overshoot."""


class Word2VecTrainer(runs.PartTrainer):
    """Trains the vectors of a state on a text."""

    unit, parts_per_round = "words", 32

    def __init__(self, text: runs.EncodedText, options: Word2VecOptions, state: TrainingState) -> None:
        super().__init__(state, -(-len(text.ids) // PART_IDS), options.epochs)
        self.text, self.options, self.state = text, options, state
        self.words_per_part = [
            np.count_nonzero(self._ids(part) != text.sentence_end) for part in range(self.parts_per_epoch)
        ]
        keep = keep_probabilities(text.counts, options.subsample)
        block_words = limit_block(text.counts * keep, options.block_words)
        chunk_words = min(CHUNK_WORDS[options.output_layer], block_words)
        self.windows = WindowSampler(keep, options.window, chunk_words, block_words)
        self.output = make_output_layer(text.counts, options, state)

    def count(self, parts: range) -> int:
        """Count the words in parts of the text, including words that are too rare for the vocabulary."""
        return sum(int(self.words_per_part[part % self.parts_per_epoch]) for part in parts)

    def train_part(self, part: int) -> float:
        """Train on one part of the text."""
        seed = np.random.SeedSequence([self.options.seed, part]).generate_state(1, np.uint64)
        random, rate = torch.Generator().manual_seed(int(seed[0])), self.learning_rate(part)
        for block in self.windows.draw_blocks(self._ids(part), random):
            train_block(
                self.state.inputs,
                self.output,
                block,
                rate,
                random,
                cbow=self.options.model == "cbow",
                divided=self.options.cbow_step == "divided",
            )
        return 0.0

    def finish_round(self, parts: range) -> str:
        """Raise ScoringError if a vector has a value beyond ``MAX_VALUE``; return an empty note."""
        largest = float(torch.stack([self.state.inputs.abs().max(), self.state.outputs.abs().max()]).max())
        if not largest <= MAX_VALUE:  # also if it is not a number
            raise ScoringError(
                f"training diverged: vectors have values of {largest:g}; expected at most {MAX_VALUE:g}. "
                f"Start again with a lower --learning-rate (now {self.options.initial_learning_rate:g}) or "
                f"a lower --block-words (now {self.options.block_words})"
            )
        return ""

    def learning_rate(self, part: int) -> float:
        """Return the learning rate of a part, which decreases linearly over all epochs."""
        first, last = self.options.initial_learning_rate, self.options.final_learning_rate
        return first + (last - first) * part / self.n_parts

    def _ids(self, part: int) -> np.ndarray:
        begin = part % self.parts_per_epoch * PART_IDS
        return self.text.ids[begin : begin + PART_IDS]


def make_output_layer(counts: np.ndarray, options: Word2VecOptions, state: TrainingState) -> CentrePredictor:
    """Return the output layer that the options name, which trains the output vectors of the state."""
    if options.output_layer == "hierarchical":
        return HierarchicalSoftmax(state.outputs, counts)
    if options.output_layer == "full":
        return ExactSoftmax(state.outputs)
    noise = NoiseSampler(counts, options.noise_exponent)
    return NegativeSampling(state.outputs, noise, options.negatives, max(NOISE_WORDS, options.negatives))


def limit_block(kept_counts: np.ndarray, block_words: int) -> int:
    """Limit the number of words of a block, so that the steps of one word do not add up and diverge.

    A block has at most as many words as the vocabulary. Of the most frequent word, it is expected to have at
    most ``MAX_OCCURRENCES``.

    Args:
        kept_counts: (V,) occurrences of each word after subsampling.
    """
    most = int(MAX_OCCURRENCES * kept_counts.sum() / kept_counts.max())
    return max(1, min(block_words, len(kept_counts), most))


REPORT_FILE = "training.json"


def start_run(texts: Sequence[Path], normaliser: Normaliser, folder: Path, options: Word2VecOptions) -> None:
    """Prepare the text and the first state of a run.

    Raises:
        FormatError: a text cannot be read or has no words.
        ConfigError: the folder has a run, or the text has too few frequent words.
        ScoringError: the disk is full.
    """
    text = runs.start_text(texts, normaliser, folder, options.min_count)
    if options.output_layer == "full" and len(text.words) > MAX_FULL_WORDS:
        raise ConfigError(
            f"the vocabulary has {len(text.words):,} words; expected at most {MAX_FULL_WORDS:,} for "
            "--output-layer full: give a higher --min-count, or choose negative or hierarchical"
        )
    save_state(folder, initialise_state(len(text.words), options), options)


def run(folder: Path, options: Word2VecOptions, threads: int) -> tuple[WordVectors, dict[str, Any]]:
    """Train the run of a folder from its saved state to the end, and write a report to the folder.

    Returns:
        The vectors, and the report: sizes of text and vocabulary, time and speed.

    Raises:
        ConfigError: the folder has no run, or one with other options.
        BundleError: the run's files are damaged.
        ScoringError: training diverges, or a file cannot be written.
    """
    keep_freed_memory()
    text = runs.load_text(folder)
    state = load_state(folder, len(text.words), options)
    n_parts_before, seconds_before = state.n_parts, state.seconds
    trainer = Word2VecTrainer(text, options, state)
    trainer.train(threads, lambda: save_state(folder, state, options))
    n_words = trainer.count(range(n_parts_before, trainer.n_parts))
    seconds = state.seconds - seconds_before
    report = {
        "vocabulary": len(text.words),
        "words": text.n_words,
        "seconds": round(state.seconds, 1),
        "words_per_second": round(n_words / seconds) if seconds else None,
    }
    (folder / REPORT_FILE).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return WordVectors(text.words, state.inputs[:-1].numpy()), report
