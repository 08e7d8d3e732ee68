"""End the processes of a training that ``torchrun`` started."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def end_without_finalisation() -> Iterator[None]:
    """End the process after the block, without finalising the interpreter, if ``torchrun`` started it.

    Gloo's threads may still be releasing tensors while Python is finalised. They then abort the process
    (``terminate called without an active exception``, pytorch/pytorch#179291), and ``torchrun`` takes a
    training that has succeeded for one that failed.
    """
    status = 0
    try:
        yield
    except SystemExit as end:
        if not (end.code is None or isinstance(end.code, int)):
            raise  # a message, which the interpreter prints
        status = end.code or 0
        if not _is_worker():
            raise
    if _is_worker():
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):  # closed, or there is none
                stream.flush()
        os._exit(status)


def _is_worker() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ
