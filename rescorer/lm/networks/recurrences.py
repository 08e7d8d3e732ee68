"""Owns the loops over time of simple recurrent and gated recurrent layers, with gradients written by hand.

The input projection comes in ready, one product for all positions. What is left in the loop is one product
a position, forward and backward; all that does not wait for the position before is taken for all positions
at once: slopes, and the gradient of the recurrent weights. Autograd over the same steps spends three times
as long. The dtype is that of the gates, so that autocast around the input projection decides it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import Function

ACTIVATE = {"tanh": torch.tanh_, "sigmoid": torch.sigmoid_, "relu": torch.relu_, "linear": lambda x: x}
"""In place."""


def slope(activation: str, values: Tensor) -> Tensor:
    """Derivative of an activation where it took these values."""
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
        """gates: (T, B, H) with the bias; start: (B, H); weight: (H, H) → (T, B, H)."""
        weight, before = weight.to(gates.dtype), start.to(gates.dtype)
        activate, transposed = ACTIVATE[activation], weight.t()
        hidden = torch.empty_like(gates)
        for given, here in zip(gates, hidden, strict=True):
            before = activate(torch.addmm(given, before, transposed, out=here))
        ctx.save_for_backward(hidden, start, weight)
        ctx.activation = activation
        return hidden

    @staticmethod
    def backward(ctx, hidden_grad):  # type: ignore[no-untyped-def]
        hidden, start, weight = ctx.saved_tensors
        slopes = slope(ctx.activation, hidden)
        gates_grad = torch.empty_like(hidden)
        grad = hidden_grad[-1]
        for t in range(len(hidden) - 1, -1, -1):
            delta = torch.mul(grad, slopes[t], out=gates_grad[t])
            grad = torch.addmm(hidden_grad[t - 1], delta, weight) if t else delta @ weight
        weight_grad = _weight_gradient(gates_grad, hidden, start)
        return gates_grad, grad.to(start.dtype), weight_grad, None


class GruRecurrence(Function):
    """Gated recurrent unit (Cho et al. 2014) in the variant that resets after the product, as cuDNN does:

    r, z = σ(g + W h + b), n = tanh(g_n + r · (W_n h + b_n)), h' = (1 - z) n + z h.
    """

    @staticmethod
    def forward(ctx, gates, start, weight, bias):  # type: ignore[no-untyped-def]
        """gates: (T, B, 3H) with the input's bias; weight: (3H, H), bias: (3H,) → (T, B, H)."""
        size = start.shape[1]
        kind = gates.dtype
        transposed, bias, before = weight.to(kind).t(), bias.to(kind), start.to(kind)
        # (T, B, 3H): r and z, and n; (T, B, H): W_n h + b_n
        opened, recalled = torch.empty_like(gates), gates.new_empty(*gates.shape[:2], size)
        hidden = torch.empty_like(recalled)
        for t in range(len(gates)):
            product = torch.addmm(bias, before, transposed)  # (B, 3H)
            reset_update = opened[t, :, : 2 * size]
            torch.add(gates[t, :, : 2 * size], product[:, : 2 * size], out=reset_update).sigmoid_()
            reset, update, new = opened[t].split(size, dim=1)
            recalled[t] = product[:, 2 * size :]
            torch.addcmul(gates[t, :, 2 * size :], reset, recalled[t], out=new).tanh_()
            before = torch.lerp(new, before, update, out=hidden[t])
        ctx.save_for_backward(opened, recalled, hidden, start, weight)
        return hidden

    @staticmethod
    def backward(ctx, hidden_grad):  # type: ignore[no-untyped-def]
        opened, recalled, hidden, start, weight = ctx.saved_tensors
        reset, update, new = opened.chunk(3, dim=2)
        previous = torch.cat([start.to(hidden.dtype).unsqueeze(0), hidden[:-1]])
        # What one unit of gradient of h_t is in each gate, (T, B, 3, H): as seen by the recurrent product.
        of_new = (1 - update) * (1 - new * new)
        share = torch.stack(
            [
                of_new * recalled * reset * (1 - reset),
                (previous - new) * update * (1 - update),
                of_new * reset,
            ],
            dim=2,
        )
        product_grad = torch.empty_like(opened)
        kept = torch.empty_like(hidden)  # gradient of h_t in full
        matrix = weight.to(hidden.dtype)
        grad = hidden_grad[-1]
        for t in range(len(hidden) - 1, -1, -1):
            kept[t] = grad
            delta = product_grad[t]
            torch.mul(grad.unsqueeze(1), share[t], out=delta.view(share.shape[1:]))
            below = torch.addmm(hidden_grad[t - 1], delta, matrix) if t else delta @ matrix
            grad = below.addcmul_(grad, update[t])
        weight_grad = (product_grad.flatten(0, 1).t() @ previous.flatten(0, 1)).to(weight.dtype)
        bias_grad = product_grad.sum((0, 1), dtype=weight.dtype)
        gates_grad = product_grad
        torch.mul(kept, of_new, out=gates_grad[:, :, 2 * hidden.shape[2] :])
        return gates_grad, grad.to(start.dtype), weight_grad, bias_grad


def _weight_gradient(gates_grad: Tensor, hidden: Tensor, start: Tensor) -> Tensor:
    """Σ_t δ_t h_{t-1}ᵀ in two products: (H, H) in the dtype of ``start``."""
    first = gates_grad[0].t() @ start.to(hidden.dtype)
    if len(hidden) > 1:
        first = torch.addmm(first, gates_grad[1:].flatten(0, 1).t(), hidden[:-1].flatten(0, 1))
    return first.to(start.dtype)
