"""Owns the work shared by several processes (``torchrun``): who takes which part, and what they sum.

Every process holds the whole model and moves it alike: the rows of a batch are divided, the gradients summed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed


@dataclass(frozen=True, slots=True)
class Workers:
    """This process among ``count``; one that is alone has nothing to exchange."""

    rank: int = 0
    count: int = 1

    @classmethod
    def join(cls) -> Workers:
        """Meets the processes that ``torchrun`` started; a process started otherwise is alone.

        Tensors on the CPU are exchanged by gloo, those on GPUs by nccl.
        """
        if "TORCHELASTIC_RUN_ID" not in os.environ:
            return cls()
        if not distributed.is_initialized():
            backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
            distributed.init_process_group(backend)
        return cls(distributed.get_rank(), distributed.get_world_size())

    @property
    def first(self) -> bool:
        """Whether this is the one that validates, writes and talks."""
        return self.rank == 0

    def device(self, wished: torch.device) -> torch.device:
        """``wished``, but a GPU of its own for each process of a machine."""
        if self.count == 1 or wished.type != "cuda":
            return wished
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))

    def sum_gradients(self, parameters: Sequence[torch.nn.Parameter], loss: Tensor) -> Tensor:
        """Leaves the sum of all processes' gradients in every one; returns the sum of their losses.

        One exchange of one flat tensor, which the gradients are parts of afterwards.
        """
        if self.count == 1:
            return loss
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        flat = torch.cat([*(gradient.flatten() for gradient in gradients), loss.reshape(1)])
        distributed.all_reduce(flat)
        pieces = flat.split([*(gradient.numel() for gradient in gradients), 1])
        for parameter, piece in zip(parameters, pieces[:-1], strict=True):
            parameter.grad = piece.view_as(parameter)
        return pieces[-1][0].clone()

    def agree(self, value: float) -> float:
        """The first process's value, in all of them."""
        if self.count == 1:
            return value
        told = torch.tensor(value, dtype=torch.float64)
        distributed.broadcast(told, src=0)
        return float(told)

    def gather(self, value: Any) -> list[Any]:
        """Every process's value in the first one, by rank; nothing in the others."""
        if self.count == 1:
            return [value]
        gathered: list[Any] | None = [None] * self.count if self.first else None
        distributed.gather_object(value, gathered)
        return gathered or []

    def wait(self) -> None:
        """Until all are here."""
        self.agree(0.0)

    def leave(self) -> None:
        """Together: a process that ends while another still writes may be killed half-way out, and the run
        with it."""
        if self.count > 1:
            self.wait()
            distributed.destroy_process_group()
