"""Owns what one finding of an audit is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["warning", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something odd about some lists."""

    severity: Severity
    """``warning``: something is probably wrong; ``note``: worth knowing."""
    code: str
    """What it is, for programs."""
    message: str
    advice: str = ""
    stream: str = ""
    """The stream that it is about, where it is about one."""
