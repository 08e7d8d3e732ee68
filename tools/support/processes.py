"""Find the worker processes of a server. Linux only: reads ``/proc``."""

from __future__ import annotations

from pathlib import Path

from rescorer.load.resources import process_tree


def find_workers(pid: int) -> list[int]:
    """List the ids of the worker processes of a server."""
    return [
        child for child in process_tree(pid)[1:] if b"rescorer.service.workers" in read_command_line(child)
    ]


def read_command_line(pid: int) -> bytes:
    """Read the command line of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
