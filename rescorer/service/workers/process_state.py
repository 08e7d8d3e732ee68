"""Whether a process is stopped, from Linux's ``/proc``.

What the kernel says does not depend on how busy the process or the machine is. An unanswered heartbeat does:
a process that computes, loads, or waits for a busy core would seem to be stopped.
"""

from __future__ import annotations

from pathlib import Path

STOPPED = "T"


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped a process; false if it has ended, or if this is not Linux."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[:1] == [STOPPED]
