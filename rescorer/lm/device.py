"""Owns where the neural models run: on which device, and on how many CPU threads.

    python -m rescorer.lm.device NAME

tells why there is no such device, and nothing where there is: for processes that do without torch.
"""

from __future__ import annotations

import sys
from contextlib import suppress

import torch

from rescorer.errors import ConfigError


def torch_device(name: str) -> torch.device:
    """The device of that name.

    Raises:
        ConfigError: it is not to be had here; the message says what is.
    """
    n_cuda = torch.cuda.device_count() if torch.cuda.is_available() else 0
    with suppress(RuntimeError):  # it is no name of any device
        device = torch.device(name)
        if device.type == "cpu" or (device.type == "cuda" and (device.index or 0) < n_cuda):
            return device
    have = ", ".join(["cpu", *(f"cuda:{index}" for index in range(n_cuda))])
    raise ConfigError(f"device is {name!r}; torch has here: {have}")


def memory_bytes(name: str) -> dict[str, int]:
    """Memory of a CUDA device: of this process's tensors, of what torch holds for them, of all users."""
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


def use_threads(count: int) -> None:
    """For the whole process; 0 leaves torch's own choice, one a core."""
    if count:
        torch.set_num_threads(count)


if __name__ == "__main__":
    try:
        torch_device(sys.argv[1])
    except ConfigError as fault:
        print(fault)
