"""Share a training run between the processes that ``torchrun`` starts.

Every process holds the whole model and applies the same updates: the rows of a batch are divided between the
processes, and their gradients are summed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """Rank of this process and size of its group. A group of one process exchanges nothing."""

    rank: int = 0
    size: int = 1

    @classmethod
    def join(cls) -> ProcessGroup:
        """Join the processes started by ``torchrun``; any other process gets a group of its own.

        Tensors on the CPU are exchanged by gloo, those on GPUs by nccl.
        """
        if "TORCHELASTIC_RUN_ID" not in os.environ:
            return cls()
        if not distributed.is_initialized():
            backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
            distributed.init_process_group(backend)
        return cls(distributed.get_rank(), distributed.get_world_size())

    @property
    def is_first(self) -> bool:
        """Whether this process validates, writes files and reports progress."""
        return self.rank == 0

    def choose_device(self, requested: torch.device) -> torch.device:
        """Return the requested device; for ``cuda``, a different GPU for each process of a machine."""
        if self.size == 1 or requested.type != "cuda":
            return requested
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))

    def sum_gradients(self, parameters: Sequence[torch.nn.Parameter], loss: Tensor) -> Tensor:
        """Replace the gradients by their sums over all processes; return the sum of the losses.

        The gradients are exchanged as one flat tensor; afterwards, each gradient is a view of this tensor.
        """
        if self.size == 1:
            return loss
        gradients = [
            torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            for parameter in parameters
        ]
        flat = torch.cat([*(gradient.flatten() for gradient in gradients), loss.reshape(1)])
        distributed.all_reduce(flat)
        pieces = flat.split([*(gradient.numel() for gradient in gradients), 1])
        for parameter, piece in zip(parameters, pieces[:-1], strict=True):
            parameter.grad = piece.view_as(parameter)
        return pieces[-1][0].clone()

    def broadcast(self, value: float) -> float:
        """Send the first process's value to all processes, and return it."""
        if self.size == 1:
            return value
        tensor = torch.tensor(value, dtype=torch.float64)
        distributed.broadcast(tensor, src=0)
        return float(tensor)

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all processes in rank order, or an empty list except in the first process."""
        if self.size == 1:
            return [value]
        gathered: list[Any] | None = [None] * self.size if self.is_first else None
        distributed.gather_object(value, gathered)
        return gathered or []

    def wait(self) -> None:
        """Wait until all processes have reached this point."""
        if self.size > 1:  # a broadcast would not do: its sender does not wait for the receivers
            distributed.all_reduce(torch.zeros(()))

    def leave(self) -> None:
        """Wait until all processes are ready to leave the group, then leave.

        If one process ended while another was still writing, ``torchrun`` might kill the other one.
        """
        if self.size > 1:
            self.wait()
            distributed.destroy_process_group()
