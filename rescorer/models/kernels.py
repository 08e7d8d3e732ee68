"""Fast matrix products for scoring: the best kernel of this machine, in float32, bfloat16 or int8.

On CPUs, torch multiplies float32 matrices with MKL, which reaches only half the peak speed of an AMD
processor. oneDNN, which torch includes and uses for other types, reaches full speed. Both accumulate in
float32. oneDNN compiles and keeps a kernel for each number of rows and each size of a matrix, and compiling
takes as long as a small product. As the levels of tries vary in size, inputs are padded with rows of zeros to
a few row counts. Without padding, scoring lists one by one takes 50 % longer and half a gigabyte more memory.

On CPUs with VNNI, int8 matrices are multiplied three times as fast as float32 ones. Each row of the weights
and of the input is rounded to 127 steps on either side of zero, scaled to the row's largest magnitude, or to
a known bound of the input, such as that of the states of a GRU; the product is exact in int32. So the result
of a row does not depend on other rows of the input. The error of a result is about 0.8 % of the length of the
float32 result.

Processes that do not import torch ask whether a device exists by running this module:

    python -m rescorer.models.kernels DEVICE

It prints why torch does not have the device, or nothing if it has.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.weak import WeakIdKeyDictionary

from rescorer.errors import BundleError, ConfigError
from rescorer.models.network_files import SCALE_SUFFIX
from rescorer.models.ngrams import ArrayLibrary


def quantise_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Round every matrix to int8, each row relative to its largest magnitude; vectors stay as they are."""
    quantised: dict[str, Tensor] = {}
    for name, value in tensors.items():
        if value.dim() < 2 or not value.is_floating_point():
            quantised[name] = value
            continue
        scale = value.float().abs().flatten(1).amax(dim=1) / STEPS  # (rows,)
        scale = torch.where(scale > 0, scale, torch.ones_like(scale))
        rows = (-1, *(1,) * (value.dim() - 1))
        quantised[name] = torch.round(value.float() / scale.view(rows)).to(torch.int8)
        quantised[name + SCALE_SUFFIX] = scale
    return quantised


def dequantise_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert the matrices of ``quantise_tensors`` back to float32. Other tensors stay as they are."""
    restored = {name: value for name, value in tensors.items() if not name.endswith(SCALE_SUFFIX)}
    for name, scale in tensors.items():
        if name.endswith(SCALE_SUFFIX):
            matrix = name.removesuffix(SCALE_SUFFIX)
            rows = (-1, *(1,) * (restored[matrix].dim() - 1))
            restored[matrix] = restored[matrix].float() * scale.view(rows)
    return restored


def check_finite(place: str, tensors: Mapping[str, Tensor]) -> None:
    """Raise BundleError if a tensor has a value that is infinite or not a number."""
    for name, tensor in tensors.items():
        # both ends: a test of each value takes six times as long, and as much memory as the tensor
        if (
            tensor.is_floating_point()
            and tensor.numel()
            and not all(map(torch.isfinite, torch.aminmax(tensor)))
        ):
            raise BundleError(f"{place}: {name} has values that are not finite")


MIN_ROWS = 4  # smallest number of rows after padding; a product of 4 rows takes as long as one of 1
FINE_STEPS, COARSE_STEPS = 8, 2
"""Inputs are padded to so many different row counts per octave, that is, between successive powers of two.
Many suit the few matrices of a network, and few suit the many classes of an output layer."""


def pad_rows(x: Tensor, steps_per_octave: int) -> Tensor:
    """Append rows of zeros to an (N, K) tensor on a CPU; return tensors on other devices unchanged."""
    n = x.shape[0]  # several times as fast as len(x), which counts where products are small
    missing = padded_row_count(n, steps_per_octave) - n if x.device.type == "cpu" else 0
    return torch.constant_pad_nd(x, (0, 0, 0, missing)) if missing else x


def padded_row_count(rows: int, steps_per_octave: int) -> int:
    """Round a row count up to one of ``steps_per_octave`` values between successive powers of two.

    The result is a multiple of ``MIN_ROWS``, and at least that.

    >>> [padded_row_count(rows, 2) for rows in (0, 1, 5, 33, 100, 1000)]
    [4, 4, 8, 48, 128, 1024]
    """
    step = max(MIN_ROWS, (1 << rows.bit_length() >> 1) // steps_per_octave)
    return max(MIN_ROWS, -(-rows // step) * step)


STEPS = 127  # levels of int8 values on either side of zero
ZERO_POINT = 128  # zero point of the input, which oneDNN takes as unsigned integers
ROUNDING = torch.tensor(ZERO_POINT + 0.5)
"""Added to scaled inputs before they are cut off to uint8, so that they are rounded."""
MIN_ROW_MAXIMUM = 1e-20
"""Smallest value by which a row is divided, so that rows of zeros can be scaled too."""
EXPECTED_ROWS = 64
"""Number of input rows for which oneDNN packs weights. Packed weights can be used with any number of rows."""
MAX_RELATIVE_ERROR = 0.02
"""Largest accepted error in testing int8 products, relative to the length of the exact result. Where sums
overflow, the error is many times larger."""


@dataclass(frozen=True, slots=True)
class Int8Matrix:
    """A weight matrix, (M, K), rounded to int8 and packed as oneDNN needs it."""

    packed: Tensor
    scale: Tensor  # (M,) float32 scale of each row
    zero_point: Tensor  # (M,) int32 zeros
    input_bound: float | None  # largest magnitude of inputs; None: unknown


_matrices: MutableMapping[Tensor, Int8Matrix] = WeakIdKeyDictionary()


def multiply_in_int8(weights: Iterable[Tensor], input_bound: float | None = None) -> None:
    """Make ``linear`` multiply these matrices in int8, as they are now: later changes have no effect.

    Args:
        input_bound: largest magnitude of what they are multiplied with, if it is known, which is faster.

    Raises:
        ConfigError: the processor or the installed torch does not support int8 products.
    """
    if not is_int8_exact():
        raise ConfigError(
            "dtype int8 needs a CPU with 8-bit dot products (VNNI) and a torch with oneDNN; use float32 or "
            "bfloat16"
        )
    for weight in weights:
        _matrices[weight] = quantise_matrix(weight.detach(), input_bound)


def is_multiplied_in_int8(weight: Tensor) -> bool:
    """Whether ``linear`` multiplies a matrix in int8."""
    return weight in _matrices


def quantise_matrix(weight: Tensor, input_bound: float | None = None) -> Int8Matrix:
    """Round each row of a float32 CPU matrix, (M, K), to int8 and pack the result for oneDNN."""
    scale = weight.abs().amax(dim=1).clamp_min_(MIN_ROW_MAXIMUM) / STEPS  # (M,)
    rounded = torch.round(weight / scale.unsqueeze(1)).to(torch.int8)
    packed = torch.ops.onednn.qlinear_prepack(rounded, [EXPECTED_ROWS, weight.shape[1]])
    return Int8Matrix(packed, scale, torch.zeros(len(weight), dtype=torch.int32), input_bound)


def int8_linear(x: Tensor, matrix: Int8Matrix, bias: Tensor | None = None) -> Tensor:
    """Compute x·Wᵀ + b, (N, K) → (N, M) float32."""
    if matrix.input_bound is not None:
        step = matrix.input_bound / STEPS
        return _multiply_steps(torch.add(ROUNDING, x, alpha=1 / step), step, matrix, bias)
    largest = x.abs().amax(dim=1, keepdim=True).clamp_min_(MIN_ROW_MAXIMUM)  # (N, 1)
    product = _multiply_steps((x * (STEPS / largest)).add_(ROUNDING), 1 / STEPS, matrix, None)
    return product.mul_(largest) if bias is None else torch.addcmul(bias, product, largest)


def _multiply_steps(steps: Tensor, step: float, matrix: Int8Matrix, bias: Tensor | None) -> Tensor:
    """Multiply an input that is given in steps, counted from the lowest one; fractions are cut off."""
    product = torch.ops.onednn.qlinear_pointwise(
        pad_rows(steps.to(torch.uint8), FINE_STEPS), step, ZERO_POINT, matrix.packed, matrix.scale,
        matrix.zero_point, bias, 1.0, 0, torch.float32, "none", [], "",
    )  # fmt: skip
    return product[: steps.shape[0]]


@cache
def is_int8_exact() -> bool:
    """Whether oneDNN's int8 operators exist and, even with the largest sums, do not overflow."""
    random = torch.Generator().manual_seed(1)
    x, weight = (torch.rand(EXPECTED_ROWS, 256, generator=random) / 4 + 0.75 for _ in range(2))
    try:
        product = int8_linear(x, quantise_matrix(weight))
    except (AttributeError, RuntimeError):  # this torch lacks the operators
        return False
    exact = functional.linear(x, weight)
    return bool((product - exact).norm() < MAX_RELATIVE_ERROR * exact.norm())


MIN_MULTIPLICATIONS = 1 << 19
"""A call of oneDNN is worth its time for products of at least this many multiplications, if the weights are
in its memory order already."""
MIN_SLICE_ROWS = 192
"""Smallest number of rows for which oneDNN multiplies a slice of a parameter, such as the weights of one
class. oneDNN compiles and keeps kernels for hundreds of slice sizes (300 MB), which is not worth it for fewer
rows."""
MAX_ERROR = 1e-5
"""Largest accepted error in testing oneDNN with random unit vectors. Errors are below 1e-6 in float32 and far
above 1e-3 in bfloat16."""


CAN_MULTIPLY_INTO_FLOAT32 = "dtype" in torch.ops.aten.addmm.overloads()
"""Whether a GPU can multiply matrices in bfloat16 and not round the result: torch 2.8 and later."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute x·Wᵀ + b like ``functional.linear``, (..., K), (M, K) → (..., M).

    Weights in bfloat16 or int8 are multiplied in that type; the result is float32. oneDNN is used only if no
    gradients are required, because its products are not differentiable. Gradients flow through weights in
    bfloat16, but not to them.
    """
    if x.dim() > 2:
        return linear(x.flatten(0, -2), weight, bias).unflatten(0, x.shape[:-1])
    if _matrices and not torch.is_grad_enabled() and (matrix := _matrices.get(weight)) is not None:
        return int8_linear(x, matrix, bias)
    if weight.dtype == torch.bfloat16 and not torch.is_grad_enabled():
        is_slice = not isinstance(weight, nn.Parameter)
        if is_slice and x.device.type == "cpu" and len(x) < MIN_SLICE_ROWS:
            return functional.linear(x.float(), weight.float(), bias)
        if CAN_MULTIPLY_INTO_FLOAT32 and x.is_cuda:
            product = torch.mm(x.to(torch.bfloat16), weight.t(), out_dtype=torch.float32)
            return product if bias is None else product.add_(bias)
        padded = pad_rows(x.to(torch.bfloat16), COARSE_STEPS if is_slice else FINE_STEPS)
        product = functional.linear(padded, weight)[: len(x)].float()
        return product if bias is None else product.add_(bias)
    if weight.dtype == torch.bfloat16:
        product = _FrozenProduct.apply(x, weight)
        return product if bias is None else product + bias
    is_cpu_float32 = x.device.type == "cpu" and x.dtype == weight.dtype == torch.float32
    if is_cpu_float32 and not torch.is_grad_enabled() and is_onednn_exact():
        if isinstance(weight, nn.Parameter):
            if not weight.requires_grad and x.shape[0] * weight.numel() >= MIN_MULTIPLICATIONS:
                return _onednn_linear(x, reorder_weight(weight), bias, FINE_STEPS)
        elif x.shape[0] >= MIN_SLICE_ROWS:
            return _onednn_linear(x, weight, bias)
    return functional.linear(x, weight, bias)


class _FrozenProduct(torch.autograd.Function):
    """x·Wᵀ with a matrix in bfloat16 that is not trained; products in both directions are in bfloat16."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.weight = weight
        return functional.linear(x.to(torch.bfloat16), weight).float()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return torch.mm(gradients[0].to(torch.bfloat16), ctx.weight).float(), None


def linear_plus(x: Tensor, weight: Tensor, added: Tensor) -> Tensor:
    """Compute x·Wᵀ plus a float32 tensor, (N, K), (M, K), (N, M) → (N, M), on a GPU by a bfloat16 matrix."""
    if CAN_MULTIPLY_INTO_FLOAT32:
        return torch.addmm(added, x.bfloat16(), weight.t(), out_dtype=torch.float32)
    return added + functional.linear(x.bfloat16(), weight)


_reordered: MutableMapping[Tensor, tuple[int, Tensor]] = WeakIdKeyDictionary()


def reorder_weight(weight: nn.Parameter) -> Tensor:
    """Copy a parameter into oneDNN's memory order, and keep the copy until the parameter changes.

    The copy takes longer than one product of few rows. Use this only for parameters that require no
    gradients: fused optimisers change others without counting up their version, so that the copy gets stale.
    """
    version, copy = _reordered.get(weight, (-1, weight))
    if version != weight._version:
        copy = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), EXPECTED_ROWS)
        _reordered[weight] = weight._version, copy
    return copy


_halves: MutableMapping[Tensor, tuple[int, tuple[nn.Parameter, nn.Parameter]]] = WeakIdKeyDictionary()


def split_weight(weight: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Divide a matrix after n rows into parts that ``linear`` multiplies as fast as whole parameters.

    The parts are copies, kept until the parameter changes, unless it requires gradients; see
    ``reorder_weight``.
    """
    if weight.requires_grad:
        return weight[:n], weight[n:]
    version, halves = _halves.get(weight, (-1, None))
    if halves is None or version != weight._version or halves[0].device != weight.device:
        with torch.inference_mode(False):  # for their own versions
            first, second = (nn.Parameter(part.clone(), False) for part in (weight[:n], weight[n:]))
        halves = first, second
        _halves[weight] = weight._version, halves
    return halves


def cast_matrices_to_bfloat16(parameters: Iterable[Tensor]) -> None:
    """Cast every matrix to bfloat16, for ``linear``. Biases keep their type: in bfloat16, ln P of a rare word
    would be accurate to only one decimal place.
    """
    for parameter in parameters:
        if parameter.dim() >= 2:
            parameter.data = parameter.data.to(torch.bfloat16)


@cache
def is_onednn_exact() -> bool:
    """Whether oneDNN is available and accumulates in float32; it can be built to use less precision."""
    random = torch.Generator().manual_seed(1)
    x, weight = (
        functional.normalize(torch.randn(EXPECTED_ROWS, 256, generator=random), dim=1) for _ in range(2)
    )
    try:
        product = _onednn_linear(x, weight, None)
    except (AttributeError, RuntimeError):  # this torch has no oneDNN
        return False
    return bool((product.double() - x.double() @ weight.double().t()).abs().max() < MAX_ERROR)


def _onednn_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, steps_per_octave: int = COARSE_STEPS
) -> Tensor:
    padded = pad_rows(x, steps_per_octave)
    product = torch.ops.mkldnn._linear_pointwise(padded, weight, bias, "none", [], "")
    return product if padded is x else product[: x.shape[0]]


def torch_device(name: str) -> torch.device:
    """Return an available device by its name, such as ``cpu`` or ``cuda:1``.

    Raises:
        ConfigError: the device is not available; the message lists the devices that are.
    """
    n_cuda = torch.cuda.device_count() if torch.cuda.is_available() else 0
    with suppress(RuntimeError):  # torch does not know the name
        device = torch.device(name)
        if device.type == "cpu" or (device.type == "cuda" and (device.index or 0) < n_cuda):
            return device
    available = ", ".join(["cpu", *(f"cuda:{index}" for index in range(n_cuda))])
    raise ConfigError(f"device {name!r} is not available; torch has: {available}")


def to_device(array: np.ndarray, device: torch.device) -> Tensor:
    """Copy an array to a device. A GPU reads it from pinned memory, so that the CPU need not wait."""
    tensor = torch.from_numpy(array)
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor


PROJECTED_ROWS = 8192  # number of context vectors that are converted to float64 at a time


def project_rows(vectors: Tensor, projection: np.ndarray) -> np.ndarray:
    """Multiply context vectors, (N, D), by a projection, (D, K), in float64, some rows at a time: (N, K)."""
    matrix = torch.from_numpy(projection).to(vectors.device)
    parts = [part.double() @ matrix for part in vectors.split(PROJECTED_ROWS)]
    return torch.cat(parts).cpu().numpy()


def memory_bytes(name: str) -> dict[str, int]:
    """Measure the memory of a CUDA device in bytes, by kind; other devices give an empty result.

    Returns:
        Memory ``allocated`` by this process's tensors, ``reserved`` by torch in this process, ``used`` by all
        processes, and the ``total`` of the device.
    """
    device = torch.device(name)
    if device.type != "cuda":
        return {}
    free, total = torch.cuda.mem_get_info(device)
    return {
        "allocated": torch.cuda.memory_allocated(device),
        "reserved": torch.cuda.memory_reserved(device),
        "used": total - free,
        "total": total,
    }


class TorchArrays(ArrayLibrary):
    """Torch's array operations on one device."""

    def __init__(self, device: str | torch.device = "cpu") -> None:
        self.device = torch.device(device)

    def asarray(self, values: np.ndarray) -> Tensor:
        if values.dtype == np.uint16:  # torch has few operations on unsigned integers
            values = values.astype(np.int32)
        return torch.tensor(values, device=self.device)

    def numpy(self, array: Tensor) -> np.ndarray:
        return array.cpu().numpy()

    def take(self, array: Tensor, rows: Tensor) -> Tensor:
        return array.index_select(0, rows)

    def true_places(self, mask: Tensor) -> Tensor:
        return mask.nonzero().squeeze(1)

    def int64(self, array: Tensor) -> Tensor:
        return array.long()

    def float32_view(self, array: Tensor) -> Tensor:
        return array.view(torch.float32)

    def full(self, size: int, value: float, like: Tensor) -> Tensor:
        return torch.full((size,), value, dtype=like.dtype, device=self.device)


if __name__ == "__main__":
    try:
        torch_device(sys.argv[1])
    except ConfigError as error:
        print(error)
