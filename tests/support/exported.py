"""What a server's metrics endpoint tells, read as Prometheus reads it."""

from __future__ import annotations

import urllib.request
from collections.abc import Mapping

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

Samples = Mapping[tuple[str, tuple[tuple[str, str], ...]], float]
"""Values by sample name and labels in their order."""


def families(port: int) -> list[Metric]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return list(text_string_to_metric_families(answer.read().decode()))


def samples(port: int) -> Samples:
    return {
        (each.name, tuple(sorted(each.labels.items()))): each.value
        for family in families(port)
        for each in family.samples
    }


def value(of: Samples, name: str, **labels: str) -> float:
    """0 where there is no such sample yet."""
    return of.get((f"rescorer_{name}", tuple(sorted(labels.items()))), 0.0)
