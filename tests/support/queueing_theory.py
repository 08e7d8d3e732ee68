"""Mean waiting times that queueing theory knows in closed form (Kleinrock, Queueing Systems I, 1975)."""

from __future__ import annotations

import math


def wait_mg1(arrival_rate: float, mean_s: float, variation: float) -> float:
    """Mean wait with one server (Pollaczek and Khinchine); a variation of 1 is M/M/1, of 0 M/D/1.

    Args:
        variation: coefficient of variation of the service times.
    """
    load = arrival_rate * mean_s
    return load * mean_s * (1 + variation**2) / (2 * (1 - load))


def wait_mmc(arrival_rate: float, mean_s: float, servers: int) -> float:
    """Mean wait with some servers and exponential service times (Erlang C)."""
    offered = arrival_rate * mean_s
    below = sum(offered**n / math.factorial(n) for n in range(servers))
    busy = offered**servers / math.factorial(servers) * servers / (servers - offered)
    return busy / (below + busy) * mean_s / (servers - offered)
