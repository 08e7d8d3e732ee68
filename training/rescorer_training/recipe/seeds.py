"""Rows of a report that summarise others: means over seeds, and comparisons with a base."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from rescorer_training.recipe.report import Comparison, MeasuredModel


def add_means(rows: Sequence[MeasuredModel], groups: Mapping[str, str]) -> list[MeasuredModel]:
    """Add a row with the mean and the range over seeds after the rows of each group.

    Args:
        groups: for each network, the name of its group, or an empty string.
    """
    complete = []
    for group, members in groupby(rows, lambda row: groups.get(row.name, "")):
        of_group = list(members)
        complete += of_group
        if group:
            complete.append(_mean_row(group, of_group))
    return complete


def _mean_row(name: str, rows: Sequence[MeasuredModel]) -> MeasuredModel:
    return MeasuredModel(
        name=name,
        perplexity=_means(row.perplexity for row in rows),
        with_ngram=_means(row.with_ngram for row in rows),
        network_share=_mean([row.network_share or 0.0 for row in rows]),
        n_parameters=rows[0].n_parameters,
        minutes=_mean([row.minutes or 0.0 for row in rows]),
        words_per_s=_mean([row.words_per_s or 0.0 for row in rows]),
        note=f"mean of {len(rows)} seeds",
        members=tuple(row.name for row in rows),
    )


def _means(perplexities: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Mean of each text's perplexities."""
    of_seeds = list(perplexities)
    return {text: _mean([of_seed[text] for of_seed in of_seeds]) for text in of_seeds[0]}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def compare(rows: Sequence[MeasuredModel], bases: Mapping[str, str]) -> tuple[Comparison, ...]:
    """Compare the perplexities of models with those of their bases, seed by seed where both have as many.

    Args:
        bases: for each model, the one to compare it with; both may be groups of seeds.
    """
    by_name = {row.name: row for row in rows}
    comparisons = []
    for name, base in bases.items():
        members, others = by_name[name].members or (name,), by_name[base].members or (base,)
        if len(members) != len(others):
            members, others = (name,), (base,)
        pairs = [(by_name[a].perplexity, by_name[b].perplexity) for a, b in zip(members, others, strict=True)]
        relative = {text: [mine[text] / other[text] - 1 for mine, other in pairs] for text in pairs[0][0]}
        comparisons.append(Comparison(name, base, {text: tuple(values) for text, values in relative.items()}))
    return tuple(comparisons)
