"""Read a server's metrics endpoint in the Prometheus text format."""

from __future__ import annotations

import urllib.request
from collections.abc import Mapping

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

Samples = Mapping[tuple[str, tuple[tuple[str, str], ...]], float]
"""Values by sample name and sorted labels."""


def read_families(port: int) -> list[Metric]:
    """Read all metric families."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
        return list(text_string_to_metric_families(response.read().decode()))


def read_samples(port: int) -> Samples:
    """Read the samples of all metric families."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in read_families(port)
        for sample in family.samples
    }


def get_value(samples: Samples, name: str, **labels: str) -> float:
    """Return the value of a metric, named without its prefix; 0 if there is no such sample yet."""
    return samples.get((f"rescorer_{name}", tuple(sorted(labels.items()))), 0.0)
