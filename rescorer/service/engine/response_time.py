"""Predict how long decisions and responses take once the scores are there."""

from __future__ import annotations

DECAY = 0.9
"""Factor by which the weight of earlier responses shrinks with each new one."""
MIN_TOKENS = 1024
"""Smallest response that is recorded. What smaller ones take, a few milliseconds, hardly depends on their
size, so that it does not predict the time of large ones."""
SAFETY_FACTOR = 1.5
"""Factor of the prediction above the mean, because a late answer is worth nothing."""


class ResponseTime:
    """Moving average of the time per token of deciding and writing responses, waiting included.

    Every call with a fallback gives up this time of its scoring, so that its answer, however degraded, is
    sent before the deadline.
    """

    def __init__(self) -> None:
        self._tokens = self._seconds = 0.0

    def record(self, tokens: int, seconds: float) -> None:
        """Record a response whose decisions and text cost as much as ``tokens`` tokens."""
        if tokens < MIN_TOKENS:
            return
        self._tokens = DECAY * self._tokens + tokens
        self._seconds = DECAY * self._seconds + seconds

    def seconds_for(self, tokens: int) -> float:
        """Predict how long a response takes, generously; 0 before anything is recorded."""
        return SAFETY_FACTOR * tokens * self._seconds / self._tokens if self._tokens else 0.0
