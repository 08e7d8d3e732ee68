"""Transformer decoders (Vaswani et al. 2017) over sequences of words.

``tree_attention`` runs them over the prefixes of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from rescorer.models.kernels import linear
from rescorer.models.network_files import NetworkConfig, feedforward_size
from rescorer.models.networks import State, apply_dropout, drop_words, project
from rescorer.models.tree_attention import UNLIMITED, attend


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

    def attention_inputs(self, x: Tensor, rotations: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """See ``TreeLayer``."""
        assert rotations is not None
        queries, keys, values = self.project(x)
        turns = rotations.unsqueeze(-2)
        return rotate(queries, turns), rotate(keys, turns), values

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """See ``TreeLayer``."""
        x = x + self.merge_heads(attended)
        return x + self.feed_forward(x)

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
    def device(self) -> torch.device:
        return self.norm.device

    @property
    def key_size(self) -> int:
        """See ``TreeNetwork``."""
        return self.hidden_size

    @property
    def windows(self) -> tuple[int, ...]:
        """See ``TreeNetwork``."""
        return (self.window,) * len(self.layers)

    @property
    def n_positions(self) -> int:
        """See ``TreeNetwork``; all of a path, since only the nearest words are attended to."""
        return UNLIMITED

    @property
    def query_scale(self) -> None:
        """See ``TreeNetwork``."""
        return None

    def add_positions(self, inputs: Tensor, positions: Tensor) -> Tensor:
        """See ``TreeNetwork``; positions only turn heads."""
        return inputs

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
