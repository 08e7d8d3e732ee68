"""Precision of the matrix products of networks: float32, bfloat16, or int8 on CPUs."""

from __future__ import annotations

import torch

from rescorer.errors import ConfigError
from rescorer.lm.kernels.int8 import multiply_in_int8
from rescorer.lm.kernels.linear import cast_matrices_to_bfloat16
from rescorer.lm.networks import NeuralModel, RecurrentNetwork, TransformerNetwork
from rescorer.lm.output import TreeSoftmax


def set_precision(model: NeuralModel, dtype: str, device: torch.device) -> None:
    """Convert the matrices of a model in place; see ``NeuralLanguageModel`` for the names of precisions.

    Raises:
        ConfigError: the dtype is unknown, or not supported on this device.
    """
    network, output = map(model.get_submodule, ("network", "output"))
    if dtype not in ("float32", "bfloat16", "int8"):
        raise ConfigError(f"dtype is {dtype!r}; expected float32, bfloat16 or int8")
    if dtype == "float32":
        return
    if dtype == "int8" and device.type != "cpu":
        raise ConfigError(f"dtype int8 is only supported on CPUs; use bfloat16 on {device}")
    if isinstance(network, (RecurrentNetwork, TransformerNetwork)):
        if dtype == "int8":
            multiply_in_int8(network.step_matrices())
        cast_matrices_to_bfloat16(network.parameters())
    if not isinstance(output, TreeSoftmax):
        cast_matrices_to_bfloat16(output.parameters())
