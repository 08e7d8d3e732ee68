"""The commands ``rescorer inspect`` and ``rescorer explain``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import typer
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from rescorer.cli.evaluate import LABELS, LEGEND, render_alignment, render_pair
from rescorer.errors import ConfigError, FormatError, did_you_mean, pluralise
from rescorer.evaluation.error_analysis import (
    AlignedList,
    Aligner,
    Candidate,
    Explanation,
    align_tokens,
    explain_lists,
    sort_by_change,
)
from rescorer.evaluation.inspection import MIN_LM_R, Inspection, inspect_lists
from rescorer.evaluation.list_errors import format_size
from rescorer.evaluation.list_statistics import ErrorStats, ModelStats, ModelTally
from rescorer.evaluation.word_statistics import TokenStats
from rescorer.pipeline import Rescorer
from rescorer.terminal.evaluation_options import RankedListOptions, ScoredListOptions, collect_lists
from rescorer.terminal.options import (
    BundleOption,
    DeviceOption,
    WeightOptions,
    argument,
    expand_options,
    option,
)
from rescorer.terminal.program import Rejections, print_json
from rescorer.terminal.tables import FoldingTable, make_console, make_text_grid, print_out
from rescorer.text import rate_name
from rescorer.weights import weights_by_component

N_FEATURES = 20
"""Maximum number of a reranker's features that are printed."""


def print_changes(shown: Sequence[Explanation], n_changed: int, n_lists: int) -> None:
    """Print a row per list: errors, the winner's rank in the first pass, and its lead from each component."""
    if shown:
        components = list(dict.fromkeys(name for found in shown for name in found.winner.terms))
        headings = ["errors", "before", "rank before", "lead", *components]
        table = FoldingTable("list", *headings)
        for found in shown:
            lead = found.lead_over(found.first_pass)
            winner = found.winner
            rank = winner.first_pass_rank if winner.generated is None else "generated"
            counts = (winner.errors, found.first_pass.errors, rank)
            numbers = ["-" if count is None else str(count) for count in counts]
            by_component = [lead.get(name, 0.0) for name in components]  # only some lists have phrases
            table.add_row(found.id, *numbers, *_format_scores([sum(lead.values()), *by_component]))
        print_out(table)
        print_out("lead: weighted score of the winner minus that of the first pass")
    print_out(f"{n_changed:,} of {pluralise(n_lists, 'list')} changed; {len(shown):,} shown")


def print_explanation(found: Explanation, aligner: Aligner) -> None:
    """Print the weighted components of a list's best hypotheses, the winner's lead, and aligned texts."""
    rule = found.weights.decision.kind.replace("_", " ")
    values = ", ".join(f"{name} {value:.4g}" for name, value in weights_by_component(found.weights).items())
    print_out(f"list {found.id}: {_summarise(found)}")
    print_out(f"weights {found.weights.name!r}, decision by {rule}: {values}", "")
    table = FoldingTable("weighted scores", "errors", "total", *found.winner.terms)
    for candidate in _candidates(found):
        errors = "-" if candidate.errors is None else str(candidate.errors)
        scores = _format_scores([candidate.total, *candidate.terms.values()])
        table.add_row(_name(found, candidate), errors, *scores)
    for name, other in (("first pass", found.first_pass), ("oracle", found.oracle)):
        if other is not None and other.first_pass_rank != found.winner.first_pass_rank:
            lead = found.lead_over(other)
            errors = "-" if other.errors is None else f"{(found.winner.errors or 0) - other.errors:+d}"
            scores = _format_scores([sum(lead.values()), *lead.values()])
            table.add_row(f"winner − {name}", errors, *scores)
    print_out(table, "")
    generated = []
    for one in _candidates(found):
        if (made := one.generated) is not None:
            parts = " and ".join(f"{part.phrase!r} for {part.heard!r}" for part in made.parts)
            generated.append(f"  {_name(found, one)}: {parts} of hypothesis {made.source + 1}")
    if generated:
        print_out("generated hypotheses", *generated, "")
    if with_phrases := [candidate for candidate in _candidates(found) if candidate.phrases]:
        lines = (f"  {_name(found, one)}: {', '.join(one.phrases)}" for one in with_phrases)
        print_out("phrases with a credit", *lines, "")
    for component in found.winner.features:
        print_out(_make_feature_table(found, component), "")
    width = make_console().width
    if found.reference is None:
        changed = align_tokens(found.first_pass.words, found.winner.words)
        print_out(*render_pair(changed, LABELS[1:], width))
        return
    before, after = (
        aligner.align(found.reference, candidate.words) for candidate in (found.first_pass, found.winner)
    )
    print_out(LEGEND, *render_alignment(AlignedList(found.id, before, after), width))


def _make_feature_table(found: Explanation, component: str) -> FoldingTable:
    """Make a table of a reranker's features that contribute most to the winner's lead.

    The winner is compared with the first pass and with the oracle. If it is both of these itself, it is
    compared with the second-best hypothesis.

    Args:
        component: name of the reranker's component.
    """
    others = [
        (name, other)
        for name, other in (("first pass", found.first_pass), ("oracle", found.oracle))
        if other is not None and other.first_pass_rank != found.winner.first_pass_rank
    ]
    others = others or [(f"rank {other.rank}", other) for other in found.best[1:2]]
    columns = [text for name, _ in others for text in (name, f"winner − {name}")]
    table = FoldingTable(f"features of {component}", "winner", *columns)
    winner = found.winner.features[component]
    leads = {
        name: [part.term - other.features[component][name].term for _, other in others]
        for name, part in winner.items()
    }
    order = sorted(winner, key=lambda name: -max(map(abs, leads[name]), default=abs(winner[name].term)))
    n_shown = min(N_FEATURES, sum(max(map(abs, leads[name]), default=1.0) >= 0.005 for name in order))
    for name in order[:n_shown]:
        values = [winner[name].value, *(other.features[component][name].value for _, other in others)]
        texts = ["" if value is None else f"{value:.4g}" for value in values]
        cells = texts[:1]
        for text, lead in zip(texts[1:], leads[name], strict=True):
            cells += [text, f"{lead:+.2f}"]
        table.add_row(name, *cells)
    if rest := order[n_shown:]:
        sums = [sum(leads[name][k] for name in rest) for k in range(len(others))]
        table.add_row(f"{len(rest)} more", "", *(text for lead in sums for text in ("", f"{lead:+.2f}")))
    return table


def _candidates(found: Explanation) -> list[Candidate]:
    """Return the best hypotheses, plus the first pass and the oracle if these are not among them."""
    shown = list(found.best)
    for other in (found.first_pass, found.oracle):
        if other is not None and all(other.first_pass_rank != one.first_pass_rank for one in shown):
            shown.append(other)
    return shown


def _name(found: Explanation, candidate: Candidate) -> str:
    """Name a candidate by its rank, first-pass rank and other properties, such as ``1, before 3, oracle``."""
    rank = str(candidate.rank) if candidate.rank else "not ranked"
    is_own = candidate.generated is None
    name = f"{rank}, before {candidate.first_pass_rank}" if is_own else f"{rank}, generated"
    is_oracle = found.oracle is not None and candidate.first_pass_rank == found.oracle.first_pass_rank
    return name + ", oracle" * is_oracle


def _format_scores(values: Sequence[float]) -> list[str]:
    return [f"{value:.2f}" for value in values]


def _summarise(found: Explanation) -> str:
    """Say whether rescoring changed the choice and, if it did, which component decided this."""
    if not found.has_changed:
        return "the first pass and rescoring choose the same hypothesis"
    lead = found.lead_over(found.first_pass)
    decisive = max(lead, key=lead.__getitem__)
    has_reference = found.reference is not None
    errors = f", errors {found.first_pass.errors} → {found.winner.errors}" if has_reference else ""
    made = found.winner.generated
    name = (
        f"hypothesis {found.winner.first_pass_rank} of the first pass" if made is None else "a generated one"
    )
    total, part = format_size(sum(lead.values())), format_size(lead[decisive])
    return f"{name} wins by {total}, of which {decisive} gives {part}{errors}"


MAX_EXAMPLES = 10


def render_inspections(inspections: Mapping[str, Inspection]) -> RenderableType:
    """Render the inspection of each file, below the name of the file."""
    parts: list[RenderableType] = []
    for name, inspection in inspections.items():
        tables: list[RenderableType] = [_overview(inspection)]
        if inspection.streams:
            tables += [Text(), _streams(inspection)]
        findings: list[tuple[str, Text]] = []
        for finding in inspection.findings:
            label = "WARNING" if finding.severity == "warning" else "note"
            findings.append((label, Text(finding.message)))
            if finding.advice:
                findings.append(("", Text(f"→ {finding.advice}")))
        parts += [Text(name, style="bold"), *(_indent(table) for table in tables), Text()]
        parts += [_indent(make_text_grid(findings)) if findings else Text("  Nothing looks wrong."), Text()]
    return Group(*parts)


def _indent(table: RenderableType) -> Padding:
    return Padding(table, (0, 0, 0, 2), expand=False)


def _overview(inspection: Inspection) -> RenderableType:
    lists, unknown = inspection.lists, inspection.words.unknown
    rows: dict[str, str | Text] = {
        "lists": f"{lists.lists:,}"
        + (f" examined of {inspection.n_read:,}" if inspection.n_read > lists.lists else "")
        + (f"; {lists.rejected:,} rejected" if lists.rejected else ""),
        "hypotheses": f"{lists.hypotheses:,}; the longest list has {lists.longest_list:,}",
        "words": f"{lists.words:,}",
        "duplicates": f"{lists.duplicates:,} as read, {lists.duplicates_normalised:,} once normalised",
        "empty hypotheses": f"{lists.empty:,} in {pluralise(lists.with_empty, 'list')}",
        "prefix sharing": f"{lists.prefix_sharing:.2f} words per distinct prefix",
    }
    for kind, tokens in inspection.words.uncovered.items():
        rows[f"{kind} tokens"] = _format_examples(tokens)
    if unknown:
        rate = unknown.reference_rate
        rows["unknown words"] = f"{100 * unknown.rate:.2f} %" + (
            "" if rate is None else f"; {100 * rate:.2f} % of the references"
        )
        if unknown.unknown.count:
            rows["most frequent"] = _format_examples(unknown.unknown)
    if inspection.errors:
        rows |= _error_rows(inspection.errors)
    if inspection.models:
        rows |= _model_rows(inspection.models)
    return make_text_grid(rows.items())


def _error_rows(errors: ErrorStats) -> dict[str, str]:
    values = errors.to_dict()
    keys = {"1-best": "wer", "oracle": "oracle_wer", "random": "random_wer", "worst": "worst_wer"}
    rates = ", ".join(
        f"{name} {'-' if values[key] is None else format(values[key], '.2f')}" for name, key in keys.items()
    )
    depth = values["depth_for_90_percent_of_oracle"]
    lists = pluralise(values["with_reference"], "list")
    first = pluralise(depth, "hypothesis gives", "hypotheses give")
    return {
        f"{rate_name(errors.unit)} %": f"{rates} ({lists} with references)",
        "depth": f"the first {first} 90 % of the oracle's gain",
    }


def _model_rows(models: ModelStats) -> dict[str, str | Text]:
    """Make rows about a bundle: its models, how similar streams are to its n-gram, the effect of weights."""
    weights = models.weights
    described = []
    for model in models.models:
        topics = f", {model.topics} topics" if model.topics else ""
        direction = "in pieces of words" if model.kind == "units" else model.direction
        licence = f", licence {model.licence}" if model.licence else ""
        described.append(f"{model.name} ({model.network or 'n-gram'}, {direction}{topics}{licence})")
    rows: dict[str, str | Text] = {"models": Text(", ".join(described))}
    correlations = []
    for name, correlation in models.correlations.items():
        low, high = correlation.units_per_nat
        units = f", {low:.3g} to {high:.3g} units per nat" if correlation.r >= MIN_LM_R else ""
        correlations.append(f"{name} r {correlation.r:+.2f}{units}")
    if correlations:
        rows["like the n-gram"] = Text("; ".join(correlations))
    if weights.lists:
        errors = f"{pluralise(weights.errors, 'error')}, the first pass {weights.first_errors:,}; "
        spreads = (
            f"models ± {_format_number(weights.model_spread)}, "
            f"streams ± {_format_number(weights.stream_spread)}"
        )
        rows[f"weights {weights.name}"] = (errors if weights.referenced else "") + spreads
    return rows


def _streams(inspection: Inspection) -> FoldingTable:
    """Make a table with a row per stream: its scores in nats, also as if read in other units; how often its
    best hypothesis is the first; and correlations."""
    sizes = ("min", "max", "spread", "per word", "if log10", "if log2")
    table = FoldingTable("stream", *sizes, "first best", "r with words", "r with errors")
    for stream in inspection.streams:
        values = stream.minimum, stream.maximum, stream.spread, stream.per_word
        in_other_units = stream.per_word_as("10"), stream.per_word_as("2")
        correlations = stream.length_correlation, stream.error_correlation
        table.add_row(
            stream.name,
            *(_format_number(value) for value in (*values, *in_other_units)),
            f"{100 * stream.first_is_best / stream.compared:.0f} %" if stream.compared else "-",
            *("-" if r is None else f"{r:+.2f}" for r in correlations),
        )
    return table


def _format_examples(tokens: TokenStats) -> Text:
    examples = ", ".join(f"{token} {count:,}" for token, count in tokens.examples[:MAX_EXAMPLES])
    return Text(f"{tokens.count:,} ({tokens.distinct:,} distinct): {examples}")


def _format_number(value: float) -> str:
    """Format a number in few characters, so that ten columns fit: only a small one has decimals."""
    return f"{value:,.2f}" if abs(value) < 100 else f"{value:,.0f}" if abs(value) < 1e9 else f"{value:.2g}"


SUSPICIOUS = 1
"""Exit code if something is probably wrong."""


@expand_options
def inspect(
    *,
    files: list[str] = argument("N-best lists.", "FILE..."),
    bundle: Path | None = option(
        None,
        "Model bundle to compare with: words that it does not know, its n-gram against the scores "
        "of the lists, and the effect of its weights.",
        "--bundle",
        "-b",
    ),
    options: RankedListOptions,
    device: DeviceOption = "cpu",
    examine_all: bool = option(False, "Examine all lists, not only a sample of many.", "--all"),
    as_json: bool = option(False, "Print JSON: a list `files`; rates in percent.", "--json"),
) -> None:
    """Report what lists contain and what looks wrong with them, before they are used.

    Example: rescorer inspect demo/lists.jsonl.gz --bundle models/starter/1 --weights pocketsphinx

    Several files are reported one by one; a folder of jobs is one. All lists are read; if a file has more
    than about 700,000 words of hypotheses, every second, fourth … list is examined. Exit code 1 means that
    something is probably wrong, or that some lists were rejected.
    """
    if bundle is None and options.weights != WeightOptions():
        raise ConfigError("--weights and --weight apply to a bundle: give --bundle")
    counting = options.counting.settings()
    read_lists = options.make_reader(warn_of_markup=False)  # a finding says it
    first_pass = options.parse_first_pass()
    rescorer = Rescorer.load(bundle, device) if bundle else None
    words = options.text.make_normaliser(rescorer.bundle if rescorer else None)
    rejected = {file: Rejections() for file in files}
    inspections: dict[str, Inspection] = {}
    for file in files:
        models = None
        if rescorer:
            models = ModelTally(rescorer, options.weights.resolve(rescorer.bundle.weights))
        inspections[file] = inspect_lists(
            read_lists(file),
            words,
            models=models,
            first_pass=first_pass,
            counting=counting,
            on_rejected=rejected[file].add,
            examine_all=examine_all,
        )
        rejected[file].report(rejected[file].see_json)
    if as_json:
        records = [
            {"file": file, **inspection.to_dict(), "rejected_lists": rejected[file].reasons}
            for file, inspection in inspections.items()
        ]
        print_json({"files": records})
    else:
        print_out(render_inspections(inspections))
    if any(inspection.suspicious or inspection.lists.rejected for inspection in inspections.values()):
        raise typer.Exit(SUSPICIOUS)


@expand_options
def explain(
    *,
    file: str = argument("N-best lists, before rescoring.", "FILE"),
    bundle: BundleOption,
    list_id: str | None = argument(
        "Id of a list; default: the lists that changed most.", "[ID]", default=None
    ),
    top: int = option(10, "Without ID: number of lists to show.", min=1),
    options: ScoredListOptions,
    device: DeviceOption = "cpu",
    as_json: bool = option(False, "Print a JSON list of explanations, with unweighted components.", "--json"),
) -> None:
    """Explain why a hypothesis won: what each score and language model contributed to its lead.

    Example: rescorer explain demo/lists.jsonl.gz demo-001 --bundle models/starter/1 --weights pocketsphinx

    Shows the best hypotheses of a list with their weighted components, the lead of the winner over the choice
    of the first pass and over the hypothesis with the fewest errors, and the aligned texts; of a reranker's
    score, what each of its features adds to it; the phrases that gave credits; and how a hypothesis was
    generated. Without an ID, it names the lists whose errors rescoring changed most, or whose totals did if
    there are no references.
    """
    rejected = Rejections()
    rescorer = Rescorer.load(bundle, device)
    options.apply(rescorer.ranker)
    weights = options.weights.resolve(rescorer.bundle.weights)
    lists = collect_lists(options.make_reader()(file), rejected)
    options.check_streams(lists, weights, file)
    chosen = [nbest for nbest in lists if list_id in (None, nbest.id)]
    if list_id is not None and not chosen:
        hint = did_you_mean(list_id, [nbest.id for nbest in lists])
        raise FormatError(f"no list has the id {list_id!r}{hint}", file=file)
    counting = options.counting.settings()
    explanations: list[Explanation] = []
    for has_reference in (True, False):
        part = [nbest for nbest in chosen if (nbest.reference is not None) == has_reference]
        counted = part if has_reference else [replace(nbest, reference="") for nbest in part]
        scored, errors = options.score(rescorer, counted, weights)
        rejected.extend(errors)
        explanations += explain_lists(rescorer, scored, weights, has_reference=has_reference)
    rejected.report()
    if not explanations:
        raise FormatError("no list could be explained", file=file)
    shown = explanations if list_id is not None else sort_by_change(explanations)[:top]
    if as_json:
        print_json([found.to_dict() for found in shown])
    elif list_id is None:
        print_changes(shown, sum(found.has_changed for found in explanations), len(explanations))
    else:
        aligner = Aligner(rescorer.ranker.text_normaliser.normalise, counting)
        for found in shown:
            print_explanation(found, aligner)
    rejected.end()
