"""Share a training run between the processes that ``torchrun`` starts.

Every process holds the whole model and applies the same updates: the rows of a batch are divided between the
processes, and their gradients are summed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed

from rescorer.errors import ConfigError, ScoringError

FILE_WAIT_S = 60.0
"""Longest wait for a file of another machine; so long do network file systems remember that it was absent."""


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
            with _name_lost_processes():
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
        with _name_lost_processes():
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
        with _name_lost_processes():
            distributed.broadcast(tensor, src=0)
        return float(tensor)

    def max(self, value: float) -> float:
        """Return the largest value of all processes."""
        if self.size == 1:
            return value
        tensor = torch.tensor(value, dtype=torch.float64)
        with _name_lost_processes():
            distributed.all_reduce(tensor, distributed.ReduceOp.MAX)
        return float(tensor)

    def check_same(
        self,
        value: int,
        what: str,
        advice: str = "--output must name the same folder on all machines, on a file system that they share",
    ) -> None:
        """Raise ConfigError in all processes if the value that each has read is not the same in all."""
        low, high = -self.max(-value), self.max(value)
        if low != high:
            raise ConfigError(f"{what}: {low:,.0f} in one process and {high:,.0f} in another; {advice}")

    def choose_resumption(self, requested: bool, state: Path) -> bool:
        """Whether all processes resume: if any is asked to, or if ``torchrun`` restarted them.

        Args:
            state: file that exists once there is something to resume; what the first process sees, counts.
        """
        restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        has_state = bool(self.broadcast(state.exists()))
        return bool(self.max(requested)) or (self.max(restarts) > 0 and has_state)

    def wait_for(self, file: Path) -> None:
        """Wait until the first process has got here, and until this one sees a file that the first one sees.

        Raises:
            ConfigError: this process does not see it.
        """
        is_written, until = bool(self.broadcast(file.exists())), time.monotonic() + FILE_WAIT_S
        while is_written and not file.exists():
            if time.monotonic() > until:
                raise ConfigError(
                    f"{file.parent}: process {self.rank} does not see {file.name}, which the first process "
                    "wrote; --output must name the same folder on all machines, on a file system that they "
                    "share"
                )
            time.sleep(0.1)

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all processes in rank order, or an empty list except in the first process."""
        if self.size == 1:
            return [value]
        gathered: list[Any] | None = [None] * self.size if self.is_first else None
        with _name_lost_processes():
            distributed.gather_object(value, gathered)
        return gathered or []

    def wait(self) -> None:
        """Wait until all processes have reached this point."""
        if self.size > 1:  # a broadcast would not do: its sender does not wait for the receivers
            with _name_lost_processes():
                distributed.all_reduce(torch.zeros(()))

    def leave(self) -> None:
        """Wait until all processes are ready to leave the group, then leave.

        If one process ended while another was still writing, ``torchrun`` might kill the other one.
        """
        if self.size > 1:
            self.wait()
            distributed.destroy_process_group()


@contextmanager
def _name_lost_processes() -> Iterator[None]:
    """Raise ScoringError in place of the errors of torch if another process or its machine has gone."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise ScoringError(
            f"another process of this training has ended, or cannot be reached ({reason}); start all of them "
            "again with --resume"
        ) from error
