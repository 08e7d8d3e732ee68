"""Choose the torch device of neural models.

    python -m rescorer.lm.device NAME

prints why the device is not available, or nothing if it is available. Processes that do not import torch use
this command.
"""

from __future__ import annotations

import sys
from contextlib import suppress

import numpy as np
import torch
from torch import Tensor

from rescorer.errors import ConfigError


def torch_device(name: str) -> torch.device:
    """Look up an available device by name, such as ``cpu`` or ``cuda:1``.

    Raises:
        ConfigError: If the device is not available; the message lists those that are.
    """
    n_cuda = torch.cuda.device_count() if torch.cuda.is_available() else 0
    with suppress(RuntimeError):  # torch does not know the name
        device = torch.device(name)
        if device.type == "cpu" or (device.type == "cuda" and (device.index or 0) < n_cuda):
            return device
    available = ", ".join(["cpu", *(f"cuda:{index}" for index in range(n_cuda))])
    raise ConfigError(f"device {name!r} is not available; torch has: {available}")


def to_device(array: np.ndarray, device: torch.device) -> Tensor:
    """Copy to a device without waiting for the transfer, which needs pinned memory for a GPU."""
    tensor = torch.from_numpy(array)
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor


def memory_bytes(name: str) -> dict[str, int]:
    """Memory of a CUDA device in bytes; empty for other devices.

    Returns:
        Memory ``allocated`` by this process's tensors, ``reserved`` by torch in this process, ``used`` by all
        processes, and the device's ``total``.
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


if __name__ == "__main__":
    try:
        torch_device(sys.argv[1])
    except ConfigError as error:
        print(error)
