"""Run simple recurrent and gated recurrent layers over time, with hand-written gradients.

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
