"""Run recurrent layers over time, with hand-written gradients.

The input projection is computed beforehand, in one product for all positions. The loops contain one product
per position, forward and backward; everything that does not depend on the previous position is computed for
all positions at once: the derivatives of the activations and the gradient of the recurrent weights. Autograd
over the same steps takes three times as long. The loops use the dtype of the gates, which is therefore
determined by autocast around the input projection.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import Function

ACTIVATE_IN_PLACE = {
    "tanh": torch.tanh_,
    "sigmoid": torch.sigmoid_,
    "relu": torch.relu_,
    "linear": lambda x: x,
}


def activation_derivative(activation: str, values: Tensor) -> Tensor:
    """Derivative of an activation, computed from the values of its output."""
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
        activate, transposed = ACTIVATE_IN_PLACE[activation], weight.t()
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

    If the gates are bfloat16, cells and activations are float32 all the same.
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
            [
                new * (i - i * i),
                cells[:-1] * (f - f * f),
                i * (1 - new * new),
                squashed * (o - o * o),
            ],
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
    """Gated recurrent unit (Cho et al. 2014); as in cuDNN, the reset gate applies after the product:

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


def _weight_gradient(gates_grad: Tensor, hidden: Tensor, start: Tensor) -> Tensor:
    """Σ_t δ_t h_{t-1}ᵀ in two products: (H, H) in the dtype of ``start``."""
    weight_grad = gates_grad[0].t() @ start.to(hidden.dtype)
    if len(hidden) > 1:
        weight_grad = torch.addmm(weight_grad, gates_grad[1:].flatten(0, 1).t(), hidden[:-1].flatten(0, 1))
    return weight_grad.to(start.dtype)
