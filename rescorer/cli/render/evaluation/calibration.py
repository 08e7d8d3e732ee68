"""Tables and sentences about confidences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from rescorer.cli.render.tables import FoldingTable
from rescorer.evaluation.calibration.fitting import CONSTANT
from rescorer.evaluation.calibration.judging import SURE, Judgement, Measures
from rescorer.evaluation.figures import format_signed


def render_measures(judgements: Mapping[str, Judgement]) -> FoldingTable:
    """Render one row for posteriors and one for held-out confidences of each kind of claim."""
    headings = ("NCE", "ECE", f">= {SURE:g}", "of these right", "claims", "right %")
    table = FoldingTable("confidence", *headings)
    for name, judgement in judgements.items():
        share = f"{100 * judgement.right / judgement.claims:.1f}"
        for label, measures in (("posterior", judgement.before), ("held out", judgement.held_out)):
            table.add_row(f"{name}, {label}", *_format(measures), str(judgement.claims), share)
    return table


def _format(measures: Measures) -> tuple[str, str, str, str]:
    nce = measures.normalised_cross_entropy
    return (
        "-" if math.isnan(nce) else f"{nce:.3f}",
        f"{measures.expected_calibration_error:.3f}",
        str(measures.sure),
        str(measures.sure_and_right),
    )


def render_reliability(name: str, judgement: Judgement) -> FoldingTable:
    """Render how many claims of each held-out confidence are right."""
    table = FoldingTable("confidence", f"{name}s", "mean", "right", title=f"{name}s, held out")
    for part in judgement.held_out.bins:
        if part.claims:
            span = f"{part.lower:.1f} to {part.upper:.1f}"
            table.add_row(span, str(part.claims), f"{part.confidence:.3f}", f"{part.right:.3f}")
    return table


def summarise(judgements: Mapping[str, Judgement]) -> Iterator[str]:
    """Yield a verdict for each kind of claim."""
    if not judgements:
        yield (
            "no confidence written: no list can judge another, because every list shares its reference with "
            "one of each other fold; more lists with different references are needed"
        )
    for name, judgement in judgements.items():
        gain = judgement.gain
        spread = f" ± {gain.interval.half_width:.3f}" if gain.interval.is_finite else ""
        margin = f"{format_signed(gain.gain, 3)}{spread} nats per {name}, held out"
        if judgement.helps:
            how = f"{judgement.kind}, temperature {judgement.fitted.temperature:.3g}"
            yield f"{name}: calibrated ({how}); better than a constant by {margin}"
        elif judgement.kind == CONSTANT:
            yield f"{name}: no confidence written; on these lists nothing says more than a constant"
        elif not gain.interval.is_finite:
            yield f"{name}: no confidence written; too few lists or groups for a verdict ({margin})"
        else:
            yield f"{name}: no confidence written; not better than a constant beyond chance ({margin})"
