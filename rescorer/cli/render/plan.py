"""Print a forecast of what rescoring will cost."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rescorer.errors import pluralise
from rescorer.files.estimates import Estimate
from rescorer.files.forecast import N_PASSES, Forecast


def render_plan(forecast: Forecast, seed: int) -> Iterator[str]:
    """Yield the lines of a forecast, at most 80 columns wide."""
    sample = forecast.sample
    about = "" if sample.read_share == 1 else "about "
    hypotheses = pluralise(sample.hypotheses, "hypothesis", "hypotheses")
    words = pluralise(round(sample.words.value), "word")
    yield f"{about}{pluralise(sample.n_lists, 'list')}, {hypotheses}, {words}"
    if about:
        yield f"{100 * sample.read_share:.2g} % of the bytes read"
    if sample.unreadable:
        yield f"{about}{pluralise(sample.unreadable, 'list')} cannot be read"
    sampled = f"{pluralise(len(sample.lists), 'list')} scored, drawn with seed {seed}"
    yield f"{sampled}; {forecast.rejected:,} of them rejected" if forecast.rejected else sampled
    rows = {
        "distinct prefixes per word": f"{forecast.prefix_share:.3f}",
        "words per core second": _with_interval(forecast.words_per_core_s, ",.0f"),
        "core hours": _with_interval(forecast.core_s.times(1 / 3600), ",.3g"),
        "core hours of reading": f"{sample.read_s / 3600:,.3g}",
        "core seconds to start, per process": f"{forecast.start_s:,.1f}",
    }
    if forecast.gpu_s is not None:
        rows["GPU hours, of one process"] = _with_interval(forecast.gpu_s.times(1 / 3600), ",.3g")
    width = max(map(len, rows))
    for name, value in rows.items():
        yield f"{name:<{width}}  {value}"
    yield f"95 % intervals, from the lists drawn and {N_PASSES} passes over them on this machine"


def _with_interval(estimate: Estimate, spec: str) -> str:
    if math.isinf(estimate.high):
        return f"{estimate.value:{spec}} (one batch: no interval)"
    return f"{estimate.value:{spec}} ({estimate.low:{spec}} to {estimate.high:{spec}})"
