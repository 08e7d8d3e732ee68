"""Owns the judgement of an audit: which counts look wrong, why, and what to do; warns, never refuses."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from rescorer.evaluation.audit_facts import FIRST_PASS, NEAR_NATS, ErrorFacts, Facts
from rescorer.evaluation.audit_streams import StreamFacts
from rescorer.evaluation.audit_words import WordFacts

Severity = Literal["warning", "note"]

FEW = 0.05
"""Share of lists, or of hypotheses, that may be odd without a warning."""
MOST = 0.8
"""Share of lists that makes a habit."""
MANY_DUPLICATES = 0.1
LM_NAME = re.compile(r"(?:^|[^a-z])(?:[a-z]{0,3}lm|ngram|graph|language)(?:[^a-z]|$)", re.IGNORECASE)
"""Streams so called hold language model scores, whose size a word is known."""
LM_LEAST, LM_MOST = 3.0, 12.0
"""Nats a word of a language model: perplexities 20 and 160,000."""
PER_WORD_MOST = 2400.0
"""Nats a word of an acoustic model: 30 frames of 80 nats."""
LENGTH_R = 0.3
"""Costs and log-probabilities grow with length; so does a sum of densities above 1, which is legal."""
ERROR_R, ERROR_T = 0.05, 3.0
"""How far above 0, and how many standard errors, the correlation with errors is wrong."""
UNCOVERED = 0.001
"""Share of all tokens that may be marks of one kind."""
OOV_NOTE, OOV_WARNING = 0.02, 0.15
ADVICE_ON_TOKENS = {
    "filler": "Give --normaliser settings whose `drop` or `replace` takes them away.",
    "variant": 'Set `variants` of the normaliser, or write them word(2), or name them in its "replace".',
    "multiword": "Name the joining character in the normaliser's `multiwords`.",
    "case": 'Set `case` of the normaliser to "lower".',
}


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


def judge(
    facts: Facts, streams: Sequence[StreamFacts], words: WordFacts, errors: ErrorFacts | None
) -> tuple[Finding, ...]:
    """All findings, warnings first."""
    found = [*_of_lists(facts), *_of_order(facts, streams), *_of_words(words)]
    found += [finding for stream in streams for finding in _of_stream(stream, facts.lists)]
    found += _of_errors(errors) if errors else ()
    return tuple(sorted(found, key=lambda finding: finding.severity == "note"))


def _of_lists(facts: Facts) -> Iterator[Finding]:
    lists, hypotheses = facts.lists, facts.hypotheses
    if not lists:
        yield Finding("warning", "nothing", "no list could be read", "Say the --format, or --map its fields.")
        return
    if facts.same_id:
        message = f"{facts.same_id:,} lists have an id that an earlier list has"
        yield Finding("warning", "same_id", message, "Answers and references go by id: make ids unique.")
    if facts.id_in_text > FEW * lists:
        message = f"in {facts.id_in_text:,} lists every text begins with the list's id"
        yield Finding("warning", "id_in_text", message, "The id was read as a word: check --format or --map.")
    if facts.single == lists:
        advice = "Ask the recogniser for its n-best."
        yield Finding("note", "single", "every list has one hypothesis: there is nothing to re-rank", advice)
    if facts.without_first:
        message = f"{facts.without_first:,} of {facts.ranked:,} lists with ranks lack the first rank"
        advice = "Was the 1-best written to another file? Put it back."
        yield Finding("warning", "missing_1best", message, advice)
    if facts.with_gaps:
        message = f"{facts.with_gaps:,} of {facts.ranked:,} lists with ranks have gaps in them"
        yield Finding("note", "rank_gaps", message, "Expected where duplicates were taken out before.")
    if facts.duplicates:
        many = facts.duplicates > MANY_DUPLICATES * hypotheses
        message = f"{_share(facts.duplicates, hypotheses)} of the hypotheses repeat another's text"
        advice = "Re-rank with --merge, or have the recogniser search for more distinct ones."
        yield Finding("warning" if many else "note", "duplicates", message, advice)
    if facts.duplicates_normalised > facts.duplicates:
        more = facts.duplicates_normalised - facts.duplicates
        message = f"{_share(more, hypotheses)} more repeat another's words once normalised"
        yield Finding("note", "duplicates_normalised", message, "--merge adds up their probabilities.")
    if facts.empty_near_best:
        message = (
            f"in {facts.empty_near_best:,} lists the empty hypothesis is within {NEAR_NATS:g} nats of the "
            "best other one, or above it"
        )
        advice = "Language models like short texts: give `word` a weight above 0, or drop empty hypotheses."
        yield Finding("warning", "empty_near_best", message, advice)
    elif facts.empty:
        message = f"{facts.empty:,} hypotheses in {facts.with_empty:,} lists have no words"
        yield Finding("note", "empty", message + f"; {facts.only_empty:,} lists have no others")


def _of_order(facts: Facts, streams: Sequence[StreamFacts]) -> Iterator[Finding]:
    """Judges the order by what the first pass ranked by, where that is known."""
    if not streams and facts.lists:
        yield Finding("note", "no_streams", "no scores, only an order: weights can count the language models")
        return
    total = next((each for each in streams if each.name == FIRST_PASS), streams[0] if streams else None)
    if total is None or (len(streams) > 1 and total.name != FIRST_PASS) or not total.compared:
        return
    if backwards(total):
        message = f"{total.name}: {total.ascending:,} of {total.compared:,} lists begin with the lowest score"
        advice = "A cost read as a log-probability? Declare it: --stream NAME=FIELD:e:cost."
        yield Finding("warning", "backwards", message, advice, total.name)
        return
    wrong = total.compared - total.first_is_best
    if wrong > FEW * total.compared:
        message = f"{total.name}: in {wrong:,} of {total.compared:,} lists the first has not the best score"
        advice = "The order is not this score's: give --first-pass, or check the score's sign."
        if total.name == FIRST_PASS:
            advice = "Check the base and sign of each stream, and the weights given with --first-pass."
        yield Finding("warning", "unsorted", message, advice, total.name)


def _of_stream(stream: StreamFacts, lists: int) -> Iterator[Finding]:
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
        advice = "Declare it: --stream NAME=FIELD:e:cost. Leave it where densities above 1 are summed."
        yield warning("cost", message, advice)
    else:
        yield from _of_size(stream, warning)
    if stream.error_correlation is not None and stream.error_t is not None:
        r, t = stream.error_correlation, stream.error_t
        if r > ERROR_R and t > ERROR_T:
            message = f"higher scores go with more errors (r {r:+.2f}, {t:.1f} standard errors)"
            yield warning("error_sign", message, "Check its sign: higher must be better.")


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


def _of_words(words: WordFacts) -> Iterator[Finding]:
    for kind, tokens in words.uncovered.items():
        severity: Severity = "warning" if tokens.count > UNCOVERED * words.tokens else "note"
        examples = ", ".join(token for token, _ in tokens.examples[:5])
        message = f"{tokens.count:,} {kind} tokens stay in the words: {examples}"
        yield Finding(severity, kind, message, ADVICE_ON_TOKENS[kind])
    unknown = words.unknown
    if unknown is None or unknown.rate < OOV_NOTE:
        return
    message = f"{100 * unknown.rate:.1f} % of the words are unknown to the bundle"
    advice = "See the most frequent ones; `replace` of the normaliser spells words another way."
    if unknown.other_case > unknown.unknown.count / 2:
        message += ", most of them known in another case"
        advice = "Set `case` of the normaliser as the bundle has it."
    yield Finding("warning" if unknown.rate > OOV_WARNING else "note", "oov", message, advice)


def _of_errors(errors: ErrorFacts) -> Iterator[Finding]:
    totals = errors.totals
    if errors.random_errors < totals.system.errors:
        message = (
            f"the first hypotheses have {totals.system.errors:,} errors, more than drawing at random has "
            f"({errors.random_errors:,.0f})"
        )
        yield Finding(
            "warning", "worse_than_random", message, "Is the order, or a sign, the wrong way round?"
        )
    right = totals.oracle.sentences - totals.oracle.sentences_wrong
    if errors.without_first_word > max(3, right):
        message = f"{errors.without_first_word:,} lists are right but for a missing first word"
        yield Finding("warning", "first_word", message, "Was the first word read as an id? Check --format.")
    if totals.oracle.errors == totals.system.errors and totals.system.errors:
        yield Finding("note", "no_gain", "no list holds anything better than its first hypothesis")


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


def _share(count: int, of: int) -> str:
    return f"{count:,} ({100 * count / of:.1f} %)"
