"""Transformer decoders: the network, and its scores of a trie in which each distinct prefix is computed once.

For scoring, all prefixes of a batch form one tree. Its root is the start word. Below the root are the
distinct prefixes of the contexts, and below each context the trie of its hypotheses. So words that contexts
share at their beginning are read once.

The tree is divided into blocks of nodes that are adjacent in preorder. An ancestor of a node of a block is in
the block too, or on the path from the root to the block's first node. So the nodes of a block attend to one
set of keys, those of the block and of this path, and a mask excludes the keys that are not a node's own
ancestors. That makes the matrix products dense.

Blocks are computed in chunks. Between chunks, only the keys and values on the paths to later blocks are kept.
This bounds the memory, whatever the size of the tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from rescorer.models.contexts import RowCache
from rescorer.models.kernels import linear, to_device
from rescorer.models.network_files import NetworkConfig, feedforward_size
from rescorer.models.networks import State, apply_dropout, drop_words, project
from rescorer.runtime import count_context_words
from rescorer.trie import SENTENCE_END, HypothesisTrie, Words, build_trie


def rotary_table(n_positions: int, head_size: int, like: Tensor) -> Tensor:
    """Rotations of the positions 0 … n - 1, (n, head_size / 2) complex, on the device of ``like``.

    Rotary positions (Su et al. 2021) turn pair i of a query or key at position p by the angle p ·
    10000^(-2i/d), so that products depend only on differences of positions. Angles are computed in float64,
    because in float32 those of positions beyond some thousands are inexact.
    """
    exponents = torch.arange(0, head_size, 2, dtype=torch.float64, device=like.device) / head_size
    positions = torch.arange(n_positions, dtype=torch.float64, device=like.device)
    angles = positions.unsqueeze(1) * 10_000.0**-exponents
    dtype = torch.complex128 if like.dtype == torch.float64 else torch.complex64
    return torch.polar(torch.ones_like(angles), angles).to(dtype)


def rotate(values: Tensor, rotations: Tensor) -> Tensor:
    """Turn each pair of values of every head: (..., heads, d), (..., 1, d / 2) complex → (..., heads, d)."""
    precise = values if values.dtype == torch.float64 else values.float()
    pairs = torch.view_as_complex(precise.unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * rotations).flatten(-2).to(values.dtype)


def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Scaled dot-product attention (Vaswani et al. 2017), (B, Q, heads, d), (B, K, heads, d) → (B, Q, H).

    Args:
        mask: (B or 1, 1, Q, K) bool, whether each query sees each key. None: each query sees the keys up to
            its own position.
    """
    queries, keys, values = (part.transpose(1, 2) for part in (queries, keys, values))
    attended = functional.scaled_dot_product_attention(queries, keys, values, mask, is_causal=mask is None)
    return attended.transpose(1, 2).flatten(2)


def window_mask(n_before: Tensor, n_memory: int, n_words: int, window: int) -> Tensor:
    """Whether each of T words sees each of M keys in memory and of the T words' own keys: (B, 1, T, M + T).

    A word sees ``window`` words, including itself. Of the keys in memory, only the last ``n_before``, (B,),
    are valid.
    """
    words = torch.arange(n_memory, n_memory + n_words, device=n_before.device).unsqueeze(1)  # (T, 1)
    keys = torch.arange(n_memory + n_words, device=n_before.device)
    seen = (keys <= words) & (keys > words - window)  # (T, M + T)
    valid = keys >= n_memory - n_before.unsqueeze(1)  # (B, M + T)
    return (seen & valid.unsqueeze(1)).unsqueeze(1)


NORM_EPSILON = 1e-5
SEGMENT_WORDS = 256
"""Longest segment that is read at once, or the window if that is larger. Longer texts are read in several,
because a segment's mask grows with the square of its length."""


class TransformerLayer(nn.Module):
    """Attention and a gated feed-forward network, each added to its input: x + f(normalise(x)).

    Normalisation precedes each part (Xiong et al. 2020) and is that of Zhang & Sennrich (2019). The
    feed-forward network is SwiGLU (Shazeer 2020). There are no biases, as in LLaMA (Touvron et al. 2023).
    """

    def __init__(self, hidden: int, heads: int, layers: int) -> None:
        super().__init__()
        self.heads, self.units = heads, feedforward_size(hidden)
        self.attention_norm = nn.Parameter(torch.ones(hidden))
        self.queries_keys_values = nn.Parameter(_random_matrix(3 * hidden, hidden))
        self.attention_output = nn.Parameter(_random_matrix(hidden, hidden) * (2 * layers) ** -0.5)
        self.feedforward_norm = nn.Parameter(torch.ones(hidden))
        self.gate_and_input = nn.Parameter(_random_matrix(2 * self.units, hidden))
        self.feedforward_output = nn.Parameter(_random_matrix(hidden, self.units) * (2 * layers) ** -0.5)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of each head, (..., H) → (..., heads, d)."""
        projected = linear(normalise(x, self.attention_norm), self.queries_keys_values)
        queries, keys, values = projected.unflatten(-1, (3, self.heads, -1)).unbind(-3)
        return queries, keys, values

    def merge_heads(self, attended: Tensor) -> Tensor:
        """Output of attention, to add to its input, (..., H) → (..., H)."""
        return linear(attended, self.attention_output)

    def feed_forward(self, x: Tensor) -> Tensor:
        """Output of the feed-forward network, to add to its input, (..., H) → (..., H)."""
        gate, inner = linear(normalise(x, self.feedforward_norm), self.gate_and_input).chunk(2, dim=-1)
        activated = functional.silu(gate)
        activated = activated * inner if torch.is_grad_enabled() else activated.mul_(inner)
        return linear(activated, self.feedforward_output)


class TransformerNetwork(nn.Module):
    """Embedding, transformer layers, and a last normalisation.

    In each layer, a word attends to itself and the ``window`` - 1 words before it. The state consists of the
    keys and values of these words, so that its size is bounded. The keys are stored before rotation. They are
    rotated with positions counted from the oldest word of the state, since products depend only on
    differences of positions. If hidden and embedding sizes differ, linear projections convert between them.
    """

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        embedding, hidden = config.embedding_size, config.hidden_size
        self.window, self.output_size, self.hidden_size = config.window, embedding, hidden
        self.heads = config.heads
        self.dropout, self.locked = config.dropout, config.locked_dropout
        self.embedding_dropout = config.embedding_dropout
        self.embedding = nn.Embedding(config.vocabulary_size, embedding)
        nn.init.normal_(self.embedding.weight, std=embedding**-0.5)
        self.layers = nn.ModuleList(
            TransformerLayer(hidden, config.heads, config.layers) for _ in range(config.layers)
        )
        # Small at first, so that the output layer starts near the distribution of its biases.
        self.norm = nn.Parameter(torch.full((hidden,), hidden**-0.25))
        same = hidden == embedding
        self.input_projection = nn.Identity() if same else nn.Linear(embedding, hidden, bias=False)
        self.projection = nn.Identity() if same else nn.Linear(hidden, embedding, bias=False)

    def forward(
        self, words: Tensor, state: State | None = None, topics: Tensor | None = None
    ) -> tuple[Tensor, State]:
        assert topics is None, "transformers have no topics"
        words = words.t()  # (T, B), as in the other networks
        embedded = self.embedding(words) * self.output_size**0.5
        if self.training:
            embedded = drop_words(embedded, words, self.embedding.num_embeddings, self.embedding_dropout)
        x, state = self._read(self._apply_dropout(project(embedded, self.input_projection)), state)
        return self._apply_dropout(self.vectors(x)).transpose(0, 1), state  # (B, T, E)

    def _read(self, x: Tensor, state: State | None) -> tuple[Tensor, State]:
        """Run all layers over the next words, (T, B, H) → (T, B, H)."""
        segments = x.split(max(SEGMENT_WORDS, self.window))
        if len(segments) > 1:
            first, state = self._read(segments[0], state)
            read = [first]
            for segment in segments[1:]:
                vectors, state = self._read(segment, state)
                read.append(vectors)
            return torch.cat(read), state
        n_words, n_rows = x.shape[:2]
        n_before, *memory = self._empty_state(n_rows, 0) if state is None else state
        n_memory = memory[0].shape[1]
        rotations = self.rotations(n_memory + n_words).unsqueeze(1)  # (M + T, 1, d / 2)
        whole = state is None and n_words <= self.window
        mask = None if whole else window_mask(n_before, n_memory, n_words, self.window)
        after = [(n_before + n_words).clamp(max=self.window - 1)]
        for layer, *before in zip(self.blocks, memory[::2], memory[1::2], strict=True):
            queries, keys, values = (part.transpose(0, 1) for part in layer.project(x))  # (B, T, heads, d)
            keys, values = map(_append, before, (keys, values))
            attended = attend(
                rotate(queries, rotations[n_memory:]), rotate(keys, rotations), values, mask
            ).transpose(0, 1)
            x = x + self._apply_dropout(layer.merge_heads(attended))
            x = x + self._apply_dropout(layer.feed_forward(x))
            after += [
                part[:, max(0, part.shape[1] - self.window + 1) :].flatten(2) for part in (keys, values)
            ]
        return x, tuple(after)

    @property
    def blocks(self) -> Iterator[TransformerLayer]:
        """The layers, typed."""
        return (layer for layer in self.layers if isinstance(layer, TransformerLayer))

    def rotations(self, n_positions: int) -> Tensor:
        """Rotations of the first positions; see ``rotary_table``."""
        return rotary_table(n_positions, self.hidden_size // self.heads, self.norm)

    def vectors(self, x: Tensor) -> Tensor:
        """Context vectors from the output of the last layer, (..., H) → (..., D)."""
        return project(normalise(x, self.norm), self.projection)

    def _apply_dropout(self, values: Tensor) -> Tensor:
        return apply_dropout(values, self.dropout, self.locked) if self.training else values

    def initial_state(self, n: int) -> State:
        """Return states without words. A state is the number of its words, (N,), then the keys and the values
        of each layer, (N, window - 1, H).
        """
        return self._empty_state(n, self.window - 1)

    def _empty_state(self, n: int, n_memory: int) -> State:
        zeros = self.norm.new_zeros(n, n_memory, self.hidden_size)
        n_before = torch.zeros(n, dtype=torch.int64, device=zeros.device)
        return (n_before, *(zeros,) * (2 * len(self.layers)))

    def step_matrices(self) -> list[Tensor]:
        """The matrices that scoring multiplies for each word: all except the embedding and its projection."""
        matrices: list[Tensor] = [*self.layers.parameters(), *self.projection.parameters()]
        return [matrix for matrix in matrices if matrix.dim() > 1]

    def inputs(self, words: Tensor) -> Tensor:
        embedded = self.embedding(words).to(self.norm.dtype) * self.output_size**0.5
        return project(embedded, self.input_projection)  # (W, H)

    def topic_inputs(self, topics: Tensor) -> Tensor:
        raise NotImplementedError("transformers have no topics")

    def step(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        x, state = self._read(inputs.unsqueeze(0), state)
        return self.vectors(x[0]), state


def normalise(x: Tensor, gain: Tensor) -> Tensor:
    """Divide each vector by the root mean square of its values, and multiply it by the gains."""
    return functional.rms_norm(x.to(gain.dtype), gain.shape, gain, NORM_EPSILON)


def _random_matrix(rows: int, columns: int) -> Tensor:
    return torch.randn(rows, columns) * columns**-0.5


def _append(before: Tensor, new: Tensor) -> Tensor:
    """Append the keys or values of new words to those in memory, (B, M, H), (B, T, heads, d)."""
    return torch.cat([before.to(new.dtype).unflatten(-1, new.shape[2:]), new], dim=1)


@dataclass(frozen=True, slots=True)
class PrefixTree:
    """The tree of all prefixes of a batch: parents before children, and the nodes of contexts first."""

    parent: np.ndarray  # (N,) parent of each node; the root, node 0, is its own parent
    word: np.ndarray  # (N,) the model's id of the word on the edge into each node
    position: np.ndarray  # (N,) number of words before that word
    first: np.ndarray  # (N,) number of each node in preorder
    last: np.ndarray  # (N,) number in preorder of the last node of its subtree
    context_levels: Sequence[slice]  # nodes of contexts below the root, one slice per number of words
    trie_nodes: np.ndarray  # for each node of the trie, the node of this tree

    @property
    def n_contexts(self) -> int:
        """Number of nodes of contexts, including the root."""
        return self.context_levels[-1].stop if self.context_levels else 1


def build_prefix_tree(
    trie: HypothesisTrie, ids: np.ndarray, encode: Callable[[Words], np.ndarray], start_word: int
) -> PrefixTree:
    """Build the tree of a batch.

    Args:
        ids: the model's ids of the trie's words.
        encode: returns the model's ids of words, and the id of ``</s>`` for ``SENTENCE_END``.
    """
    words = (*trie.words, SENTENCE_END)
    contexts = build_trie([tuple(words[i] for i in context) for context in trie.contexts])
    shift = contexts.n_nodes - trie.n_roots
    trie_nodes = np.concatenate([contexts.hypothesis_node, np.arange(trie.n_roots, trie.n_nodes) + shift])
    parent = np.concatenate([contexts.parent, trie_nodes[trie.parent[trie.n_roots :]]])
    word = np.concatenate(
        [
            [start_word],
            np.append(encode(contexts.words), 0)[contexts.node_word[1:]],
            ids[trie.node_word[trie.n_roots :]],
        ]
    )
    trie_levels = [slice(level.start + shift, level.stop + shift) for level in trie.levels()]
    levels = [*contexts.levels(), *trie_levels]
    position = np.zeros(len(parent), dtype=np.int64)
    for level in levels:
        position[level] = position[parent[level]] + 1
    first, last = number_in_preorder(parent, levels)
    return PrefixTree(parent, word, position, first, last, contexts.levels(), trie_nodes)


def number_in_preorder(parent: np.ndarray, levels: Sequence[slice]) -> tuple[np.ndarray, np.ndarray]:
    """Number nodes in preorder; return the number of each, and of the last node of its subtree, (N,) each.

    Args:
        levels: the nodes below the root; the children of a node are in later levels.
    """
    sizes = np.ones(len(parent), dtype=np.int64)
    for level in reversed(levels):
        np.add.at(sizes, parent[level], sizes[level])
    first = np.zeros(len(parent), dtype=np.int64)
    free = first + 1  # number of the next child of each node
    for level in levels:
        # Siblings side by side: those below equal contexts, which only differ in earlier sentences, are not.
        nodes = level.start + np.argsort(parent[level], kind="stable")
        above, size = parent[nodes], sizes[nodes]
        before = np.cumsum(size) - size
        is_eldest = np.diff(above, prepend=-1) != 0
        before -= before[is_eldest][np.cumsum(is_eldest) - 1]
        first[nodes] = free[above] + before
        free[nodes] = first[nodes] + 1
        np.add.at(free, above, size)
    return first, first + sizes - 1


def needed_context_nodes(tree: PrefixTree, window: int, cached: np.ndarray) -> np.ndarray:
    """Whether each node of a context, (n_contexts,), is needed to compute the vectors of the trie.

    Needed are the roots of the trie, and the ``window`` - 1 nodes above each node that has to be computed.

    Args:
        cached: (n_contexts,) bool, the nodes that need not be computed.
    """
    reach = np.zeros(tree.n_contexts, dtype=np.int64)  # number of nodes that are needed from here upwards
    roots = tree.trie_nodes[tree.trie_nodes < tree.n_contexts]
    reach[roots] = max(1, window - 1)
    for level in reversed(tree.context_levels):
        above = np.where(cached[level], reach[level] - 1, np.where(reach[level] > 0, window - 1, 0))
        np.maximum.at(reach, tree.parent[level], above)
    return reach > 0


BLOCK_NODES = 64
"""Number of nodes per block. In larger blocks, the mask of each node excludes more keys; for smaller blocks,
the keys of paths are copied more often."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Blocks of nodes that are computed together. A chunk's keys are those of ``path``, then of ``nodes``."""

    nodes: np.ndarray  # (n,) nodes in preorder
    path: np.ndarray  # (P,) nodes of earlier chunks whose keys are used, now or later, in preorder
    path_keys: np.ndarray  # (P,) index of the key of each node of ``path`` in the chunk before
    block_keys: np.ndarray  # (blocks, K) keys of each block, as indices into the chunk's keys
    query_nodes: np.ndarray  # (blocks, BLOCK_NODES) nodes of each block; the last block repeats its last node
    key_nodes: np.ndarray  # (blocks, K) node of each of ``block_keys``, -1 where there is none


def plan_chunks(tree: PrefixTree, kept: np.ndarray, window: int, chunk_nodes: int) -> Iterator[Chunk]:
    """Divide the ``kept`` nodes of a tree, (N,) bool, into chunks.

    Args:
        window: number of nodes to which a node attends: itself and its nearest ancestors.
        chunk_nodes: largest number of nodes of a chunk, a multiple of ``BLOCK_NODES``.
    """
    nodes = np.flatnonzero(kept)
    nodes = nodes[np.argsort(tree.first[nodes])]
    number = np.full(len(tree.parent), -1)  # of each node among those that are kept
    number[nodes] = np.arange(len(nodes))
    paths = _block_paths(tree, nodes, number, window)  # (blocks, P)
    starts = range(0, len(nodes), chunk_nodes)
    blocks_per_chunk = chunk_nodes // BLOCK_NODES
    used = [paths[i * blocks_per_chunk : (i + 1) * blocks_per_chunk] for i in range(len(starts))]
    later = np.zeros(0, dtype=np.int64)
    kept_paths: list[np.ndarray] = []
    for start, path in zip(reversed(starts), reversed(used), strict=True):
        later = np.unique(np.concatenate([later, path.ravel()]))
        later = later[(later >= 0) & (later < start)]
        kept_paths.append(later)
    before = np.zeros(0, dtype=np.int64)  # numbers whose keys the chunk before has
    for start, path, block_paths in zip(starts, reversed(kept_paths), used, strict=True):
        numbers = np.arange(start, min(start + chunk_nodes, len(nodes)))
        keys = np.concatenate([path, numbers])
        queries, key_numbers = _lay_out_blocks(numbers, block_paths)
        key_nodes = np.where(key_numbers >= 0, nodes[key_numbers], -1)
        block_keys = np.searchsorted(keys, np.maximum(key_numbers, keys[0]))
        yield Chunk(
            nodes[numbers], nodes[path], np.searchsorted(before, path), block_keys, nodes[queries], key_nodes
        )
        before = keys


def _block_paths(tree: PrefixTree, nodes: np.ndarray, number: np.ndarray, window: int) -> np.ndarray:
    """For each block, ancestors of its first node to which its nodes may attend: (blocks, P), -1 for none.

    Args:
        nodes: the nodes that are kept, in preorder.
        number: index of each node of the tree in ``nodes``; the result consists of such indices.
    """
    first = np.arange(0, len(nodes), BLOCK_NODES)
    lowest = np.minimum.reduceat(tree.position[nodes], first) - window + 1
    node, columns = nodes[first], list[np.ndarray]()
    while (has_more := tree.position[node] > np.maximum(lowest, 0)).any():
        node = np.where(has_more, tree.parent[node], node)
        columns.append(np.where(has_more, number[node], -1))
    return np.stack(columns, axis=1) if columns else np.zeros((len(first), 0), dtype=np.int64)


def _lay_out_blocks(numbers: np.ndarray, paths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lay out the blocks of a chunk: queries, (blocks, BLOCK_NODES), and keys, (blocks, K), -1 for none.

    Args:
        numbers: the nodes of the chunk, in preorder.
        paths: (blocks, P) result of ``_block_paths``.
    """
    paths = paths[:, (paths >= 0).any(axis=0)]
    filled = np.arange(numbers[0], numbers[0] + BLOCK_NODES * len(paths)).reshape(len(paths), BLOCK_NODES)
    queries = np.minimum(filled, numbers[-1])
    # A node that fills up the last block would be a key twice.
    return queries, np.concatenate([paths, np.where(filled == queries, filled, -1)], axis=1)


CHUNK_NODES = {"cpu": 1024, "cuda": 32_768}
"""Number of nodes per chunk: on a CPU, few enough for the cache; on a GPU, enough to keep it busy."""


def tree_vectors(network: TransformerNetwork, tree: PrefixTree, cache: RowCache) -> tuple[Tensor, np.ndarray]:
    """Compute the context vectors of a trie, (U, D), and the row of each node's vector, (N,).

    Nodes of contexts are not computed again if their vectors, keys and values are cached.
    """
    return _TreeRun(network, tree, cache).run()


class _TreeRun:
    """The computation of one tree, chunk by chunk."""

    def __init__(self, network: TransformerNetwork, tree: PrefixTree, cache: RowCache) -> None:
        self.network, self.tree, self.cache = network, tree, cache
        self.device = network.norm.device
        self.names = _name_contexts(tree) if cache.max_bytes else []
        is_cached, self.cached_rows = cache.recall_rows(self.names)  # (n_contexts,), (cached, D + 2·L·H)
        self.cached_row = np.full(len(tree.parent), -1)
        """(N,) row of each node in ``cached_rows``; -1 for nodes that have to be computed."""
        self.cached_row[: len(is_cached)][is_cached] = np.arange(is_cached.sum())
        distinct_words, self.input_row = np.unique(tree.word, return_inverse=True)
        self.inputs = network.inputs(self._to_device(distinct_words))
        self.rotations = network.rotations(int(tree.position.max()) + 1).unsqueeze(1)  # (positions, 1, d / 2)
        self.ranges = [*map(self._to_device, (tree.first, tree.last, tree.position))]
        self.keys_and_values: list[Tensor] = []
        """Keys, values, keys, values, … of the last chunk, layer by layer, (P + n, heads, d) each."""
        self.key_rows = np.zeros(0, dtype=np.int64)
        """Row in ``keys_and_values`` of each key of the last chunk."""
        self.vectors: list[Tensor] = []
        self.n_vectors = 0
        self.row_of_node = np.zeros(len(tree.parent), dtype=np.int64)
        self.stored = np.zeros(0, dtype=np.int64)
        """Nodes of contexts that are to be cached."""
        self.new_names: list[bytes] = []
        self.new_rows: list[Tensor] = []

    def run(self) -> tuple[Tensor, np.ndarray]:
        """See ``tree_vectors``."""
        tree, n_contexts, window = self.tree, self.tree.n_contexts, self.network.window
        is_cached = self.cached_row[:n_contexts] >= 0
        kept = np.ones(len(tree.parent), dtype=bool)
        kept[:n_contexts] = needed_context_nodes(tree, window, is_cached)
        n_read = int((kept[1:n_contexts] & ~is_cached[1:]).sum())
        count_context_words(n_contexts - 1, n_contexts - 1 - n_read)
        # Later requests need no other words of these contexts, even if they continue them.
        is_useful = needed_context_nodes(tree, window, np.ones(n_contexts, dtype=bool))
        if self.names:
            self.stored = np.flatnonzero(is_useful[1:] & ~is_cached[1:]) + 1
        for chunk in plan_chunks(tree, kept, window, CHUNK_NODES[self.device.type]):
            self._compute(chunk)
        if self.new_names:
            self.cache.store_rows(self.new_names, torch.cat(self.new_rows))
        return torch.cat(self.vectors), self.row_of_node[tree.trie_nodes]

    def _compute(self, chunk: Chunk) -> None:
        """Compute the vectors of a chunk, and keep its keys and values."""
        is_new = self.cached_row[chunk.nodes] < 0
        new, known = chunk.nodes[is_new], chunk.nodes[~is_new]
        known_rows = self._known_rows(known)
        path_rows = self._to_device(self.key_rows[chunk.path_keys])
        # Rows of keys: those of the path, of new nodes, of known ones.
        row_of_node = np.where(is_new, np.cumsum(is_new) - 1, len(new) + np.cumsum(~is_new) - 1)
        self.key_rows = np.concatenate([np.arange(len(chunk.path)), len(chunk.path) + row_of_node])
        block_keys = self._to_device(self.key_rows[chunk.block_keys])
        mask = self._mask(self._to_device(chunk.query_nodes), self._to_device(chunk.key_nodes))
        queried = np.zeros(chunk.query_nodes.size, dtype=np.int64)  # known nodes have no queries
        queried[: len(is_new)][is_new] = np.arange(len(new))
        query_rows, places = self._to_device(queried), self._to_device(np.flatnonzero(is_new))

        x = self.inputs.index_select(0, self._to_device(self.input_row[new]))
        rotations = self.rotations.index_select(0, self._to_device(self.tree.position[new]))
        before, after = self.keys_and_values, list[Tensor]()
        for number, layer in enumerate(self.network.blocks):
            queries, keys, values = layer.project(x)  # (n, heads, d)
            for part, tensor in enumerate((rotate(keys, rotations), values), start=2 * number):
                path = [before[part].index_select(0, path_rows)] if before else []
                after.append(torch.cat([*path, tensor, known_rows[part + 1].view(-1, *tensor.shape[1:])]))
            if not len(new):
                continue
            blocks = rotate(queries, rotations).index_select(0, query_rows).unflatten(0, (-1, BLOCK_NODES))
            keys, values = (
                part.index_select(0, block_keys.flatten()).unflatten(0, block_keys.shape)
                for part in after[-2:]
            )
            attended = attend(blocks, keys, values, mask).flatten(0, 1).index_select(0, places)
            x = x + layer.merge_heads(attended)
            x = x + layer.feed_forward(x)
        self.keys_and_values = after
        self._keep(new, known, self.network.vectors(x), known_rows[0])

    def _mask(self, query_nodes: Tensor, key_nodes: Tensor) -> Tensor:
        """Whether each node of a block attends to each key, (blocks, 1, BLOCK_NODES, K); see ``Chunk``."""
        queries, keys, (first, last, position) = query_nodes.unsqueeze(2), key_nodes.unsqueeze(1), self.ranges
        order = first[queries]
        mask = (first[keys] <= order) & (order <= last[keys]) & (keys >= 0)
        return (mask & (position[queries] - position[keys] < self.network.window)).unsqueeze(1)

    def _known_rows(self, nodes: np.ndarray) -> list[Tensor]:
        """Return the cached vectors of nodes, (n, D), then keys and values of each layer, (n, H) each."""
        sizes = [self.network.output_size] + [self.network.hidden_size] * 2 * len(self.network.layers)
        if not len(nodes):
            return list(self.inputs.new_empty(0, sum(sizes)).split(sizes, dim=1))
        rows = self.cached_rows.index_select(0, self._to_device(self.cached_row[nodes]))
        return list(rows.split(sizes, dim=1))

    def _keep(self, new: np.ndarray, known: np.ndarray, vectors: Tensor, known_vectors: Tensor) -> None:
        """Keep the vectors of a chunk for the result, and the rows of its new nodes that will be cached."""
        self.row_of_node[new] = self.n_vectors + np.arange(len(new))
        self.row_of_node[known] = self.n_vectors + len(new) + np.arange(len(known))
        self.n_vectors += len(new) + len(known)
        self.vectors += [vectors, known_vectors]
        stored = np.flatnonzero(np.isin(new, self.stored))
        if len(stored):
            self.new_names += [self.names[node] for node in new[stored]]
            rows = self._to_device(stored)
            n_path = len(self.keys_and_values[0]) - len(new) - len(known)
            parts = [part.index_select(0, rows + n_path).flatten(1) for part in self.keys_and_values]
            self.new_rows.append(torch.cat([vectors.index_select(0, rows), *parts], dim=1))

    def _to_device(self, array: np.ndarray) -> Tensor:
        return to_device(array, self.device)


def _name_contexts(tree: PrefixTree) -> list[bytes]:
    """Name each node of a context by a digest of the words up to it, so that the cache has no texts."""
    names = [b""]
    for node in range(1, tree.n_contexts):
        word = int(tree.word[node]).to_bytes(8, "little")
        names.append(blake2b(names[tree.parent[node]] + word, digest_size=16).digest())
    return names
