"""Inspect lists before they are scored, and report what looks wrong, why, and what to do about it.

``inspect_lists`` reads lists one by one and returns an ``Inspection`` with statistics and findings. The
statistics are those of ``list_statistics`` and ``word_statistics``; this module judges them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

from rescorer.errors import InputError, pluralise
from rescorer.evaluation.error_rate import DEFAULT_COUNTING, CountingSettings
from rescorer.evaluation.list_errors import format_size
from rescorer.evaluation.list_statistics import (
    FIRST_PASS,
    NEAR_NATS,
    ErrorStats,
    ListStats,
    ListTally,
    ModelStats,
    ModelTally,
    NGramCorrelation,
    StreamStats,
    WeightStats,
)
from rescorer.evaluation.word_statistics import EqualTexts, WordStats, describe_equated
from rescorer.formats.common import NATS_PER_UNIT
from rescorer.formats.pieces import UNKNOWN_PIECE, join_text
from rescorer.text import COUNTING_ADVICE, Normaliser
from rescorer.types import NBestList, Weights
from rescorer.unread_scores import shorten_names

Severity = Literal["warning", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something unusual about the lists."""

    severity: Severity
    """``warning`` if something is probably wrong; ``note`` if it is worth knowing."""
    code: str
    """Stable name of the kind of finding, for programs."""
    message: str
    advice: str = ""
    """Ways to mend it."""
    stream: str = ""
    """The stream concerned; empty if the finding is not about a stream."""


MAX_ODD_SHARE = 0.05
"""A warning is given if more than this share of the lists, or of the hypotheses, is unusual."""
MOST_LISTS = 0.8
"""If something is true of more than this share of the lists, it probably has one cause in all of them."""
LM_NAME = re.compile(r"(?:^|[^a-z])(?:[a-z]{0,3}lm|ngram|graph|language)(?:[^a-z]|$)", re.IGNORECASE)
"""Matches names of streams that probably hold scores of language models; their usual size per word is
known."""
MIN_LM_NATS_PER_WORD, MAX_LM_NATS_PER_WORD = 3.0, 12.0
"""Usual range of -ln P per word under a language model: perplexities of 20 to 160,000."""
MAX_NATS_PER_WORD = 2400.0
"""Largest usual size of an acoustic model's score per word: 30 frames of 80 nats."""
MIN_LENGTH_R = 0.3
"""If the correlation of scores with length is above this, scores grow with length. They are then costs, or
sums of log-densities above 0, which are valid scores."""
MIN_LISTS_TO_COMPARE = 10
"""Number of lists needed to compare a stream with the n-gram model of a bundle."""
MIN_LM_R, MIN_SAME_R = 0.5, 0.9
"""The units of a stream are compared with the n-gram model's if the two correlate at least this much. The
first value is for streams that are named like a language model, the second for other streams."""
UNIT_TOLERANCE = 1.1
"""Units that differ by less than this factor count as equal; log2 and natural logarithms differ by 1.44."""
BASES = {"10": "log10", "2": "log2", "1.0001": "Sphinx's 1.0001", "bytelog": "bytelogs"}
COST_ADVICE = "Declare it as a cost: --stream NAME=FIELD:e:cost."
MIN_ERROR_R, MIN_ERROR_T = 0.05, 3.0
"""The sign of scores looks wrong if their correlation with errors is above the first value, and exceeds 0 by
more standard errors than the second value."""


def judge_order(stats: ListStats, streams: Sequence[StreamStats]) -> Iterator[Finding]:
    """Check whether the order of lists agrees with the score of the first pass, if that score is known."""
    if not streams and stats.lists:
        message = "the lists have an order but no scores; only the language models can be weighted"
        yield Finding("note", "no_streams", message)
        return
    by_name = {stream.name: stream for stream in streams}
    total = by_name.get(FIRST_PASS, streams[0] if streams else None)
    if total is None or (len(streams) > 1 and total.name != FIRST_PASS) or not total.compared:
        return
    compared = pluralise(total.compared, "list")
    if total.ascending > MOST_LISTS * total.compared and total.descending < total.ascending:
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
    """Check one stream; ``correlation`` is its correlation with the bundle's n-gram model, None without a
    bundle."""
    warning = partial(_warn, stream)
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
        yield from _judge_correlation(stream, correlation)
    else:
        yield from _judge_size(stream)
    if stream.error_correlation is not None and stream.error_t is not None:
        r, t = stream.error_correlation, stream.error_t
        if r > MIN_ERROR_R and t > MIN_ERROR_T:
            message = f"hypotheses with higher scores have more errors (r {r:+.2f}, {t:.1f} standard errors)"
            yield warning("error_sign", message, "Check its sign: higher scores must be better.")


def _warn(stream: StreamStats, code: str, message: str, advice: str) -> Finding:
    return Finding("warning", code, f"{stream.name}: {message}", advice, stream.name)


def _judge_correlation(stream: StreamStats, correlation: NGramCorrelation) -> Iterator[Finding]:
    guesses = guess_units(correlation)
    if correlation.r < 0.0:
        message = f"falls where the bundle's n-gram rises (r {correlation.r:+.2f} within lists), like a cost"
        yield _warn(stream, "cost", message, COST_ADVICE)
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
        yield _warn(stream, "base", message, advice)
    elif not is_in_nats(correlation) or correlation.r < MIN_SAME_R:
        # else the n-gram confirms the units, even if the scores per word are unusual
        yield from _judge_size(stream)


def is_comparable(stream: StreamStats, correlation: NGramCorrelation) -> bool:
    """Whether the units of a stream can be compared with those of the n-gram model.

    They can if the two correlate enough, and if the stream may hold scores of a language model. Acoustic
    scores cannot: they often fall where the language model's rise, because a hypothesis gets into the list if
    one of the two is good.
    """
    is_lm = LM_NAME.search(stream.name)
    enough = abs(correlation.r) >= (MIN_LM_R if is_lm else MIN_SAME_R)
    return correlation.lists >= MIN_LISTS_TO_COMPARE and enough and (correlation.r > 0.0 or bool(is_lm))


def guess_units(correlation: NGramCorrelation) -> dict[str, float]:
    """Guess the units of a stream that seems not to be in nats.

    In such a case the base was not declared, or a wrong base was declared.

    Returns:
        The number of units per nat, by the name of the units, the most likely first.
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
    """Whether one nat of the n-gram model's ln P may correspond to this many units of the stream."""
    low, high = correlation.units_per_nat
    return low / UNIT_TOLERANCE <= units_per_nat <= high * UNIT_TOLERANCE


def _judge_size(stream: StreamStats) -> Iterator[Finding]:
    size = abs(stream.per_word)
    if LM_NAME.search(stream.name) and stream.name != FIRST_PASS:
        if size < MIN_LM_NATS_PER_WORD:
            message = (
                f"{stream.per_word:.3g} nats per word, perplexity {math.exp(size):,.3g}, is low for a "
                f"language model; if it is log10, it is {stream.per_word_as('10'):.3g}, perplexity "
                f"{math.exp(-stream.per_word_as('10')):,.3g}"
            )
            advice = "Declare the base, --stream NAME=FIELD:10, unless the domain is narrow."
            yield _warn(stream, "base", message, advice)
        elif size > MAX_LM_NATS_PER_WORD:
            message = (
                f"{stream.per_word:.3g} nats per word is high for a language model; if it is log2, it is "
                f"{stream.per_word_as('2'):.3g}, if bytelogs {stream.per_word_as('bytelog'):.3g}"
            )
            advice = "Declare the base, or divide by the LM weight that the scores were multiplied by."
            yield _warn(stream, "scale", message, advice)
    elif size > MAX_NATS_PER_WORD:
        message = (
            f"{format_size(stream.per_word, 0)} nats per word is high for any model; if it is log2, it is "
            f"{format_size(stream.per_word_as('2'), 0)}, if bytelogs "
            f"{format_size(stream.per_word_as('bytelog'), 0)}, if Sphinx's 1.0001 "
            f"{stream.per_word_as('1.0001'):.3g}"
        )
        hint = "whole numbers are often Sphinx's or bytelogs: " if stream.whole_numbers else ""
        advice = f"Declare the base ({hint}--stream NAME=FIELD:BASE), or tune its weight."
        yield _warn(stream, "scale", message, advice)


def looks_like_cost(stream: StreamStats) -> bool:
    """Whether scores look like costs.

    Costs are positive and grow with length. Scores by which the lists are sorted, or that are high where
    there are few errors, are not costs.
    """
    if stream.per_word <= 0.0 or stream.minimum < 0.0:
        return False
    if LM_NAME.search(stream.name):
        return True
    is_sorted = stream.compared > 0 and stream.descending > MOST_LISTS * stream.compared
    reduces_errors = stream.error_t is not None and stream.error_t < -MIN_ERROR_T
    grows = stream.length_correlation is not None and stream.length_correlation > MIN_LENGTH_R
    return grows and not is_sorted and not reduces_errors


MAX_DUPLICATE_SHARE = 0.1
"""A warning is given if more than this share of the hypotheses are duplicates."""
MAX_UNCOVERED_SHARE = 0.001
"""A warning is given if more than this share of the tokens are marks of one kind."""
OOV_NOTE_RATE, OOV_WARNING_RATE = 0.02, 0.15
MIN_LISTS_TO_JUDGE = 20
"""Smallest number of lists whose order is judged. In fewer lists, first hypotheses can be bad by chance."""
MAX_ADDED_T = 2.0
"""If weights add errors to the first pass, or the first pass to random choice, up to this many standard
errors of them may be chance."""
MAX_SPREAD_RATIO = 4.0
"""If the spread of a term is this many times that of another term, it alone decides the ranking by their
sum."""
ADVICE_BY_KIND = {
    "filler": "--fillers english or switchboard drops hesitations, --normaliser with `drop` others.",
    "variant": 'Set `variants` of the normaliser, write variants as word(2), or list them in its "replace".',
    "multiword": "List the joining character in the normaliser's `multiwords`.",
    "case": 'Set `case` of the normaliser to "lower".',
}


NO_EQUAL: Mapping[str, EqualTexts] = MappingProxyType({})


def judge(
    lists: ListStats,
    streams: Sequence[StreamStats],
    words: WordStats,
    errors: ErrorStats | None,
    models: ModelStats | None = None,
    equal: Mapping[str, EqualTexts] = NO_EQUAL,
    step: int = 1,
) -> tuple[Finding, ...]:
    """Judge statistics of every ``step``-th list; return all findings, warnings first."""
    correlations = models.correlations if models else {}
    findings = [
        *_judge_sample(lists, step),
        *_judge_lists(lists),
        *judge_order(lists, streams),
        *_judge_words(words),
    ]
    for stream in streams:
        findings += judge_stream(stream, lists.lists, correlations.get(stream.name))
    findings += _judge_equal_texts(equal)
    findings += _judge_errors(errors) if errors else ()
    findings += _judge_weights(models.weights, errors) if models else ()
    return tuple(sorted(findings, key=lambda finding: finding.severity == "note"))


def _judge_sample(stats: ListStats, step: int) -> Iterator[Finding]:
    if step > 1:
        message = (
            f"all lists were read, but only one in {step:,} was examined: {pluralise(stats.lists, 'list')}"
        )
        yield Finding("note", "sample", message, "--all examines all of them, which takes longer.")


def _judge_lists(stats: ListStats) -> Iterator[Finding]:
    if not stats.lists:
        advice = "Specify the --format, or --map its fields."
        yield Finding("warning", "nothing", "no list could be read", advice)
        return
    yield from _judge_ids_and_ranks(stats)
    yield from _judge_duplicates(stats)
    yield from _judge_unread(stats)
    if stats.empty_near_best:
        message = (
            f"in {pluralise(stats.empty_near_best, 'list')} the empty hypothesis scores above the best other "
            f"one, or at most {NEAR_NATS:g} nats below it"
        )
        advice = "Language models prefer short texts: give `word` a weight above 0, or drop empty hypotheses."
        yield Finding("warning", "empty_near_best", message, advice)
    elif stats.empty:
        count = pluralise(stats.empty, "hypothesis", "hypotheses")
        message = f"{count} in {pluralise(stats.with_empty, 'list')} without words"
        only = pluralise(stats.only_empty, "list has", "lists have")
        yield Finding("note", "empty", f"{message}; {only} only such hypotheses")


def _judge_unread(stats: ListStats) -> Iterator[Finding]:
    """Name fields that no reader uses, although they look like scores or hypotheses."""
    if stats.unread:
        names = ", ".join(shorten_names([name for name, _ in stats.unread]))
        lists = pluralise(stats.unread[0][1], "list without scores has", "lists without scores have")
        message = f"{lists} fields that look like scores: {names}"
        field, _, units = stats.unread_option.partition(":")
        base, _, sign = units.partition(":")
        settings = f"score={field},base={base or 'e'}" + (f",sign={sign}" if sign else "")
        option = f"{stats.unread_option}, or with {settings} in --format," if field else "FIELD"
        advice = (
            f"Read that of the recogniser with --stream acoustic={option} or FIELD:e:cost if lower is better."
            " Rank by it alone at first, -w lm:mixture=0; `rescorer tune` finds the weight of language "
            "models."
        )
        yield Finding("warning", "unread_scores", message, advice)
    if stats.partial_scores:
        names = ", ".join(shorten_names([name for name, _ in stats.partial_scores]))
        lists = pluralise(stats.partial_scores[0][1], "list has", "lists have")
        message = f"{lists} a score in some hypotheses only: {names}"
        advice = "A stream needs a score in every hypothesis. Some services give one for the best text alone."
        yield Finding("note", "partial_scores", message, advice)
    for description, count in stats.unread_lists:
        lists = pluralise(count, "list has", "lists have")
        message = f"{lists} a field that looks like hypotheses and is not read: {description}"
        advice = (
            "Read it with --map hypotheses=FIELD from JSON lines; in other JSON, rename it to candidates."
        )
        yield Finding("warning", "unread_lists", message, advice)


def _judge_ids_and_ranks(stats: ListStats) -> Iterator[Finding]:
    if stats.same_id:
        message = f"{pluralise(stats.same_id, 'list has', 'lists have')} the same id as an earlier list"
        advice = "Make ids unique: results and references are matched by id."
        yield Finding("warning", "same_id", message, advice)
    if stats.id_in_text > MAX_ODD_SHARE * stats.lists:
        message = f"in {pluralise(stats.id_in_text, 'list')} every text starts with the id of the list"
        yield Finding("warning", "id_in_text", message, "The id was read as a word: check --format or --map.")
    if stats.tab_in_text > MAX_ODD_SHARE * stats.lists:
        message = f"in {pluralise(stats.tab_in_text, 'list')} every text has a tab"
        advice = (
            "A column was read as a word: check --format. NeMo's files have no ids; a table of ids, texts "
            "and scores is read with --format table."
        )
        yield Finding("warning", "tab_in_text", message, advice)
    if stats.single == stats.lists:
        message = "every list has one hypothesis, so there is nothing to re-rank"
        advice = (
            "Configure the recogniser to return n-best lists. Whisper's programs print only the best text of "
            "its beams or samples; `rescorer help formats` says how to write all of them."
        )
        yield Finding("note", "single", message, advice)
    if stats.without_first:
        ranked = pluralise(stats.ranked, "list")
        message = f"no first rank in {stats.without_first:,} of {ranked} with ranks"
        advice = "If the 1-best was written to another file, put it back."
        yield Finding("warning", "missing_1best", message, advice)
    if stats.with_gaps:
        message = f"gaps between ranks in {stats.with_gaps:,} of {pluralise(stats.ranked, 'list')} with ranks"
        yield Finding("note", "rank_gaps", message, "Expected if duplicates were removed before.")


def _judge_duplicates(stats: ListStats) -> Iterator[Finding]:
    if stats.duplicates:
        many = stats.duplicates > MAX_DUPLICATE_SHARE * stats.hypotheses
        share = _format_share(stats.duplicates, stats.hypotheses)
        message = f"{share} of the hypotheses repeat another's text"
        advice = "Re-rank with --merge, or have the recogniser search for more distinct hypotheses."
        yield Finding("warning" if many else "note", "duplicates", message, advice)
    if stats.duplicates_normalised > stats.duplicates:
        more = stats.duplicates_normalised - stats.duplicates
        share = _format_share(more, stats.hypotheses)
        message = f"{share} more repeat another's words once normalised"
        yield Finding("note", "duplicates_normalised", message, "--merge adds up their probabilities.")


def _judge_markup(words: WordStats) -> Iterator[Finding]:
    for markup in words.markup:
        found = markup.found
        texts = "references" if markup.in_references else "hypotheses"
        share = _format_share(found.texts, found.of_texts)
        message = f"{share} of the {texts} have {found.kind.description}: {found.examples[0]}"
        is_rare = found.kind.count is None and found.texts <= MAX_UNCOVERED_SHARE * found.of_texts
        severity: Severity = "note" if markup.is_known or is_rare else "warning"
        joined = join_text(found.examples[0], [other.found.kind for other in words.markup])
        advice = f"Read them with --join-pieces: {joined}"
        if markup.is_known:
            advice = (
                "The bundle knows these pieces as words; for other uses --join-pieces makes words of them."
            )
        yield Finding(severity, "markup", message, advice)
    if count := words.unknown_pieces.get(UNKNOWN_PIECE, 0):
        severity = "warning" if count > MAX_UNCOVERED_SHARE * words.tokens else "note"
        message = (
            f"the hypotheses have {count:,} {UNKNOWN_PIECE}, as SentencePiece writes what it does not know"
        )
        advice = (
            "Something was said: each has to count as a word. If it is the id of an end of sentence that was "
            "decoded with the text, as in SpeechBrain, remove it there."
        )
        others = sorted(words.unknown_pieces.keys() - {UNKNOWN_PIECE})
        if others:
            advice += (
                f" {', '.join(others)} means the same: write both alike, with `replace` of a normaliser."
            )
        yield Finding(severity, "unknown_piece", message, advice)


def _judge_words(words: WordStats) -> Iterator[Finding]:
    yield from _judge_markup(words)
    for kind, tokens in words.uncovered.items():
        markup = [markup.found.kind for markup in words.markup]
        if kind == "filler" and not any(join_text(token, markup) for token, _ in tokens.examples):
            continue  # a finding about markup already says what to do
        severity: Severity = "warning" if tokens.count > MAX_UNCOVERED_SHARE * words.tokens else "note"
        examples = ", ".join(token for token, _ in tokens.examples[:5])
        remaining = pluralise(tokens.count, f"{kind} token remains", f"{kind} tokens remain")
        message = f"{remaining} after normalisation: {examples}"
        yield Finding(severity, kind, message, ADVICE_BY_KIND[kind])
    if words.letters and not words.markup:
        message = f"the texts look like {words.letters}, in which signs are letters and case counts"
        advice = f"Count them as letters with --letters {words.letters}, or map them to the usual script."
        yield Finding("warning", "letters", message, advice)
    if words.integers.count:
        examples = ", ".join(token for token, _ in words.integers.examples[:5])
        message = (
            f"all {words.integers.count:,} tokens of the hypotheses are whole numbers, like the word ids of "
            f"a symbol table: {examples}"
        )
        advice = "Map ids to words first, as Kaldi's utils/int2sym.pl does, unless digits were spoken."
        yield Finding("warning", "integer_ids", message, advice)
    if words.spacing:
        advice = f"{COUNTING_ADVICE[0].upper()}{COUNTING_ADVICE[1:]}; language models need divided words."
        yield Finding("warning", "no_spaces", words.spacing, advice)
    unknown = words.unknown
    if unknown is None or unknown.rate < OOV_NOTE_RATE:
        return
    message = f"the bundle does not know {100 * unknown.rate:.1f} % of the words"
    advice = "Check the most frequent ones; `replace` of the normaliser changes the spelling of words."
    if unknown.other_case > unknown.unknown.count / 2:
        message += ", but knows most of these in another case"
        advice = "Set `case` of the normaliser to that of the bundle."
    yield Finding("warning" if unknown.rate > OOV_WARNING_RATE else "note", "oov", message, advice)


def _judge_equal_texts(equal: Mapping[str, EqualTexts]) -> Iterator[Finding]:
    found = equal.get("normaliser")
    if found is not None and found.beyond:
        message = (
            f"{pluralise(found.beyond, 'text differs', 'texts differ')} from another of their list in more "
            f"than case and punctuation, but {pluralise(found.beyond, 'has', 'have').split()[-1]} the same "
            f"words once normalised: {found.quote_beyond()}"
        )
        advice = (
            "Errors between them are not counted, and --merge makes them one: leave --normaliser out, or set "
            '"rules" to 2 in its file.'
        )
        yield Finding("warning", "equal_texts", message, advice)
    elif found is not None and found.texts:
        examples = "; ".join(f"{first!r} = {second!r}" for first, second in found.examples)
        message = (
            f"{pluralise(found.texts, 'text has', 'texts have')} the words of another text once case and "
            f"punctuation are normalised: {examples}"
        )
        yield Finding("note", "equal_texts", message)
    read = equal.get("bundle")
    if read is not None and read.beyond:
        advice = (
            "Its models cannot choose between them; errors are counted by other rules all the same. Train "
            'models on text with "rules": 2 in the settings of the normaliser.'
        )
        yield Finding("warning", "bundle_equates", describe_equated(read), advice)


def _judge_errors(errors: ErrorStats) -> Iterator[Finding]:
    totals = errors.totals
    t = errors.worse_than_random_t
    if totals.oracle.sentences >= MIN_LISTS_TO_JUDGE and t > MAX_ADDED_T:
        message = (
            f"the first hypotheses have {totals.system.errors:,} errors, more than hypotheses drawn at "
            f"random ({errors.random_errors:,.0f}; {t:.1f} standard deviations)"
        )
        advice = "Check whether the order, or the sign of a score, is reversed."
        yield Finding("warning", "worse_than_random", message, advice)
    correct = totals.oracle.sentences - totals.oracle.sentences_wrong
    if errors.without_first_word > max(3, correct):
        lists = pluralise(errors.without_first_word, "list is", "lists are")
        message = f"{lists} correct except for a missing first word"
        advice = "The first word may have been read as an id: check --format."
        yield Finding("warning", "first_word", message, advice)
    if totals.oracle.errors == totals.system.errors and totals.system.errors:
        yield Finding("note", "no_gain", "no list contains anything better than its first hypothesis")


def _judge_weights(weights: WeightStats, errors: ErrorStats | None) -> Iterator[Finding]:
    if weights.refused:
        message = (
            f"weights {weights.name!r} cannot rank {pluralise(weights.refused, 'list')}: {weights.reason}"
        )
        advice = (
            "Read the stream under the name that the weights use, --stream NAME=FIELD, or weigh another one, "
            "-w NAME=1. Start without language models, -w lm:mixture=0; `rescorer tune` finds their weight."
        )
        yield Finding("note", "weights_refuse", message, advice)
    advice = "Tune weights on lists with references: rescorer tune FILE --bundle BUNDLE -o mine.json."
    if weights.others:
        advice += f" The bundle also has --weights {', '.join(weights.others)}."
    if weights.untuned:
        start = "Rank by the scores alone at first, -w lm:mixture=0. "
        yield Finding("warning", "untuned_weights", weights.untuned, start + advice)
    t = weights.added_t or 0.0
    if errors and t > MAX_ADDED_T:
        message = (
            f"weights {weights.name!r} make {weights.errors:,} {errors.unit} errors, the first pass "
            f"{weights.first_errors:,} ({t:.1f} standard errors)"
        )
        yield Finding("warning", "weights", message, advice)
    if abs(t) > MAX_ADDED_T:
        return
    models, streams = weights.model_spread, weights.stream_spread
    if not (models > 0.0 and streams > 0.0) or 1 / MAX_SPREAD_RATIO <= models / streams <= MAX_SPREAD_RATIO:
        return
    message = (
        f"under weights {weights.name!r} the models move the totals of a list by {models:.3g} nats, the "
        f"streams by {streams:.3g}: the {'models' if models > streams else 'streams'} alone would decide"
    )
    yield Finding("warning", "weights", message, advice)


def _format_share(count: int, of: int) -> str:
    return f"{count:,} ({100 * count / of:.1f} %)"


@dataclass(frozen=True, slots=True)
class Inspection:
    """Statistics and findings of one file of lists."""

    n_read: int
    """Number of lists that were read and not rejected; in a long file, those in ``lists`` are a sample."""
    lists: ListStats
    streams: tuple[StreamStats, ...]
    words: WordStats
    errors: ErrorStats | None
    """None without references."""
    models: ModelStats | None
    """None without a bundle."""
    equal: Mapping[str, EqualTexts]
    """Counts of different texts with the same words. Under the key ``normaliser``, words are those in which
    errors are counted; under ``bundle``, those that models read, if these differ."""
    findings: tuple[Finding, ...]
    """Warnings first."""

    @property
    def suspicious(self) -> bool:
        """Whether something is probably wrong."""
        return any(finding.severity == "warning" for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain data; rates are in percent, scores in nats."""
        return {
            "read_lists": self.n_read,
            **asdict(self.lists),
            "prefix_sharing": round(self.lists.prefix_sharing, 3),
            "streams": {stream.name: stream.to_dict() for stream in self.streams},
            **self.words.to_dict(),
            **(self.errors.to_dict() if self.errors else {}),
            **(self.models.to_dict() if self.models else {}),
            "equal_texts": {name: found.to_dict() for name, found in self.equal.items()},
            "findings": [asdict(finding) for finding in self.findings],
            "suspicious": self.suspicious,
        }


MAX_SAMPLE_CHARS = 1 << 22
"""Largest number of characters of the lists that are examined, unless all are. Those of hypotheses take time;
those of other fields only take memory, and so each counts ``FIELD_SHARE``."""
FIELD_SHARE = 1 / 16
LEAST_CHARS = 16
"""Number of characters that a hypothesis counts at least."""


class ListSample:
    """Keeps every n-th list, beginning with the first one. n doubles whenever the lists become too large."""

    def __init__(self) -> None:
        self.step = 1
        self.n_read = 0
        self._kept: list[tuple[NBestList, float]] = []
        self._size = 0.0

    @property
    def lists(self) -> Iterator[NBestList]:
        return (nbest for nbest, _ in self._kept)

    def add(self, nbest: NBestList) -> None:
        """Keep a list, if it is its turn."""
        if self.n_read % self.step == 0:
            size = sum(
                max(LEAST_CHARS, len(hypothesis.text)) + FIELD_SHARE * len(str(hypothesis.fields))
                for hypothesis in nbest.hypotheses
            )
            self._kept.append((nbest, size + FIELD_SHARE * len(str(nbest.fields))))
            self._size += self._kept[-1][1]
        self.n_read += 1
        while self._size > MAX_SAMPLE_CHARS and len(self._kept) > 1:
            self._kept, self.step = self._kept[::2], 2 * self.step
            self._size = sum(size for _, size in self._kept)


def inspect_lists(
    lists: Iterable[NBestList | InputError],
    normaliser: Normaliser,
    *,
    vocabulary: frozenset[str] | None = None,
    models: ModelTally | None = None,
    first_pass: Weights | None = None,
    counting: CountingSettings = DEFAULT_COUNTING,
    on_rejected: Callable[[InputError], object] = lambda error: None,
    examine_all: bool = False,
) -> Inspection:
    """Read all lists once, and examine them or, if they are many, a sample of about ``MAX_SAMPLE_CHARS``.

    Only the sample, and sums, ids and distinct tokens of the lists that are examined, stay in memory.

    Args:
        lists: lists and errors, as a reader yields them; the errors are counted.
        vocabulary: words that models know; None for those of the bundle. Without vocabulary and bundle,
            unknown words are not reported.
        models: compares the lists with a bundle, whose models score them; None to skip this.
        first_pass: weights that define the first pass. None: it is defined by the order of the lists and, if
            they have only one stream, by its scores.
        on_rejected: called with the error of each rejected list.
        examine_all: examine each list when it is read, so that there is no sample.
    """
    tally, sample = ListTally(normaliser, first_pass, counting, models), ListSample()

    def keep(nbest: NBestList) -> None:
        tally.check(nbest)
        sample.add(nbest)

    def count(item: NBestList | InputError, add: Callable[[NBestList], None]) -> None:
        try:
            if isinstance(item, InputError):
                raise item
            add(item)
        except InputError as error:
            tally.reject()
            on_rejected(error)

    for item in lists:
        count(item, tally.add if examine_all else keep)
    for nbest in sample.lists:
        count(nbest, tally.add)
    model_stats = models.stats() if models else None
    vocabulary = models.vocabulary if models and vocabulary is None else vocabulary
    words = tally.word_stats(vocabulary)
    stats = tally.list_stats(), tally.stream_stats(), words, tally.error_stats(), model_stats
    n_unseen = sample.n_read - sum(1 for _ in sample.lists)
    findings = judge(*stats, tally.equal_texts, sample.step)
    return Inspection(stats[0].lists + n_unseen, *stats, equal=tally.equal_texts, findings=findings)
