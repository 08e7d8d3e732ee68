"""The data class of a finding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["warning", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something unusual about the lists."""

    severity: Severity
    """``warning``: something is probably wrong; ``note``: worth knowing."""
    code: str
    """Stable name of the kind of finding, for programs."""
    message: str
    advice: str = ""
    """What to do about it."""
    stream: str = ""
    """The stream concerned; empty if the finding is not about a stream."""
