"""Owns the judgement of an audit: which counts look wrong, why, and what to do; warns, never refuses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rescorer.evaluation.inspection.finding import Finding, Severity
from rescorer.evaluation.inspection.models import ModelFacts, WeightFacts
from rescorer.evaluation.inspection.stream_findings import FEW, of_order, of_stream
from rescorer.evaluation.inspection.streams import StreamFacts
from rescorer.evaluation.inspection.tally import NEAR_NATS, ErrorFacts, Facts
from rescorer.evaluation.inspection.words import WordFacts

MANY_DUPLICATES = 0.1
UNCOVERED = 0.001
"""Share of all tokens that may be marks of one kind."""
OOV_NOTE, OOV_WARNING = 0.02, 0.15
LISTS_TO_JUDGE = 20
"""Fewer say nothing of an order: by chance alone a few first hypotheses are worse than others."""
ADDED_T = 2.0
"""Standard errors that weights may add to the first pass's errors; more is no chance."""
SPREADS = 4.0
"""How many times as far as the other one of two terms may spread: of a sum of both, it alone decides."""
ADVICE_ON_TOKENS = {
    "filler": "Give --normaliser settings whose `drop` or `replace` takes them away.",
    "variant": 'Set `variants` of the normaliser, or write them word(2), or name them in its "replace".',
    "multiword": "Name the joining character in the normaliser's `multiwords`.",
    "case": 'Set `case` of the normaliser to "lower".',
}


def judge(
    facts: Facts,
    streams: Sequence[StreamFacts],
    words: WordFacts,
    errors: ErrorFacts | None,
    models: ModelFacts | None = None,
) -> tuple[Finding, ...]:
    """All findings, warnings first."""
    likeness = models.likeness if models else {}
    found = [*_of_lists(facts), *of_order(facts, streams), *_of_words(words)]
    for stream in streams:
        found += of_stream(stream, facts.lists, likeness.get(stream.name))
    found += _of_errors(errors) if errors else ()
    found += _of_weights(models.weights, errors) if models else ()
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
    if facts.unread:
        names = ", ".join(name for name, _ in facts.unread)
        message = f"{facts.unread[0][1]:,} lists without scores carry numbers that look like some: {names}"
        advice = "Read them: --stream NAME=FIELD, or the options of --format."
        yield Finding("warning", "unread_scores", message, advice)
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
    if totals.oracle.sentences >= LISTS_TO_JUDGE and errors.random_errors < totals.system.errors:
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


def _of_weights(weights: WeightFacts, errors: ErrorFacts | None) -> Iterator[Finding]:
    if weights.refused:
        message = f"the weights {weights.name!r} refuse {weights.refused:,} lists: {weights.reason}"
        advice = (
            "Read the stream under the name that they know, --stream NAME=FIELD, or give --weights or -w."
        )
        yield Finding("note", "weights_refuse", message, advice)
    advice = "Find better ones on lists with references: rescorer tune FILE --bundle BUNDLE -o mine.json."
    if weights.others:
        advice += f" The bundle also has --weights {', '.join(weights.others)}."
    t = weights.added_t or 0.0
    if errors and t > ADDED_T:
        message = (
            f"the weights {weights.name!r} make {weights.errors:,} {errors.unit} errors, the first pass "
            f"{weights.first_errors:,} ({t:.1f} standard errors)"
        )
        yield Finding("warning", "weights", message, advice)
    if abs(t) > ADDED_T:
        return
    models, streams = weights.model_spread, weights.stream_spread
    if not (models > 0.0 and streams > 0.0) or 1 / SPREADS <= models / streams <= SPREADS:
        return
    message = (
        f"under the weights {weights.name!r} the language model moves a list's totals by {models:.3g} nats, "
        f"the streams by {streams:.3g}: {'it' if models > streams else 'they'} alone would decide"
    )
    yield Finding("warning", "weights", message, advice)


def _share(count: int, of: int) -> str:
    return f"{count:,} ({100 * count / of:.1f} %)"
