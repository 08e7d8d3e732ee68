"""Judge score streams: their order, base, sign and scale."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence

from rescorer.errors import pluralise
from rescorer.evaluation.figures import format_size
from rescorer.evaluation.inspection.finding import Finding
from rescorer.evaluation.inspection.list_stats import ListStats
from rescorer.evaluation.inspection.models import NGramCorrelation
from rescorer.evaluation.inspection.streams import StreamStats
from rescorer.evaluation.inspection.tally import FIRST_PASS
from rescorer.formats.score_units import NATS_PER_UNIT

MAX_ODD_SHARE = 0.05
"""Largest share of lists, or of hypotheses, that may be unusual without a warning."""
MOST_LISTS = 0.8
"""Share of lists above which something is systematic."""
LM_NAME = re.compile(r"(?:^|[^a-z])(?:[a-z]{0,3}lm|ngram|graph|language)(?:[^a-z]|$)", re.IGNORECASE)
"""Matches names of streams that hold language-model scores, whose usual size per word is known."""
MIN_LM_NATS_PER_WORD, MAX_LM_NATS_PER_WORD = 3.0, 12.0
"""Usual range of a language model: perplexities of 20 to 160,000."""
MAX_NATS_PER_WORD = 2400.0
"""Largest usual size for an acoustic model: 30 frames of 80 nats."""
MIN_LENGTH_R = 0.3
"""Correlation above which scores grow with length, like costs and like sums of densities above 1 (legal)."""
MIN_LISTS_TO_COMPARE = 10
"""Number of lists needed to compare a stream with the n-gram of a bundle."""
MIN_LM_R, MIN_SAME_R = 0.5, 0.9
"""Minimum correlations with the n-gram for comparing units: for streams named like a language model, and for
other streams."""
UNIT_TOLERANCE = 1.1
"""Units that differ by less than this factor count as equal; log2 and natural logarithms differ by 1.44."""
BASES = {"10": "log10", "2": "log2", "1.0001": "Sphinx's 1.0001", "bytelog": "bytelogs"}
COST_ADVICE = "Declare it as a cost: --stream NAME=FIELD:e:cost."
MIN_ERROR_R, MIN_ERROR_T = 0.05, 3.0
"""Correlation with errors, and number of standard errors, above which the sign of the scores looks wrong."""


def judge_order(stats: ListStats, streams: Sequence[StreamStats]) -> Iterator[Finding]:
    """Check whether lists are ordered by the score that the first pass ranked by, if that is known."""
    if not streams and stats.lists:
        message = "the lists have an order but no scores; only the language models can be weighted"
        yield Finding("note", "no_streams", message)
        return
    by_name = {stream.name: stream for stream in streams}
    total = by_name.get(FIRST_PASS, streams[0] if streams else None)
    if total is None or (len(streams) > 1 and total.name != FIRST_PASS) or not total.compared:
        return
    compared = pluralise(total.compared, "list")
    if is_reversed(total):
        message = f"{total.name}: the lowest score comes first in {total.ascending:,} of {compared}"
        advice = f"Is it a cost that was read as a log-probability? {COST_ADVICE}"
        yield Finding("warning", "backwards", message, advice, total.name)
        return
    wrong = total.compared - total.first_is_best
    if wrong > MAX_ODD_SHARE * total.compared:
        message = (
            f"{total.name}: in {wrong:,} of {compared} the first hypothesis does not have the best score"
        )
        advice = "The lists are ordered by something else: give --first-pass, or check the sign of the score."
        if total.name == FIRST_PASS:
            advice = "Check the base and sign of each stream, and the weights given with --first-pass."
        yield Finding("warning", "unsorted", message, advice, total.name)


def judge_stream(
    stream: StreamStats, n_lists: int, correlation: NGramCorrelation | None
) -> Iterator[Finding]:
    """Check one stream; ``correlation`` with the n-gram is None without a bundle."""

    def warning(code: str, message: str, advice: str) -> Finding:
        return Finding("warning", code, f"{stream.name}: {message}", advice, stream.name)

    if stream.lists < n_lists:
        message = f"missing from {n_lists - stream.lists:,} of {pluralise(n_lists, 'list')}"
        yield warning("stream_missing", message, "Lists without it are refused if its weight is not 0.")
    if stream.minimum == stream.maximum:
        if stream.lists > 1:
            message = f"every score is {stream.minimum:g}, which carries no information"
            yield warning("constant", message, "Look for the field that holds the scores.")
        return
    if stream.minimum >= 0.0 and stream.maximum <= 1.0:
        message = "all scores lie between 0 and 1, like probabilities or confidences"
        advice = (
            "Declare the base prob, which takes their logarithms: --stream NAME=FIELD:prob, or base=prob in "
            "--format."
        )
        yield warning("probability", message, advice)
    elif looks_like_cost(stream):
        message = (
            f"scores are {stream.per_word:+.3g} per word and grow with length, like costs; read as a cost, "
            f"they would be {stream.per_word_as('e', -1.0):+.3g}"
        )
        advice = f"{COST_ADVICE} Leave it if the scores are sums of densities above 1."
        yield warning("cost", message, advice)
    elif correlation is not None and is_comparable(stream, correlation):
        yield from _judge_correlation(stream, correlation, warning)
    else:
        yield from _judge_size(stream, warning)
    if stream.error_correlation is not None and stream.error_t is not None:
        r, t = stream.error_correlation, stream.error_t
        if r > MIN_ERROR_R and t > MIN_ERROR_T:
            message = f"hypotheses with higher scores have more errors (r {r:+.2f}, {t:.1f} standard errors)"
            yield warning("error_sign", message, "Check its sign: higher scores must be better.")


def _judge_correlation(
    stream: StreamStats, correlation: NGramCorrelation, warning: Callable[[str, str, str], Finding]
) -> Iterator[Finding]:
    guesses = guess_units(correlation)
    if correlation.r < 0.0:
        message = f"falls where the bundle's n-gram rises (r {correlation.r:+.2f} within lists), like a cost"
        yield warning("cost", message, COST_ADVICE)
    elif guesses:
        low, high = correlation.units_per_nat
        span = f"{low:.3g}" if high < 1.01 * low else f"{low:.3g} to {high:.3g}"
        candidates = "; ".join(
            f"{name} {units:.3g} (it would be {stream.per_word / units:.3g} per word)"
            for name, units in guesses.items()
        )
        message = (
            f"a nat of the bundle's n-gram is {span} here (r {correlation.r:+.2f} within lists), but 1 in "
            f"natural logarithms; candidates: {candidates}"
        )
        advice = "Declare the base, --stream NAME=FIELD:BASE, or divide by the LM weight in the scores."
        yield warning("base", message, advice)
    elif not is_in_nats(correlation) or correlation.r < MIN_SAME_R:
        # else the n-gram confirms the units, however small the scores per word are
        yield from _judge_size(stream, warning)


def is_comparable(stream: StreamStats, correlation: NGramCorrelation) -> bool:
    """Whether a stream may hold language-model scores and correlates enough with the n-gram to compare units.

    Acoustic scores often fall where the language model rises: a hypothesis is in a list because one of the
    two scores is good.
    """
    is_lm = LM_NAME.search(stream.name)
    enough = abs(correlation.r) >= (MIN_LM_R if is_lm else MIN_SAME_R)
    return correlation.lists >= MIN_LISTS_TO_COMPARE and enough and (correlation.r > 0.0 or bool(is_lm))


def guess_units(correlation: NGramCorrelation) -> dict[str, float]:
    """Candidate units of a stream that is not in nats, most likely first, with their number per nat.

    The base may not have been declared, or a base that was declared may be wrong for the file.
    """
    if is_in_nats(correlation):
        return {}
    units = {name: 1 / NATS_PER_UNIT[base] for base, name in BASES.items()}
    units |= {f"natural logs read as {name}": NATS_PER_UNIT[base] for base, name in BASES.items()}
    fitting = {name: per_nat for name, per_nat in units.items() if fits_units(correlation, per_nat)}
    return dict(sorted(fitting.items(), key=lambda item: abs(math.log(correlation.ratio / item[1]))))


def is_in_nats(correlation: NGramCorrelation) -> bool:
    return fits_units(correlation, 1.0)


def fits_units(correlation: NGramCorrelation, units_per_nat: float) -> bool:
    """Whether one nat of the n-gram may correspond to this many units of the stream."""
    low, high = correlation.units_per_nat
    return low / UNIT_TOLERANCE <= units_per_nat <= high * UNIT_TOLERANCE


def _judge_size(stream: StreamStats, warning: Callable[[str, str, str], Finding]) -> Iterator[Finding]:
    size = abs(stream.per_word)
    if LM_NAME.search(stream.name) and stream.name != FIRST_PASS:
        if size < MIN_LM_NATS_PER_WORD:
            message = (
                f"{stream.per_word:.3g} nats per word, perplexity {math.exp(size):,.3g}, is low for a "
                f"language model; if it is log10, it is {stream.per_word_as('10'):.3g}, perplexity "
                f"{math.exp(-stream.per_word_as('10')):,.3g}"
            )
            advice = "Declare the base, --stream NAME=FIELD:10, unless the domain is narrow."
            yield warning("base", message, advice)
        elif size > MAX_LM_NATS_PER_WORD:
            message = (
                f"{stream.per_word:.3g} nats per word is high for a language model; if it is log2, it is "
                f"{stream.per_word_as('2'):.3g}, if bytelogs {stream.per_word_as('bytelog'):.3g}"
            )
            advice = "Declare the base, or divide by the LM weight that the scores were multiplied by."
            yield warning("scale", message, advice)
    elif size > MAX_NATS_PER_WORD:
        message = (
            f"{format_size(stream.per_word, 0)} nats per word is high for any model; if it is log2, it is "
            f"{format_size(stream.per_word_as('2'), 0)}, if bytelogs "
            f"{format_size(stream.per_word_as('bytelog'), 0)}, if Sphinx's 1.0001 "
            f"{stream.per_word_as('1.0001'):.3g}"
        )
        hint = "whole numbers are often Sphinx's or bytelogs: " if stream.whole_numbers else ""
        advice = f"Declare the base ({hint}--stream NAME=FIELD:BASE), or tune its weight."
        yield warning("scale", message, advice)


def is_reversed(stream: StreamStats) -> bool:
    """Whether lists are sorted by this score, lowest first."""
    return stream.ascending > MOST_LISTS * stream.compared and stream.descending < stream.ascending


def looks_like_cost(stream: StreamStats) -> bool:
    """Whether scores look like costs: positive, growing with length, and not contradicted by order or
    errors."""
    if stream.per_word <= 0.0 or stream.minimum < 0.0:
        return False
    if LM_NAME.search(stream.name):
        return True
    is_sorted = stream.compared > 0 and stream.descending > MOST_LISTS * stream.compared
    reduces_errors = stream.error_t is not None and stream.error_t < -MIN_ERROR_T
    grows = stream.length_correlation is not None and stream.length_correlation > MIN_LENGTH_R
    return grows and not is_sorted and not reduces_errors
