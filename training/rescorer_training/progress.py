"""How the training library meets the program around it: fields that become options, and the end of
processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import field
from typing import Any


def option(default: Any, help: str, *flags: str, metavar: str | None = None, min: float | None = None) -> Any:
    """Define a dataclass field that ``rescorer.terminal.options`` turns into an option of a command.

    Args:
        flags: names of the option, such as ``--embedding`` or ``--tied/--untied``. By default, the name of
            the field is used.
        min: smallest value.
    """
    return field(default=default, metadata={"help": help, "flags": flags, "metavar": metavar, "min": min})


@contextmanager
def end_without_finalisation() -> Iterator[None]:
    """If ``torchrun`` started this process, end it after the block without finalising the interpreter.

    While Python is finalised, threads of gloo may still be releasing tensors and then abort the process
    (``terminate called without an active exception``, pytorch/pytorch#179291). ``torchrun`` would report a
    successful training as failed.
    """
    status, is_worker = 0, "TORCHELASTIC_RUN_ID" in os.environ
    try:
        yield
    except SystemExit as end:
        if not (end.code is None or isinstance(end.code, int)):
            raise  # a message, which the interpreter prints
        status = end.code or 0
        if not is_worker:
            raise
    if is_worker:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):  # closed, or there is none
                stream.flush()
        os._exit(status)
