"""Judge the statistics of lists: say what looks wrong, why, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from rescorer.errors import pluralise
from rescorer.evaluation.inspection.equal_texts import EqualTexts, describe_equated
from rescorer.evaluation.inspection.finding import Finding, Severity
from rescorer.evaluation.inspection.list_stats import ErrorStats, ListStats
from rescorer.evaluation.inspection.models import ModelStats, WeightStats
from rescorer.evaluation.inspection.stream_findings import MAX_ODD_SHARE, judge_order, judge_stream
from rescorer.evaluation.inspection.streams import StreamStats
from rescorer.evaluation.inspection.tally import NEAR_NATS
from rescorer.evaluation.inspection.words import WordStats
from rescorer.formats.pieces import UNKNOWN_PIECE, join_text
from rescorer.preparation.unread_scores import shorten_names
from rescorer.text import COUNTING_ADVICE

MAX_DUPLICATE_SHARE = 0.1
"""Largest share of duplicate hypotheses without a warning."""
MAX_UNCOVERED_SHARE = 0.001
"""Largest share of tokens that may be marks of one kind without a warning."""
OOV_NOTE_RATE, OOV_WARNING_RATE = 0.02, 0.15
MIN_LISTS_TO_JUDGE = 20
"""Number of lists needed to judge their order: in a few lists, first hypotheses can be worse by chance."""
MAX_ADDED_T = 2.0
"""Number of standard errors up to which errors added to the first pass by weights may be due to chance."""
MAX_SPREAD_RATIO = 4.0
"""Ratio between the spreads of two terms above which the larger term alone decides how their sum ranks."""
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
) -> tuple[Finding, ...]:
    """All findings, warnings first."""
    correlations = models.correlations if models else {}
    findings = [*_judge_lists(lists), *judge_order(lists, streams), *_judge_words(words)]
    for stream in streams:
        findings += judge_stream(stream, lists.lists, correlations.get(stream.name))
    findings += _judge_equal_texts(equal)
    findings += _judge_errors(errors) if errors else ()
    findings += _judge_weights(models.weights, errors) if models else ()
    return tuple(sorted(findings, key=lambda finding: finding.severity == "note"))


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
            "its beams or samples; docs/formats.md says how to write all of them."
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
        if kind == "filler" and all(_is_markup(token, words) for token, _ in tokens.examples):
            continue
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


def _is_markup(token: str, words: WordStats) -> bool:
    """Whether joining pieces removes a token, so that a finding says already what to do about it."""
    return not join_text(token, [markup.found.kind for markup in words.markup])


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
    if totals.oracle.sentences >= MIN_LISTS_TO_JUDGE and errors.random_errors < totals.system.errors:
        message = (
            f"the first hypotheses have {totals.system.errors:,} errors, more than hypotheses drawn at "
            f"random ({errors.random_errors:,.0f})"
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
