"""Owns the judgement of score streams: order, base, sign and scale, and what they would be if they were
others; warns, never refuses."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence

from rescorer.evaluation.inspection.finding import Finding
from rescorer.evaluation.inspection.models import Likeness
from rescorer.evaluation.inspection.streams import StreamFacts
from rescorer.evaluation.inspection.tally import FIRST_PASS, Facts
from rescorer.formats.score_units import NATS_PER_UNIT

FEW = 0.05
"""Share of lists, or of hypotheses, that may be odd without a warning."""
MOST = 0.8
"""Share of lists that makes a habit."""
LM_NAME = re.compile(r"(?:^|[^a-z])(?:[a-z]{0,3}lm|ngram|graph|language)(?:[^a-z]|$)", re.IGNORECASE)
"""Streams so called hold language model scores, whose size a word is known."""
LM_LEAST, LM_MOST = 3.0, 12.0
"""Nats a word of a language model: perplexities 20 and 160,000."""
PER_WORD_MOST = 2400.0
"""Nats a word of an acoustic model: 30 frames of 80 nats."""
LENGTH_R = 0.3
"""Costs and log-probabilities grow with length; so does a sum of densities above 1, which is legal."""
LIKE_LISTS = 10
"""Lists enough to compare a stream with a bundle's n-gram."""
LIKE_R, SAME_R = 0.5, 0.9
"""How well a stream that is called a language model's goes with the n-gram, for its units to be compared;
and how well any other, to be taken for one."""
UNIT_SLACK = 1.1
"""Units this much apart are the same; log2 and natural log are 1.44 apart."""
BASES = {"10": "log10", "2": "log2", "1.0001": "Sphinx's 1.0001", "bytelog": "bytelogs"}
COST_ADVICE = "Declare it: --stream NAME=FIELD:e:cost."
ERROR_R, ERROR_T = 0.05, 3.0
"""How far above 0, and how many standard errors, the correlation with errors is wrong."""


def of_order(facts: Facts, streams: Sequence[StreamFacts]) -> Iterator[Finding]:
    """Judges the order by what the first pass ranked by, where that is known."""
    if not streams and facts.lists:
        yield Finding("note", "no_streams", "no scores, only an order: weights can count the language models")
        return
    total = next((each for each in streams if each.name == FIRST_PASS), streams[0] if streams else None)
    if total is None or (len(streams) > 1 and total.name != FIRST_PASS) or not total.compared:
        return
    if backwards(total):
        message = f"{total.name}: {total.ascending:,} of {total.compared:,} lists begin with the lowest score"
        advice = f"A cost read as a log-probability? {COST_ADVICE}"
        yield Finding("warning", "backwards", message, advice, total.name)
        return
    wrong = total.compared - total.first_is_best
    if wrong > FEW * total.compared:
        message = f"{total.name}: in {wrong:,} of {total.compared:,} lists the first has not the best score"
        advice = "The order is not this score's: give --first-pass, or check the score's sign."
        if total.name == FIRST_PASS:
            advice = "Check the base and sign of each stream, and the weights given with --first-pass."
        yield Finding("warning", "unsorted", message, advice, total.name)


def of_stream(stream: StreamFacts, lists: int, like: Likeness | None) -> Iterator[Finding]:
    """Args: like: how it goes with a bundle's n-gram, where there is a bundle."""

    def warning(code: str, message: str, advice: str) -> Finding:
        return Finding("warning", code, f"{stream.name}: {message}", advice, stream.name)

    if stream.lists < lists:
        message = f"{lists - stream.lists:,} of {lists:,} lists lack it"
        yield warning("stream_missing", message, "Weights that count it refuse those lists.")
    if stream.minimum == stream.maximum:
        if stream.lists > 1:
            message = f"every score is {stream.minimum:g}: it says nothing"
            yield warning("constant", message, "Look for the field that holds the scores.")
        return
    if stream.minimum >= 0.0 and stream.maximum <= 1.0:
        advice = "Send its natural logarithm."
        yield warning("probability", "all scores are in 0 … 1, as probabilities or confidences are", advice)
    elif looks_like_cost(stream):
        message = (
            f"scores are {stream.per_word:+.3g} a word and grow with length, as costs do; as a cost it would "
            f"be {stream.per_word_as('e', -1.0):+.3g}"
        )
        advice = f"{COST_ADVICE} Leave it where densities above 1 are summed."
        yield warning("cost", message, advice)
    elif like is not None and comparable(stream, like):
        yield from _of_likeness(stream, like, warning)
    else:
        yield from _of_size(stream, warning)
    if stream.error_correlation is not None and stream.error_t is not None:
        r, t = stream.error_correlation, stream.error_t
        if r > ERROR_R and t > ERROR_T:
            message = f"higher scores go with more errors (r {r:+.2f}, {t:.1f} standard errors)"
            yield warning("error_sign", message, "Check its sign: higher must be better.")


def _of_likeness(
    stream: StreamFacts, like: Likeness, warning: Callable[[str, str, str], Finding]
) -> Iterator[Finding]:
    readings = other_units(like)
    if like.r < 0.0:
        message = f"falls where the bundle's n-gram rises (r {like.r:+.2f} within lists), as costs do"
        yield warning("cost", message, COST_ADVICE)
    elif readings:
        low, high = like.units
        span = f"{low:.3g}" if high < 1.01 * low else f"{low:.3g} to {high:.3g}"
        would = "; ".join(
            f"{name} {units:.3g} (it would be {stream.per_word / units:.3g} a word)"
            for name, units in readings.items()
        )
        message = (
            f"a nat of the bundle's n-gram is {span} here (r {like.r:+.2f} within lists), where natural logs "
            f"have 1: {would}"
        )
        advice = "Declare the base that it has, --stream NAME=FIELD:BASE, or divide by an LM weight in it."
        yield warning("base", message, advice)
    elif not in_nats(like) or like.r < SAME_R:  # else the bundle vouches for it, however short its words are
        yield from _of_size(stream, warning)


def comparable(stream: StreamFacts, like: Likeness) -> bool:
    """The stream may be a language model's, and goes well enough with the bundle's to tell its units.

    Acoustic scores often fall where the language model rises: what is in a list is good at one of the two.
    """
    named = LM_NAME.search(stream.name)
    enough = abs(like.r) >= (LIKE_R if named else SAME_R)
    return like.lists >= LIKE_LISTS and enough and (like.r > 0.0 or bool(named))


def other_units(like: Likeness) -> dict[str, float]:
    """What the stream's units may be where they are no nats, likeliest first: a base that was not declared,
    or one that was and is not the file's; each with what a nat is worth in it."""
    if in_nats(like):
        return {}
    units = {name: 1 / NATS_PER_UNIT[base] for base, name in BASES.items()}
    units |= {f"natural logs read as {name}": NATS_PER_UNIT[base] for base, name in BASES.items()}
    fitting = {name: each for name, each in units.items() if fits(like, each)}
    return dict(sorted(fitting.items(), key=lambda item: abs(math.log(like.ratio / item[1]))))


def in_nats(like: Likeness) -> bool:
    return fits(like, 1.0)


def fits(like: Likeness, units: float) -> bool:
    """Whether a nat of the n-gram may be worth so many units of the stream."""
    low, high = like.units
    return low / UNIT_SLACK <= units <= high * UNIT_SLACK


def _of_size(stream: StreamFacts, warning: Callable[[str, str, str], Finding]) -> Iterator[Finding]:
    size = abs(stream.per_word)
    if LM_NAME.search(stream.name) and stream.name != FIRST_PASS:
        if size < LM_LEAST:
            message = (
                f"{stream.per_word:.3g} nats a word, perplexity {math.exp(size):,.3g}, is little for a "
                f"language model; were it log10, it would be {stream.per_word_as('10'):.3g}, perplexity "
                f"{math.exp(-stream.per_word_as('10')):,.3g}"
            )
            advice = "Declare the base, --stream NAME=FIELD:10, unless the domain is narrow."
            yield warning("base", message, advice)
        elif size > LM_MOST:
            message = (
                f"{stream.per_word:.3g} nats a word is much for a language model; were it log2, it would be "
                f"{stream.per_word_as('2'):.3g}, bytelogs {stream.per_word_as('bytelog'):.3g}"
            )
            advice = "Declare the base, or divide by the LM weight that was already multiplied in."
            yield warning("scale", message, advice)
    elif size > PER_WORD_MOST:
        message = (
            f"{stream.per_word:,.0f} nats a word is much for any model; were it log2, it would be "
            f"{stream.per_word_as('2'):,.0f}, bytelogs {stream.per_word_as('bytelog'):,.0f}, Sphinx's 1.0001 "
            f"{stream.per_word_as('1.0001'):.3g}"
        )
        whole = "whole numbers are often Sphinx's or bytelogs. " if stream.whole_numbers else ""
        advice = f"Declare the base ({whole}--stream NAME=FIELD:BASE), or tune its weight."
        yield warning("scale", message, advice)


def backwards(stream: StreamFacts) -> bool:
    """Lists stand in the order of this score, lowest first."""
    return stream.ascending > MOST * stream.compared and stream.descending < stream.ascending


def looks_like_cost(stream: StreamFacts) -> bool:
    """Above 0 and growing with length, and neither the order of the lists nor their errors say otherwise."""
    if stream.per_word <= 0.0 or stream.minimum < 0.0:
        return False
    if LM_NAME.search(stream.name):
        return True
    in_order = stream.compared > 0 and stream.descending > MOST * stream.compared
    helps = stream.error_t is not None and stream.error_t < -ERROR_T
    grows = stream.length_correlation is not None and stream.length_correlation > LENGTH_R
    return grows and not in_order and not helps
