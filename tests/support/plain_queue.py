"""A server simulated by its definition: the slow twin of ``tools.simulate_fleet.replica``."""

from __future__ import annotations

from collections.abc import Sequence


def simulate_plainly(
    arrivals: Sequence[float], front_s: float, workers: int, max_lists: int, durations: Sequence[float]
) -> list[tuple[float, float]]:
    """Return when scoring of each list began and ended.

    Args:
        durations: time of a batch by its number of lists.
    """
    ready: list[float] = []
    front_free = 0.0
    for arrival in arrivals:
        front_free = max(front_free, arrival) + front_s
        ready.append(front_free)
    busy_until = [0.0] * workers
    scored: list[tuple[float, float]] = []
    while len(scored) < len(ready):
        waiting = ready[len(scored) :]
        now = min(time for time in (*ready, *busy_until) if time >= waiting[0] and min(busy_until) <= time)
        batch = [time for time in waiting if time <= now][:max_lists]
        end = now + durations[len(batch)]
        busy_until[busy_until.index(min(busy_until))] = end
        scored += [(now, end)] * len(batch)
    return scored
