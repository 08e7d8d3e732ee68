"""Print why a hypothesis won, and which lists changed most."""

from __future__ import annotations

from collections.abc import Sequence

from rescorer.cli.render.evaluation.alignments import legend, render_alignment, render_change
from rescorer.cli.render.tables import FoldingTable, make_console, print_out
from rescorer.conversation import Generated
from rescorer.errors import pluralise
from rescorer.evaluation.comparison.analysis import AlignedList
from rescorer.evaluation.comparison.explanation import Candidate, Explanation
from rescorer.evaluation.error_analysis.aligned_text import Aligner, align_tokens
from rescorer.evaluation.figures import format_size
from rescorer.score_combination import weights_by_component

N_FEATURES = 20
"""Number of the features of a reranker that are printed."""


def print_changes(shown: Sequence[Explanation], n_changed: int, n_lists: int) -> None:
    """Print a row per list: errors, rank, and the winner's lead over the first pass by component."""
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
    """Print the weighted components of the best hypotheses, the winner's lead, and the aligned texts."""
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
    if generated := [one for one in _candidates(found) if one.generated is not None]:
        lines = (f"  {_name(found, one)}: {_describe_generated(one.generated)}" for one in generated)
        print_out("generated hypotheses", *lines, "")
    if with_phrases := [candidate for candidate in _candidates(found) if candidate.phrases]:
        lines = (f"  {_name(found, one)}: {', '.join(one.phrases)}" for one in with_phrases)
        print_out("phrases with a credit", *lines, "")
    for component in found.winner.features:
        print_out(_make_feature_table(found, component), "")
    width = make_console().width
    if found.reference is None:
        print_out(*render_change(align_tokens(found.first_pass.words, found.winner.words), width))
        return
    before, after = (
        aligner.align(found.reference, candidate.words) for candidate in (found.first_pass, found.winner)
    )
    print_out(legend(), *render_alignment(AlignedList(found.id, before, after), width))


def _make_feature_table(found: Explanation, component: str) -> FoldingTable:
    """The features that add most to the winner's lead, with their values in the hypotheses compared."""
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
        cells = [_format_value(winner[name].value)]
        for (_, other), lead in zip(others, leads[name], strict=True):
            cells += [_format_value(other.features[component][name].value), f"{lead:+.2f}"]
        table.add_row(name, *cells)
    if rest := order[n_shown:]:
        sums = [sum(leads[name][k] for name in rest) for k in range(len(others))]
        table.add_row(f"{len(rest)} more", "", *(text for lead in sums for text in ("", f"{lead:+.2f}")))
    return table


def _format_value(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _candidates(found: Explanation) -> list[Candidate]:
    """The best hypotheses, then the first pass and the oracle unless they are among them."""
    shown = list(found.best)
    for other in (found.first_pass, found.oracle):
        if other is not None and all(other.first_pass_rank != one.first_pass_rank for one in shown):
            shown.append(other)
    return shown


def _name(found: Explanation, candidate: Candidate) -> str:
    """The rank of a hypothesis, and what it is."""
    rank = str(candidate.rank) if candidate.rank else "not ranked"
    is_own = candidate.generated is None
    name = f"{rank}, before {candidate.first_pass_rank}" if is_own else f"{rank}, generated"
    is_oracle = found.oracle is not None and candidate.first_pass_rank == found.oracle.first_pass_rank
    return name + ", oracle" * is_oracle


def _describe_generated(made: Generated | None) -> str:
    if made is None:
        return ""
    parts = " and ".join(f"{part.phrase!r} for {part.heard!r}" for part in made.parts)
    return f"{parts} of hypothesis {made.source + 1}"


def _format_scores(values: Sequence[float]) -> list[str]:
    return [f"{value:.2f}" for value in values]


def _summarise(found: Explanation) -> str:
    """What rescoring changed, and which component decided."""
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
