"""Context networks: they map words to vectors, from which an output layer predicts the next word.

Training calls ``forward`` on whole sequences, and scoring a trie calls ``step`` on single states; both give
the same vectors. A network sees a fixed number of words (feed-forward, log-bilinear) or all words so far
(recurrent).

Recurrent layers have the names, shapes and gate order of ``torch.nn``. Its fused functions are used where
they are fastest: on GPUs, and for the LSTM in float32 everywhere. Elsewhere the gradients are written by
hand, because autograd over the same steps takes three times as long. The loops over positions contain only
the products that depend on the previous position. The input projection, the derivatives of the activations
and the gradient of the recurrent weights are computed for all positions at once. The loops use the dtype of
the gates, which autocast around the input projection determines.
"""

from __future__ import annotations

import warnings
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional

from rescorer.models.kernels import linear, split_weight
from rescorer.models.network_files import NetworkConfig

State = tuple[Tensor, ...]
"""What a network carries from one word to the next: tensors whose first axis is the row or node, (N, …)."""


class StepNetwork(Protocol):
    """A network that reads one word after the other."""

    output_size: int

    def initial_state(self, n: int) -> State:
        """Return the state of n nodes before the first input."""

    def inputs(self, words: Tensor) -> Tensor:
        """Project words for ``step``, once per distinct word: (W,) → (W, I)."""

    def step(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """Advance N nodes by one word: inputs, (N, I), and states → vectors, (N, D), and new states."""


class ContextNetwork(StepNetwork, Protocol):
    """An ``nn.Module`` that maps words to context vectors."""

    embedding: nn.Embedding
    window: int  # number of words on which a context vector depends; 0 if it depends on all words so far

    def forward(
        self, words: Tensor, state: State | None = None, topics: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Compute the context vectors after each word, (B, T) → (B, T, D), and the state after the last word.

        Args:
            state: the state from which each row continues; None: the initial state.
            topics: (B, T, K) or (B, 1, K) features that are read with the words: those of topics or of tags.
                None: zeros.
        """

    def __call__(
        self, words: Tensor, state: State | None = None, topics: Tensor | None = None
    ) -> tuple[Tensor, State]: ...

    def topic_inputs(self, topics: Tensor) -> Tensor:
        """Project topics or tags to add them to inputs of ``step``, or to window sums: (R, K) → (R, I)."""


MASK_LEVELS = 1 << 16  # on CPUs the dropout probability is rounded to a multiple of 1 / ``MASK_LEVELS``


def apply_dropout(values: Tensor, share: float, locked: bool) -> Tensor:
    """Set a share of the values, (T, B, D), to zero, and scale up the others.

    If ``locked``, all positions of a sequence have the same mask (Gal & Ghahramani 2016).
    """
    if not share:
        return values
    if locked:
        return values * functional.dropout(values.new_ones(values.shape[1:]), share)
    if values.is_cuda:
        return functional.dropout(values, share)
    return values * _dropout_mask(values.shape, share).to(values.dtype)


def drop_words(embedded: Tensor, words: Tensor, n_words: int, share: float) -> Tensor:
    """Set the vectors, (T, B, E), of a share of the vocabulary to zero, and scale up the others.

    A dropped word is zero wherever it occurs in the batch (Gal & Ghahramani 2016). ``words``: (T, B) int64.
    """
    if not share:
        return embedded
    kept = functional.dropout(embedded.new_ones(n_words), share)
    return embedded * kept[words].unsqueeze(-1)


def _dropout_mask(shape: torch.Size, share: float) -> Tensor:
    """Factors of a dropout layer: zero for dropped values, 1 / (1 - share) for the others.

    Four values share one random integer. This is five times as fast as one random number per value, which
    would take a third of the training time of a small network.
    """
    threshold = min(round(share * MASK_LEVELS), MASK_LEVELS - 1)
    draws = torch.empty(-(-shape.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    kept = draws.view(torch.int16)[: shape.numel()].view(shape) >= threshold - MASK_LEVELS // 2
    return kept.to(torch.float32).mul_(MASK_LEVELS / (MASK_LEVELS - threshold))


NO_WORD = -1  # marks positions of a state before the first word
ACTIVATIONS = {"tanh": torch.tanh, "sigmoid": torch.sigmoid, "relu": torch.relu, "linear": lambda x: x}


class WindowedNetwork(nn.Module):
    """A network that maps each word in a window linearly, with a matrix per position, and sums the results.

    Positions before the first word of a text are filled with that word. A text starts with ``<s>``, or with
    ``</s>`` if training carried the state across sentences.

    The log-bilinear model (Mnih & Hinton 2007) predicts from the sum itself. A feed-forward network (Bengio
    et al. 2003) applies an activation to it, and may have further hidden layers. As in recurrent networks, a
    linear projection follows if hidden and embedding sizes differ. Topics or tags are one more term of the
    sum (Mirowski et al. 2010).
    """

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.window, self.output_size = config.window, config.embedding_size
        self.dropout, self.locked, self.residual = config.dropout, config.locked_dropout, config.residual
        self.activation = ACTIVATIONS[config.activation]
        embedding, hidden = config.embedding_size, config.hidden_size
        self.embedding = nn.Embedding(config.vocabulary_size, embedding)
        nn.init.normal_(self.embedding.weight, std=embedding**-0.5)
        self.positions = nn.Parameter(torch.empty(config.window, hidden, embedding))  # oldest word first
        nn.init.uniform_(self.positions, -1, 1)
        with torch.no_grad():
            self.positions.mul_((3 / (config.window * embedding)) ** 0.5)
        self.bias = nn.Parameter(torch.zeros(hidden))
        if config.n_features:
            self.topics = nn.Linear(config.n_features, hidden, bias=False)
            nn.init.zeros_(self.topics.weight)
        self.deeper = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(config.layers - 1))
        same = hidden == embedding
        self.projection = nn.Identity() if same else nn.Linear(hidden, embedding, bias=False)

    def forward(
        self, words: Tensor, state: State | None = None, topics: Tensor | None = None
    ) -> tuple[Tensor, State]:
        (before,) = self.initial_state(len(words)) if state is None else state
        seen = torch.cat([before[:, 1:], words], dim=1)  # (B, n - 1 + T)
        seen = torch.where(seen == NO_WORD, words[:, :1], seen)
        embedded = self._apply_dropout(self.embedding(seen.t()))  # (n - 1 + T, B, E)
        if torch.is_autocast_enabled(words.device.type):
            embedded = embedded.to(torch.get_autocast_dtype(words.device.type))
        summed = _PositionSum.apply(embedded, self.positions, self.bias)  # (T, B, H)
        if topics is not None:
            summed = summed + self.topics(topics.transpose(0, 1))
        vectors = self._apply_dropout(self._vectors(summed))
        return vectors.transpose(0, 1), (seen[:, -self.window :],)

    def _vectors(self, summed: Tensor) -> Tensor:
        """Context vectors from the sums over the window, (..., H) → (..., D)."""
        hidden = self.activation(summed)
        for layer in self.deeper:
            deeper = self.activation(layer(self._apply_dropout(hidden)))
            hidden = hidden + deeper if self.residual else deeper
        return self.projection(hidden)

    def _apply_dropout(self, values: Tensor) -> Tensor:
        return apply_dropout(values, self.dropout, self.locked) if self.training else values

    def initial_state(self, n: int) -> State:
        """A state holds the last words, (N, window)."""
        return (torch.full((n, self.window), NO_WORD, device=self.positions.device),)

    def inputs(self, words: Tensor) -> Tensor:
        return words.unsqueeze(1)

    def topic_inputs(self, topics: Tensor) -> Tensor:
        return self.topics(topics)

    def step(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        seen = torch.cat([state[0][:, 1:], inputs], dim=1)
        seen = torch.where(seen == NO_WORD, inputs, seen)
        distinct, indices = torch.unique(seen, return_inverse=True)
        return self.context_vectors(distinct, indices), (seen,)

    def context_vectors(self, words: Tensor, windows: Tensor, added: Tensor | None = None) -> Tensor:
        """Compute the vectors of many contexts, (U, D); each word is multiplied only once per position.

        Args:
            words: (W,) distinct words.
            windows: (U, window) words of each context, oldest first, as indices of ``words``.
            added: (U, H) result of ``topic_inputs`` to be added to each sum; None: nothing is added.
        """
        embedded = self.embedding(words).to(self.positions.dtype)
        products = embedded @ self.positions.transpose(1, 2)  # (window, W, H)
        rows = windows + len(words) * torch.arange(self.window, device=words.device)
        summed = functional.embedding_bag(rows, products.flatten(0, 1), mode="sum") + self.bias
        if added is not None:
            summed += added
        return self._vectors(summed)


class _PositionSum(Function):
    """Compute b + Σ_i C_i e_{t-n+1+i} at all positions t. The shifted sequences are slices, not copies."""

    @staticmethod
    def forward(ctx, embedded, matrices, bias):  # type: ignore[no-untyped-def]
        """embedded: (n - 1 + T, B, E), matrices: (n, H, E), bias: (H,) → (T, B, H)."""
        n = len(matrices)
        batch = embedded.shape[1]
        flat, cast = embedded.flatten(0, 1), matrices.to(embedded.dtype)
        positions = len(embedded) - n + 1
        summed = bias.to(embedded.dtype).repeat(positions * batch, 1)  # always a copy, changed in place below
        for i in range(n):
            summed.addmm_(flat[i * batch : (i + positions) * batch], cast[i].t())
        ctx.save_for_backward(flat, matrices)
        return summed.view(positions, batch, -1)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        flat, matrices = ctx.saved_tensors
        positions, batch = grad.shape[:2]
        grad, cast = grad.flatten(0, 1), matrices.to(flat.dtype)
        flat_grad, matrices_grad = torch.zeros_like(flat), torch.empty_like(matrices)
        for i in range(len(matrices)):
            shifted = slice(i * batch, (i + positions) * batch)
            flat_grad[shifted].addmm_(grad, cast[i])
            matrices_grad[i] = grad.t() @ flat[shifted]
        bias_grad = grad.sum(0, dtype=matrices.dtype)
        return flat_grad.view(-1, batch, flat.shape[1]), matrices_grad, bias_grad


IN_PLACE = {"tanh": torch.tanh_, "sigmoid": torch.sigmoid_, "relu": torch.relu_, "linear": lambda x: x}


def activation_derivative(activation: str, values: Tensor) -> Tensor:
    """Return the derivative of an activation, computed from its outputs, ``values``."""
    match activation:
        case "tanh":
            return 1 - values * values
        case "sigmoid":
            return values * (1 - values)
        case "relu":
            return (values > 0).to(values.dtype)
    return torch.ones_like(values)


class ElmanRecurrence(Function):
    """h_t = f(g_t + W h_{t-1}) (Elman 1990)."""

    @staticmethod
    def forward(ctx, gates, start, weight, activation):  # type: ignore[no-untyped-def]
        """gates: (T, B, H) including the bias; start: (B, H); weight: (H, H) → (T, B, H)."""
        weight, before = weight.to(gates.dtype), start.to(gates.dtype)
        activate, transposed = IN_PLACE[activation], weight.t()
        hidden = torch.empty_like(gates)
        for gates_t, hidden_t in zip(gates, hidden, strict=True):
            before = activate(torch.addmm(gates_t, before, transposed, out=hidden_t))
        ctx.save_for_backward(hidden, start, weight)
        ctx.activation = activation
        return hidden

    @staticmethod
    def backward(ctx, hidden_grad):  # type: ignore[no-untyped-def]
        hidden, start, weight = ctx.saved_tensors
        derivative = activation_derivative(ctx.activation, hidden)
        gates_grad = torch.empty_like(hidden)
        grad = hidden_grad[-1]
        for t in range(len(hidden) - 1, -1, -1):
            delta = torch.mul(grad, derivative[t], out=gates_grad[t])
            grad = torch.addmm(hidden_grad[t - 1], delta, weight) if t else delta @ weight
        weight_grad = _weight_gradient(gates_grad, hidden, start)
        return gates_grad, grad.to(start.dtype), weight_grad, None


class LstmRecurrence(Function):
    """Long short-term memory (Hochreiter & Schmidhuber 1997, with forget gates: Gers et al. 2000):

    i, f, o = σ(g + W h), n = tanh(g_n + W_n h), c' = f c + i n, h' = o tanh c'.

    If the gates are bfloat16, cells and activations are still float32.
    """

    @staticmethod
    def forward(ctx, gates, start, cell, weight):  # type: ignore[no-untyped-def]
        """gates: (T, B, 4H) including the bias; start, cell: (B, H); weight: (4H, H).

        Returns the hidden states, (T, B, H), and the last cell, (B, H).
        """
        size = start.shape[1]
        wide = torch.promote_types(gates.dtype, torch.float32)
        transposed, before = weight.to(gates.dtype).t(), start.to(gates.dtype)
        # ``activated`` holds i, f, n and o, (T, B, 4H); ``cells`` starts with the cell before the first word.
        activated = torch.empty_like(gates, dtype=wide)
        cells = torch.empty(len(gates) + 1, *start.shape, dtype=wide)
        cells[0] = cell
        squashed = torch.empty_like(cells[1:])  # tanh c
        hidden = gates.new_empty(squashed.shape)
        for t in range(len(gates)):
            activated[t] = torch.addmm(gates[t], before, transposed)
            i, f, new, o = activated[t].split(size, dim=1)
            new.mul_(2)
            activated[t].sigmoid_()  # all four in one call, because tanh a = 2·σ(2a) - 1
            new.mul_(2).sub_(1)
            torch.mul(f, cells[t], out=cells[t + 1]).addcmul_(i, new)
            torch.mul(cells[t + 1], 2, out=squashed[t]).sigmoid_().mul_(2).sub_(1)
            hidden[t] = o * squashed[t]
            before = hidden[t]
        ctx.save_for_backward(activated, cells, squashed, hidden, start, weight)
        return hidden, cells[-1].clone()

    @staticmethod
    def backward(ctx, hidden_grad, cell_grad):  # type: ignore[no-untyped-def]
        activated, cells, squashed, hidden, start, weight = ctx.saved_tensors
        i, f, new, o = activated.chunk(4, dim=2)
        # Derivative of c_t with respect to the products of i, f and n, and of h_t with respect to that of o.
        derivative = torch.stack(
            [new * (i - i * i), cells[:-1] * (f - f * f), i * (1 - new * new), squashed * (o - o * o)],
            dim=2,
        )  # (T, B, 4, H)
        cell_derivative = o * (1 - squashed * squashed)  # of h_t with respect to c_t
        gates_grad = hidden.new_empty(activated.shape)
        matrix = weight.to(hidden.dtype)
        delta = torch.empty_like(derivative[0])
        grad, cell_grad = hidden_grad[-1].to(cells.dtype), cell_grad.clone()
        for t in range(len(hidden) - 1, -1, -1):
            cell_grad.addcmul_(grad, cell_derivative[t])
            torch.mul(cell_grad.unsqueeze(1), derivative[t, :, :3], out=delta[:, :3])
            torch.mul(grad, derivative[t, :, 3], out=delta[:, 3])
            product_grad = gates_grad[t].copy_(delta.flatten(1))
            grad = torch.addmm(hidden_grad[t - 1], product_grad, matrix) if t else product_grad @ matrix
            grad = grad.to(cells.dtype)
            cell_grad.mul_(f[t])
        weight_grad = _weight_gradient(gates_grad, hidden, start)
        return gates_grad, grad.to(start.dtype), cell_grad.to(start.dtype), weight_grad


class GruRecurrence(Function):
    """Gated recurrent unit whose reset gate applies after the product, as in cuDNN and ``nn.GRU``:

    r, z = σ(g + W h + b), n = tanh(g_n + r · (W_n h + b_n)), h' = (1 - z) n + z h.
    """

    @staticmethod
    def forward(ctx, gates, start, weight, bias):  # type: ignore[no-untyped-def]
        """gates: (T, B, 3H) including the input's bias; weight: (3H, H), bias: (3H,) → (T, B, H)."""
        size = start.shape[1]
        dtype = gates.dtype
        transposed, bias, before = weight.to(dtype).t(), bias.to(dtype), start.to(dtype)
        # ``activated`` holds r, z and n, (T, B, 3H); ``recurrent`` holds W_n h + b_n, (T, B, H).
        activated, recurrent = torch.empty_like(gates), gates.new_empty(*gates.shape[:2], size)
        hidden = torch.empty_like(recurrent)
        for t in range(len(gates)):
            product = torch.addmm(bias, before, transposed)  # (B, 3H)
            reset_update = activated[t, :, : 2 * size]
            torch.add(gates[t, :, : 2 * size], product[:, : 2 * size], out=reset_update).sigmoid_()
            reset, update, new = activated[t].split(size, dim=1)
            recurrent[t] = product[:, 2 * size :]
            torch.addcmul(gates[t, :, 2 * size :], reset, recurrent[t], out=new).tanh_()
            before = torch.lerp(new, before, update, out=hidden[t])
        ctx.save_for_backward(activated, recurrent, hidden, start, weight)
        return hidden

    @staticmethod
    def backward(ctx, hidden_grad):  # type: ignore[no-untyped-def]
        activated, recurrent, hidden, start, weight = ctx.saved_tensors
        reset, update, new = activated.chunk(3, dim=2)
        previous = torch.cat([start.to(hidden.dtype).unsqueeze(0), hidden[:-1]])
        # Derivative of h_t with respect to each gate's recurrent product: (T, B, 3, H).
        new_derivative = (1 - update) * (1 - new * new)
        derivative = torch.stack(
            [
                new_derivative * recurrent * reset * (1 - reset),
                (previous - new) * update * (1 - update),
                new_derivative * reset,
            ],
            dim=2,
        )
        product_grad = torch.empty_like(activated)
        # Gradient of the loss with respect to h_t, including its effect on later positions.
        full_grad = torch.empty_like(hidden)
        matrix = weight.to(hidden.dtype)
        grad = hidden_grad[-1]
        for t in range(len(hidden) - 1, -1, -1):
            full_grad[t] = grad
            delta = product_grad[t]
            torch.mul(grad.unsqueeze(1), derivative[t], out=delta.view(derivative.shape[1:]))
            below = torch.addmm(hidden_grad[t - 1], delta, matrix) if t else delta @ matrix
            grad = below.addcmul_(grad, update[t])
        weight_grad = (product_grad.flatten(0, 1).t() @ previous.flatten(0, 1)).to(weight.dtype)
        bias_grad = product_grad.sum((0, 1), dtype=weight.dtype)
        # The gates and the recurrent product have the same gradient, except that the reset gate scales the
        # part of the product that belongs to n. The product's gradient is not needed any more, so its
        # memory is reused.
        gates_grad = product_grad
        torch.mul(full_grad, new_derivative, out=gates_grad[:, :, 2 * hidden.shape[2] :])
        return gates_grad, grad.to(start.dtype), weight_grad, bias_grad


class GruResetFirstRecurrence(Function):
    """Gated recurrent unit whose reset gate applies before the product (Cho et al. 2014, equation 8):

    r, z = σ(g + W h), n = tanh(g_n + W_n (r · h)), h' = (1 - z) n + z h.
    """

    @staticmethod
    def forward(ctx, gates, start, weight):  # type: ignore[no-untyped-def]
        """gates: (T, B, 3H) including the biases; start: (B, H); weight: (3H, H) → (T, B, H)."""
        size = start.shape[1]
        weight, before = weight.to(gates.dtype), start.to(gates.dtype)
        both_transposed, new_transposed = weight[: 2 * size].t(), weight[2 * size :].t()
        activated = torch.empty_like(gates)  # r, z and n, (T, B, 3H)
        kept = gates.new_empty(*gates.shape[:2], size)  # r · h_{t-1}
        hidden = torch.empty_like(kept)
        for t in range(len(gates)):
            reset_update = torch.addmm(gates[t, :, : 2 * size], before, both_transposed).sigmoid_()
            activated[t, :, : 2 * size] = reset_update
            reset, update = reset_update.split(size, dim=1)
            torch.mul(reset, before, out=kept[t])
            new = torch.addmm(gates[t, :, 2 * size :], kept[t], new_transposed).tanh_()
            activated[t, :, 2 * size :] = new
            before = torch.lerp(new, before, update, out=hidden[t])
        ctx.save_for_backward(activated, kept, hidden, start, weight)
        return hidden

    @staticmethod
    def backward(ctx, hidden_grad):  # type: ignore[no-untyped-def]
        activated, kept, hidden, start, weight = ctx.saved_tensors
        size = hidden.shape[2]
        reset, update, new = activated.chunk(3, dim=2)
        previous = torch.cat([start.to(hidden.dtype).unsqueeze(0), hidden[:-1]])
        reset_derivative = previous * reset * (1 - reset)  # of r · h_{t-1} with respect to the product of r
        update_derivative = (previous - new) * update * (1 - update)  # of h_t, to the product of z
        new_derivative = (1 - update) * (1 - new * new)  # of h_t, to the product of n
        gates_grad = torch.empty_like(activated)
        both, last = weight[: 2 * size], weight[2 * size :]
        grad = hidden_grad[-1]
        for t in range(len(hidden) - 1, -1, -1):
            delta = gates_grad[t]
            torch.mul(grad, update_derivative[t], out=delta[:, size : 2 * size])
            torch.mul(grad, new_derivative[t], out=delta[:, 2 * size :])
            kept_grad = delta[:, 2 * size :] @ last
            torch.mul(kept_grad, reset_derivative[t], out=delta[:, :size])
            below = delta[:, : 2 * size] @ both
            below.addcmul_(kept_grad, reset[t]).addcmul_(grad, update[t])
            grad = hidden_grad[t - 1] + below if t else below
        deltas = gates_grad.flatten(0, 1)
        weight_grad = torch.cat([
            deltas[:, : 2 * size].t() @ previous.flatten(0, 1),
            deltas[:, 2 * size :].t() @ kept.flatten(0, 1),
        ])  # fmt: skip
        return gates_grad, grad.to(start.dtype), weight_grad.to(start.dtype)


def _weight_gradient(gates_grad: Tensor, hidden: Tensor, start: Tensor) -> Tensor:
    """Σ_t δ_t h_{t-1}ᵀ in two products: (H, H) in the dtype of ``start``."""
    weight_grad = gates_grad[0].t() @ start.to(hidden.dtype)
    if len(hidden) > 1:
        weight_grad = torch.addmm(weight_grad, gates_grad[1:].flatten(0, 1).t(), hidden[:-1].flatten(0, 1))
    return weight_grad.to(start.dtype)


# cuDNN copies weights that are not contiguous with each other. That is a few MB per batch, and weight dropout
# makes new weights anyway.
warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")


class RecurrentLayers(nn.Module):
    """Base class of recurrent layers. Each has two biases: for its input and for the previous state."""

    n_gates: int
    n_parts = 1
    """Number of tensors that a layer carries from word to word. The first is also the layer's output."""
    output_bound: float | None = None
    """Largest magnitude of outputs; None: there is none, or they stay far below it."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.n_layers, self.hidden_size = config.layers, config.hidden_size
        self.weight_dropout = config.weight_dropout
        rows = self.n_gates * config.hidden_size
        for layer in range(config.layers):
            input_size = config.hidden_size if layer else config.embedding_size + config.n_features
            shapes: dict[str, tuple[int, ...]] = {"weight_ih": (rows, input_size)}
            shapes |= {"weight_hh": (rows, config.hidden_size), "bias_ih": (rows,), "bias_hh": (rows,)}
            for name, shape in shapes.items():
                values = torch.empty(shape).uniform_(-1, 1) * config.hidden_size**-0.5
                self.register_parameter(f"{name}_l{layer}", nn.Parameter(values))
        with torch.no_grad():
            for layer in range(config.layers):
                self._adjust_initial_values(layer)

    def _adjust_initial_values(self, layer: int) -> None:
        """Change initial values, which are all within ±1/√H, where others suit this kind of layer better."""

    def parameter(self, name: str, layer: int) -> Tensor:
        return getattr(self, f"{name}_l{layer}")

    def layer_state(self, state: tuple[Tensor, ...], layer: int) -> tuple[Tensor, ...]:
        """The tensors of a state that belong to one layer."""
        return state[self.n_parts * layer : self.n_parts * (layer + 1)]

    def input_bias(self, layer: int) -> Tensor:
        """The bias of the input projection."""
        return self.parameter("bias_ih", layer) + self.parameter("bias_hh", layer)

    def input_gates(self, layer: int, below: Tensor) -> Tensor:
        """Contribution of a layer's input to its gates, (..., I) → (..., G·H)."""
        return linear(below, self.parameter("weight_ih", layer), self.input_bias(layer))

    def recurrent_gates(self, layer: int, hidden: Tensor, bias: Tensor | None = None) -> Tensor:
        """Contribution of the previous hidden state to a layer's gates, (N, H) → (N, G·H)."""
        return linear(hidden, self.parameter("weight_hh", layer), bias)

    def recurrent_weight(self, layer: int) -> Tensor:
        """Return a layer's recurrent weights. In training, weight dropout is applied (Merity et al. 2018)."""
        weight = self.parameter("weight_hh", layer)
        return apply_dropout(weight, self.weight_dropout, locked=False) if self.training else weight

    def torch_parameters(self, layer: int) -> list[Tensor]:
        """The parameters in the order that ``torch.lstm``, ``torch.gru`` and ``torch.rnn_tanh`` expect."""
        names = ("weight_ih", "bias_ih", "bias_hh")
        weight_ih, *biases = (self.parameter(name, layer) for name in names)
        return [weight_ih, self.recurrent_weight(layer), *biases]

    def run_sequence(
        self, layer: int, below: Tensor, state: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Run one layer over all positions: (T, B, I) → (T, B, H), and the state after the last one."""
        raise NotImplementedError

    def step_matrices(self, layer: int) -> tuple[Tensor, ...]:
        """The recurrent matrices that ``step`` multiplies."""
        return (self.parameter("weight_hh", layer),)

    def step(self, layer: int, gates: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Compute a layer's state after one word, from its input gates, (N, G·H), and its previous state.

        Only for scoring: where possible, values are overwritten in place, so there are no gradients.
        """
        raise NotImplementedError


class LstmLayers(RecurrentLayers):
    """Layers of ``LstmRecurrence``.

    Outputs are within ±1, but the gates keep most far below it. If int8 products had steps of that bound, the
    scores of the starter bundle would differ from float32 by 0.0057 instead of 0.0039 nats per word.
    """

    n_gates, n_parts = 4, 2

    def _adjust_initial_values(self, layer: int) -> None:
        """Set the bias of the forget gates to 1, to remember by default (Jozefowicz et al. 2015)."""
        self.parameter("bias_ih", layer)[self.hidden_size : 2 * self.hidden_size] = 1.0

    def run_sequence(self, layer, below, state):  # type: ignore[no-untyped-def]
        # With gradients in bfloat16 on a CPU, oneDNN takes 1.5 times as long as ``LstmRecurrence``.
        is_bfloat16_cpu = below.device.type == "cpu" and torch.is_autocast_enabled("cpu")
        if is_bfloat16_cpu and torch.is_grad_enabled():
            weight = self.recurrent_weight(layer)
            hidden, cell = LstmRecurrence.apply(self.input_gates(layer, below), *state, weight)
            return hidden, (hidden[-1], cell)
        before = [part.to(below.dtype).unsqueeze(0) for part in state]
        hidden, *last = torch.lstm(
            below, before, self.torch_parameters(layer), True, 1, 0.0, self.training, False, False
        )
        return hidden, tuple(part.squeeze(0) for part in last)

    def step(self, layer, gates, state):  # type: ignore[no-untyped-def]
        hidden, cell = state  # (N, H)
        product = self.recurrent_gates(layer, hidden)  # (N, 4H)
        if product.is_cuda:  # one kernel in place of the ten below
            return torch.ops.aten._thnn_fused_lstm_cell(gates, product, cell)[:2]
        gates = product.add_(gates)
        i, f, g, o = gates.chunk(4, dim=1)
        g.mul_(2)
        gates.sigmoid_()  # all four in one call, because tanh g = 2·σ(2g) - 1
        cell = torch.mul(f, cell).addcmul_(i, g, value=2).sub_(i)
        return tanh_(cell.clone()).mul_(o), cell


class GruLayers(RecurrentLayers):
    """Layers of ``GruRecurrence``, or of ``GruResetFirstRecurrence``, which cuDNN lacks."""

    n_gates = 3
    output_bound = 1.0

    def __init__(self, config: NetworkConfig) -> None:
        self.resets_first = config.gru_reset == "before"
        super().__init__(config)

    def input_bias(self, layer: int) -> Tensor:
        if self.resets_first:
            return super().input_bias(layer)
        # The recurrent bias is added inside the recurrence, because the reset gate applies to it.
        return self.parameter("bias_ih", layer)

    def run_sequence(self, layer, below, state):  # type: ignore[no-untyped-def]
        if below.is_cuda and not self.resets_first:
            return _run_cudnn(torch.gru, self, layer, below, state)
        gates, weight = self.input_gates(layer, below), self.recurrent_weight(layer)
        if self.resets_first:
            hidden = GruResetFirstRecurrence.apply(gates, state[0], weight)
        else:
            hidden = GruRecurrence.apply(gates, state[0], weight, self.parameter("bias_hh", layer))
        return hidden, (hidden[-1],)

    def step(self, layer, gates, state):  # type: ignore[no-untyped-def]
        (hidden,) = state  # (N, H)
        if self.resets_first:
            return self._step_reset_first(layer, gates, hidden)
        recurrent = self.recurrent_gates(layer, hidden, self.parameter("bias_hh", layer))  # (N, 3H)
        if recurrent.is_cuda:
            return torch.ops.aten._thnn_fused_gru_cell(gates, recurrent, hidden)[:1]
        both = 2 * self.hidden_size
        reset, update = torch.add(recurrent[:, :both], gates[:, :both]).sigmoid_().chunk(2, dim=1)
        new = tanh_(torch.addcmul(gates[:, both:], recurrent[:, both:], reset))
        return (torch.lerp(new, hidden, update),)

    def step_matrices(self, layer: int) -> tuple[Tensor, ...]:
        weight = self.parameter("weight_hh", layer)
        return split_weight(weight, 2 * self.hidden_size) if self.resets_first else (weight,)

    def _step_reset_first(self, layer: int, gates: Tensor, hidden: Tensor) -> tuple[Tensor]:
        (both_weight, new_weight), both = self.step_matrices(layer), 2 * self.hidden_size
        reset, update = linear(hidden, both_weight).add_(gates[:, :both]).sigmoid_().chunk(2, dim=1)
        new = tanh_(linear(reset.mul_(hidden), new_weight).add_(gates[:, both:]))
        return (torch.lerp(new, hidden, update),)


class ElmanLayers(RecurrentLayers):
    """Simple recurrent network (Elman 1990; Mikolov et al. 2010)."""

    n_gates = 1

    def __init__(self, config: NetworkConfig) -> None:
        self.activation = config.activation
        self.output_bound = 1.0 if config.activation in ("tanh", "sigmoid") else None
        super().__init__(config)

    def _adjust_initial_values(self, layer: int) -> None:
        """Make the recurrent weights orthogonal, so that states neither vanish nor explode.

        See Saxe et al. 2014 and Le et al. 2015. With a sigmoid, the network starts as the same function as
        with tanh, because σ(a) = (1 + tanh(a / 2)) / 2.
        """
        weight = self.parameter("weight_hh", layer)
        nn.init.orthogonal_(weight)
        if self.activation == "sigmoid":
            weight.mul_(4)
            self.parameter("weight_ih", layer).mul_(2)
            self.parameter("bias_ih", layer).sub_(weight.sum(dim=1) / 2)

    def run_sequence(self, layer, below, state):  # type: ignore[no-untyped-def]
        if below.is_cuda and self.activation in ("tanh", "relu"):
            return _run_cudnn(getattr(torch, f"rnn_{self.activation}"), self, layer, below, state)
        weight = self.recurrent_weight(layer)
        hidden = ElmanRecurrence.apply(self.input_gates(layer, below), state[0], weight, self.activation)
        return hidden, (hidden[-1],)

    def step(self, layer, gates, state):  # type: ignore[no-untyped-def]
        (hidden,) = state
        product = self.recurrent_gates(layer, hidden).add_(gates)
        return (tanh_(product) if self.activation == "tanh" else IN_PLACE[self.activation](product),)


def tanh_(values: Tensor) -> Tensor:
    """Compute tanh in place as 2·σ(2a) - 1.

    The result is within 2e-7 of ``torch.tanh``, which takes eight times as long on CPUs.
    """
    return values.mul_(2).sigmoid_().mul_(2).sub_(1)


def _run_cudnn(run, layers: RecurrentLayers, layer: int, below: Tensor, state):  # type: ignore[no-untyped-def]
    """Run one layer over all positions with cuDNN."""
    before = state[0].to(below.dtype).unsqueeze(0)
    parameters = layers.torch_parameters(layer)
    hidden, last = run(below, before, parameters, True, 1, 0.0, layers.training, False, False)
    return hidden, (last.squeeze(0),)


LAYERS: dict[str, type[RecurrentLayers]] = {"lstm": LstmLayers, "gru": GruLayers, "elman": ElmanLayers}


class RecurrentNetwork(nn.Module):
    """Embedding, recurrent layers and projection.

    If hidden and embedding sizes differ, a linear projection follows the layers, so that the output layer
    always reads vectors of the embedding size (Sak et al. 2014, without the recurrence of the projection).
    Topics or tags are further inputs of the first layer (Mikolov & Zweig 2012).
    """

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.kind, self.residual = config.kind, config.residual
        self.output_size = config.embedding_size
        self.window = 0
        self.dropout, self.locked = config.dropout, config.locked_dropout
        self.embedding_dropout, self.n_features = config.embedding_dropout, config.n_features
        self.embedding = nn.Embedding(config.vocabulary_size, config.embedding_size)
        self.add_module(config.kind, LAYERS[config.kind](config))
        same = config.hidden_size == config.embedding_size
        self.projection = (
            nn.Identity() if same else nn.Linear(config.hidden_size, config.embedding_size, bias=False)
        )
        nn.init.normal_(self.embedding.weight, std=config.embedding_size**-0.5)
        with torch.no_grad():
            self.layers.parameter("weight_ih", 0)[:, config.embedding_size :] = 0.0

    @property
    def layers(self) -> RecurrentLayers:
        """The stack of layers; its parameters are named after the kind."""
        return getattr(self, self.kind)

    def forward(
        self, words: Tensor, state: State | None = None, topics: Tensor | None = None
    ) -> tuple[Tensor, State]:
        words = words.t()  # (T, B): time first, because the recurrences loop over it
        below = self.embedding(words)  # (T, B, E)
        if self.training:
            below = drop_words(below, words, self.embedding.num_embeddings, self.embedding_dropout)
        state = self.initial_state(words.shape[1]) if state is None else state
        after: list[Tensor] = []
        for layer in range(self.layers.n_layers):
            before = self.layers.layer_state(state, layer)
            inputs = self._apply_dropout(below)
            if self.n_features and not layer:
                features = inputs.new_zeros(*inputs.shape[:2], self.n_features)
                if topics is not None:
                    features += topics.transpose(0, 1)
                inputs = torch.cat([inputs, features], dim=2)  # (T, B, E + K)
            hidden, last = self.layers.run_sequence(layer, inputs, before)  # (T, B, H)
            below = below + hidden if self.residual and layer else hidden
            after += last
        vectors = self._apply_dropout(self.projection(below))
        return vectors.transpose(0, 1), tuple(after)  # (B, T, E)

    def _apply_dropout(self, values: Tensor) -> Tensor:
        return apply_dropout(values, self.dropout, self.locked) if self.training else values

    def initial_state(self, n: int) -> State:
        zeros = self.layers.input_bias(0).new_zeros(n, self.layers.hidden_size)
        return (zeros,) * (self.layers.n_parts * self.layers.n_layers)

    def step_matrices(self) -> list[Tensor]:
        """The matrices that ``step`` multiplies: all except the first input projection."""
        layers = self.layers
        inputs = [layers.parameter("weight_ih", layer) for layer in range(1, layers.n_layers)]
        recurrent = [matrix for layer in range(layers.n_layers) for matrix in layers.step_matrices(layer)]
        return [*inputs, *recurrent, *self.projection.parameters()]

    @property
    def step_bound(self) -> float | None:
        """Largest magnitude of what ``step_matrices`` are multiplied with; see ``RecurrentLayers``."""
        return None if self.residual else self.layers.output_bound

    def inputs(self, words: Tensor) -> Tensor:
        weight = self.layers.parameter("weight_ih", 0)
        if self.n_features:
            weight = weight[:, : -self.n_features].contiguous()
        return linear(self.embedding(words), weight, self.layers.input_bias(0))  # (W, G·H)

    def topic_inputs(self, topics: Tensor) -> Tensor:
        return linear(topics, self.layers.parameter("weight_ih", 0)[:, -self.n_features :].contiguous())

    def step(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        below, after = inputs, list[Tensor]()
        for layer in range(self.layers.n_layers):
            gates = self.layers.input_gates(layer, below) if layer else inputs
            new = self.layers.step(layer, gates, self.layers.layer_state(state, layer))
            below = below + new[0] if self.residual and layer else new[0]
            after += new
        return project(below, self.projection), tuple(after)


def project(values: Tensor, projection: nn.Module) -> Tensor:
    """Apply a projection, or the identity, with ``linear``, which chooses the fastest matrix product."""
    return linear(values, projection.weight) if isinstance(projection, nn.Linear) else values
