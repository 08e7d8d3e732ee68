"""Analyse errors: align texts, count confusions and changes, divide error rates, explain rankings.

``analyse_errors`` compares the choices of a system with those of the first pass, over all lists.
``explain_list`` shows how much each component contributes to the totals of one list.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product, zip_longest
from typing import Any, Literal, NamedTuple

import numpy as np
from rapidfuzz.distance import Levenshtein

from rescorer.evaluation.error_rate import (
    GAP_COST,
    SUBSTITUTION_COST,
    CountingSettings,
    Method,
    WordErrors,
    trace_alignment,
)
from rescorer.evaluation.list_errors import to_percent
from rescorer.evaluation.scored_lists import MeasuredList, order_by_decision
from rescorer.evaluation.systems import Comparison, Row
from rescorer.extensions import Phrases, used_rerankers
from rescorer.formats.fields import generated_record
from rescorer.phrases import PhraseMatch
from rescorer.pipeline import Rescorer
from rescorer.progress import advance_over
from rescorer.reranking.reranker import Reranker
from rescorer.trie import Words
from rescorer.types import ErrorUnit, Generated, NBestList, Weights
from rescorer.weights import get_component, totals, weights_by_component

PairKind = Literal["correct", "substitution", "deletion", "insertion"]
Tokens = tuple[str, ...]


class AlignedPair(NamedTuple):
    """A reference word and the hypothesis word that is aligned with it."""

    reference: str | None
    """None for an insertion."""
    hypothesis: str | None
    """None for a deletion."""

    @property
    def kind(self) -> PairKind:
        if self.reference is None:
            return "insertion"
        if self.hypothesis is None:
            return "deletion"
        return "correct" if self.reference == self.hypothesis else "substitution"


Alignment = tuple[AlignedPair, ...]


def align_tokens(reference: Tokens, hypothesis: Tokens, method: Method = "levenshtein") -> Alignment:
    """Align two texts so that the alignment has the errors that ``method`` counts; see
    ``CountingSettings``."""
    if method == "sclite":
        return tuple(
            AlignedPair(None if i is None else reference[i], None if j is None else hypothesis[j])
            for i, j in trace_alignment(reference, hypothesis)
        )
    pairs: list[AlignedPair] = []
    for block in Levenshtein.opcodes(reference, hypothesis):
        expected = reference[block.src_start : block.src_end]
        heard = hypothesis[block.dest_start : block.dest_end]
        if block.tag == "delete":
            pairs += (AlignedPair(word, None) for word in expected)
        elif block.tag == "insert":
            pairs += (AlignedPair(None, word) for word in heard)
        else:
            pairs += map(AlignedPair, expected, heard)
    return tuple(pairs)


class Aligner:
    """Aligns hypotheses with references, by the method that counts their errors.

    If a text has alternatives, those readings of the two texts are aligned that match best. Marks of optional
    words and of fragments have no effect: such words are aligned like others.
    """

    def __init__(self, normalise: Callable[[str], Tokens], counting: CountingSettings) -> None:
        self._normalise, self._counting = normalise, counting

    @property
    def unit(self) -> ErrorUnit:
        """The unit that is aligned: words, characters or a mixture."""
        return self._counting.unit

    def align(self, reference: str, hypothesis: str | Tokens) -> Alignment:
        """Align a hypothesis, as written or as canonical words, with a reference as written.

        Raises:
            InvalidList: the alternatives are malformed.
        """
        said = self._read(reference)
        heard = self._read(hypothesis) if isinstance(hypothesis, str) else [self.tokens(hypothesis)]
        is_sclite = self._counting.method == "sclite"
        costs = (GAP_COST, GAP_COST, SUBSTITUTION_COST) if is_sclite else (1, 1, 1)
        closest = min(product(said, heard), key=lambda pair: Levenshtein.distance(*pair, weights=costs))
        return align_tokens(*closest, self._counting.method)

    def _read(self, text: str) -> list[Tokens]:
        """List all distinct readings of a text."""
        texts = (" ".join(reading) for reading in self._counting.expand(text))
        return list(dict.fromkeys(self.tokens(self._normalise(text)) for text in texts))

    def tokens(self, words: Tokens) -> Tokens:
        """Split canonical words into the unit that is counted."""
        return self._counting.split(words)


def reference_tokens(alignment: Sequence[AlignedPair]) -> Tokens:
    """Return the words of the reference in an alignment."""
    return tuple(pair.reference for pair in alignment if pair.reference is not None)


class Column(NamedTuple):
    """A reference word and the words that two systems recognised in its place."""

    reference: str | None
    """None if a system inserted a word here."""
    before: str | None
    """The word of the first system; None if it has no word here."""
    after: str | None
    """The word of the second system; None if it has no word here."""


def align_three(before: Alignment, after: Alignment) -> list[Column]:
    """Merge two alignments with the same reference into columns. Insertions of both systems at the same place
    share columns.

    Raises:
        ValueError: the alignments follow different readings of the reference.
    """
    if reference_tokens(before) != reference_tokens(after):
        raise ValueError("the alignments follow different readings of the reference")
    columns: list[Column] = []
    for (inserted_before, pair_before), (inserted_after, pair_after) in zip(
        _split_insertions(before), _split_insertions(after), strict=True
    ):
        columns += (Column(None, *words) for words in zip_longest(inserted_before, inserted_after))
        if pair_before is not None and pair_after is not None:
            columns.append(Column(pair_before[0], pair_before[1], pair_after[1]))
    return columns


_Place = tuple[list[str | None], tuple[str, str | None] | None]


def _split_insertions(alignment: Sequence[tuple[str | None, str | None]]) -> list[_Place]:
    """Split an alignment into an item per reference word: the words inserted before it, and its pair of
    words.

    The last item has the words inserted at the end, and None.
    """
    places: list[_Place] = []
    inserted: list[str | None] = []
    for reference, hypothesis in alignment:
        if reference is None:
            inserted.append(hypothesis)
        else:
            places.append((inserted, (reference, hypothesis)))
            inserted = []
    return [*places, (inserted, None)]


@dataclass(frozen=True, slots=True)
class Confusions:
    """Numbers of errors by word."""

    substitutions: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Number of times, by the reference word and the word that was recognised instead of it."""
    deletions: Counter[str] = field(default_factory=Counter)
    insertions: Counter[str] = field(default_factory=Counter)


def count_confusions(alignments: Iterable[Alignment]) -> Confusions:
    """Count the errors of aligned texts by their words."""
    found = Confusions()
    for alignment in alignments:
        for reference, hypothesis in alignment:
            if reference is None:
                found.insertions[hypothesis or ""] += 1
            elif hypothesis is None:
                found.deletions[reference] += 1
            elif reference != hypothesis:
                found.substitutions[reference, hypothesis] += 1
    return found


@dataclass(frozen=True, slots=True)
class Changes:
    """Numbers of words that became right or wrong between two systems, by word."""

    fixed: Counter[str] = field(default_factory=Counter)
    """Reference words that were wrong before and are right after."""
    broken: Counter[str] = field(default_factory=Counter)
    """Reference words that were right before and are wrong after."""
    insertions_removed: Counter[str] = field(default_factory=Counter)
    insertions_added: Counter[str] = field(default_factory=Counter)


def count_changes(pairs: Iterable[tuple[Alignment, Alignment]]) -> Changes:
    """Count the changes between two alignments of each text: one before and one after rescoring.

    If a reference has alternatives and the two alignments follow different readings, only words that occur in
    both readings are compared.
    """
    changes = Changes()
    for before, after in pairs:
        right_before, right_after = _find_right_words(before), _find_right_words(after)
        for key, was_right in right_before.items():  # in the order of the text, unlike a set of keys
            is_right = right_after.get(key, was_right)
            if is_right != was_right:
                word, _ = key
                (changes.fixed if is_right else changes.broken)[word] += 1
        inserted_before, inserted_after = _count_insertions(before), _count_insertions(after)
        changes.insertions_removed.update(inserted_before - inserted_after)
        changes.insertions_added.update(inserted_after - inserted_before)
    return changes


def _find_right_words(alignment: Alignment) -> dict[tuple[str, int], bool]:
    """Tell for each reference word whether it is right. The key is the word, and the number of its earlier
    occurrences in the text."""
    seen: Counter[str] = Counter()
    is_right: dict[tuple[str, int], bool] = {}
    for pair in alignment:
        if pair.reference is not None:
            is_right[pair.reference, seen[pair.reference]] = pair.kind == "correct"
            seen[pair.reference] += 1
    return is_right


def _count_insertions(alignment: Alignment) -> Counter[str]:
    return Counter(pair.hypothesis for pair in alignment if pair.reference is None and pair.hypothesis)


FREQUENCY_LIMITS = (1, 3, 10, 30, 100, 300, 1000)
LENGTH_LIMITS = (5, 10, 15, 20, 30, 50)
DEPTH_LIMITS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
"""Largest values of the ranges into which lists are divided by a number; the last range has no limit."""


@dataclass(frozen=True, slots=True)
class Part:
    """The errors of some words, or of some lists, before and after rescoring."""

    name: str
    items: int
    """Number of reference words if words were divided; number of lists if lists were."""
    reference_words: int
    errors_before: int
    errors_after: int

    def rate(self, errors: int) -> float | None:
        """Errors per reference word; None without reference words."""
        return errors / self.reference_words if self.reference_words else None

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data; rates in percent."""
        rates = {name: self.rate(getattr(self, f"errors_{name}")) for name in ("before", "after")}
        return asdict(self) | {f"rate_{name}": to_percent(rate) for name, rate in rates.items()}


def name_range(value: int, limits: Sequence[int]) -> str:
    """Name the range in which a number lies.

    >>> name_range(1, (1, 5)), name_range(3, (1, 5)), name_range(9, (1, 5)), name_range(2, (5, 9))
    ('1', '2–5', '6+', 'up to 5')
    """
    index = bisect_left(limits, value)
    if index == 0:
        return str(limits[0]) if limits[0] == 1 else f"up to {limits[0]}"
    low = limits[index - 1] + 1
    if index == len(limits):
        return f"{low}+"
    return str(low) if low == limits[index] else f"{low}–{limits[index]}"


def divide_words(
    pairs: Sequence[tuple[Alignment, Alignment]], name: Callable[[str], tuple[int, str]]
) -> list[Part]:
    """Divide reference words into parts, and count those that are wrong before and after rescoring.

    A word is wrong if it is substituted or deleted. Insertions belong to no reference word and do not count.

    Args:
        pairs: the alignments of each text before and after.
        name: returns the part to which a reference word belongs: a number to sort parts by, and the part's
            name.
    """
    words: Counter[tuple[int, str]] = Counter()
    wrong: tuple[Counter[tuple[int, str]], ...] = (Counter(), Counter())
    for pair in pairs:
        words.update(name(word) for word, _ in pair[0] if word is not None)
        for counts, alignment in zip(wrong, pair, strict=True):
            counts.update(name(word) for word, heard in alignment if word is not None and word != heard)
    return [Part(key[1], words[key], words[key], wrong[0][key], wrong[1][key]) for key in sorted(words)]


def divide_by_frequency(pairs: Sequence[tuple[Alignment, Alignment]]) -> list[Part]:
    """Divide reference words into parts by how often they occur in the references."""
    frequency = Counter(word for before, _ in pairs for word, _ in before if word is not None)

    def name(word: str) -> tuple[int, str]:
        count = max(frequency[word], 1)  # 0 if the word is only in the second alignment's reading
        return bisect_left(FREQUENCY_LIMITS, count), name_range(count, FREQUENCY_LIMITS)

    return divide_words(pairs, name)


def divide_by_known(pairs: Sequence[tuple[Alignment, Alignment]], unknown: Collection[str]) -> list[Part]:
    """Divide reference words into those that the language models know, and the others."""
    return divide_words(pairs, lambda word: (1, "unknown") if word in unknown else (0, "known"))


def find_unknown_words(
    texts: Iterable[str],
    unknown: Collection[str],
    read: Callable[[str], Sequence[str]],
    counted: Callable[[str], Sequence[str]],
) -> set[str]:
    """Find the words of texts, in the form in which errors are counted, that language models do not know.

    Models may read a token in another form than that in which errors are counted: for example ``$5`` as
    ``5``.

    Args:
        unknown: words that the models read and do not know.
        read: converts text to the words that models read.
        counted: converts text to the words in which errors are counted.
    """
    found = set[str]()
    for token in {token for text in texts for token in text.split()}:
        words, read_words = counted(token), read(token)
        if len(words) == len(read_words):
            found.update(
                word for word, known_as in zip(words, read_words, strict=True) if known_as in unknown
            )
        else:
            found.update(word for word in words if any(known_as in unknown for known_as in read(word)))
    return found


def divide_lists(lists: Iterable[tuple[int, int, int, int]], limits: Sequence[int]) -> list[Part]:
    """Divide lists into ranges of a property, such as the length, and sum the errors of each part.

    Args:
        lists: for each list, the property, the number of reference words, and the errors before and after.
    """
    parts: dict[int, Part] = {}
    for value, words, before, after in lists:
        index = bisect_left(limits, value)
        part = parts.get(index, Part(name_range(value, limits), 0, 0, 0, 0))
        sums = part.items + 1, part.reference_words + words, part.errors_before + before
        parts[index] = Part(part.name, *sums, part.errors_after + after)
    return [parts[index] for index in sorted(parts)]


def choose_depths(longest: int) -> list[int]:
    """List the depths 1, 2, 5, 10, 20, 50, … that are below the length of the longest list, then that length.

    >>> choose_depths(20), choose_depths(37)
    ([1, 2, 5, 10, 20], [1, 2, 5, 10, 20, 37])
    """
    steps = (factor * 10**power for power in range(len(str(longest))) for factor in (1, 2, 5))
    return [depth for depth in steps if depth < longest] + [longest] * (longest > 0)


def oracle_by_depth(lists: Iterable[Sequence[WordErrors]]) -> dict[int, WordErrors]:
    """Sum the errors of the best of the first n hypotheses over the lists, for several depths n.

    Args:
        lists: the errors of the hypotheses of each list, in the order of the first pass.
    """
    lists = list(lists)
    sums: dict[int, WordErrors] = {}
    for depth in choose_depths(max(map(len, lists), default=0)):
        best = (min(counts[:depth], key=lambda count: count.errors) for counts in lists)
        sums[depth] = sum(best, WordErrors.zero())
    return sums


CHANGES = ("fixed", "broken", "insertions_removed", "insertions_added")
TOP = 20
"""Number of words that each table of words in the JSON data has at most."""


@dataclass(frozen=True, slots=True)
class AlignedList:
    """The texts that the first pass and a system chose for a list, aligned with its reference."""

    id: str
    before: Alignment
    after: Alignment
    is_generated: bool = False
    """Whether the system chose a generated hypothesis."""

    @property
    def has_errors(self) -> bool:
        return any(pair.kind != "correct" for pair in (*self.before, *self.after))

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data: pairs of a reference word and a recognised word, null for a gap."""
        return {
            "id": self.id,
            "first_pass": [list(pair) for pair in self.before],
            "rescored": [list(pair) for pair in self.after],
            **({"generated": True} if self.is_generated else {}),
        }


@dataclass(frozen=True, slots=True)
class ErrorAnalysis:
    """The errors of a system, and its differences from the first pass."""

    system: str
    confusions: Confusions
    changes: Changes
    parts: dict[str, list[Part]]
    """Parts into which words or lists were divided, by the property that divides them, such as
    ``frequency``."""

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data, with the most frequent words of each kind; rates are in percent."""
        confusions, changes = self.confusions, self.changes
        pairs = confusions.substitutions.most_common(TOP)
        return {
            "system": self.system,
            "substitutions": [{"reference": a, "hypothesis": b, "count": n} for (a, b), n in pairs],
            **{name: _list_words(getattr(confusions, name)) for name in ("deletions", "insertions")},
            **{name: _list_words(getattr(changes, name)) for name in CHANGES},
            "words_fixed": changes.fixed.total(),
            "words_broken": changes.broken.total(),
            "parts": {name: [part.to_dict() for part in parts] for name, parts in self.parts.items()},
        }


def align_rows(
    scored: Sequence[MeasuredList], first_pass: Row, row: Row, aligner: Aligner
) -> Iterator[AlignedList]:
    """For each list, align the texts that the first pass and a row chose with the reference."""
    winners = zip(first_pass.winners.tolist(), row.winners.tolist(), strict=True)
    shown = advance_over(scored, f"aligning {row.name}", "lists")
    for item, (first, winner) in zip(shown, winners, strict=True):
        texts = [hypothesis.text for hypothesis in item.nbest.hypotheses]
        before = aligner.align(item.reference, texts[first])
        after = before if winner == first else aligner.align(item.reference, texts[winner])
        is_generated = item.nbest.hypotheses[winner].generated is not None
        yield AlignedList(item.evaluated.id, before, after, is_generated)


def analyse_errors(
    comparison: Comparison, row: Row, aligner: Aligner, unknown: Collection[str] | None = None
) -> ErrorAnalysis:
    """Analyse the errors of a row, and its differences from the first pass.

    Args:
        aligner: aligns texts by the method that counted their errors.
        unknown: words that the language models do not know; None if that cannot be known.
    """
    aligned = list(align_rows(comparison.scored, comparison.first_pass, row, aligner))
    pairs = [(item.before, item.after) for item in aligned]
    parts = {"frequency": divide_by_frequency(pairs)}
    if unknown is not None and aligner.unit == "word":  # models know words, not parts of them
        parts["language models"] = divide_by_known(pairs, unknown)
    parts["reference length"] = _divide(
        comparison, row, lambda item, _: item.evaluated.oracle.reference_words, LENGTH_LIMITS
    )
    if not (row.winners == comparison.first_pass.winners).all():
        parts["rank of the winner"] = _divide(comparison, row, find_first_pass_rank, DEPTH_LIMITS)
    confusions = count_confusions(item.after for item in aligned)
    return ErrorAnalysis(row.name, confusions, count_changes(pairs), parts)


def find_oracle_by_depth(scored: Sequence[MeasuredList]) -> dict[int, WordErrors]:
    """Sum the errors of an oracle that may choose among the first n of each list, for several depths n.

    Hypotheses are in the order of the first pass, and generated ones do not take part.
    """
    lists = (item.recognised for item in scored)
    return oracle_by_depth([item.evaluated.hypotheses[i] for i in item.first_pass_order] for item in lists)


def find_first_pass_rank(scored: MeasuredList, winner: int) -> int:
    """Return the rank, from 1, that the first pass gave to a hypothesis.

    The rank of a generated hypothesis is that of the hypothesis that it was made from.
    """
    made = scored.nbest.hypotheses[winner].generated
    return scored.first_pass_order.index(winner if made is None else made.source) + 1


def _divide(
    comparison: Comparison, row: Row, value: Callable[[MeasuredList, int], int], limits: Sequence[int]
) -> list[Part]:
    winners = zip(comparison.first_pass.winners.tolist(), row.winners.tolist(), strict=True)
    lists: list[tuple[int, int, int, int]] = []
    for item, (first, winner) in zip(comparison.scored, winners, strict=True):
        before, after = item.evaluated.hypotheses[first], item.evaluated.hypotheses[winner]
        lists.append((value(item, winner), before.reference_words, before.errors, after.errors))
    return divide_lists(lists, limits)


def _list_words(words: Counter[str]) -> list[dict[str, Any]]:
    return [{"word": word, "count": count} for word, count in words.most_common(TOP)]


MERGED = "merged"
"""Name of the term by which a total rises because hypotheses with the same words were merged into one."""
INTERACTION = "interaction"
"""Name of the part of a reranker's score that no single feature explains, but several features together."""
N_SHOWN = 5
"""Number of the best hypotheses that an explanation shows."""


@dataclass(frozen=True, slots=True)
class FeaturePart:
    """A feature that a reranker reads, with its value for a hypothesis and its contribution to the total."""

    value: float | None
    """Value of the feature in its own unit; None for ``INTERACTION`` and encodings of words."""
    term: float
    """Amount by which the total would fall if the feature had its mean over the list."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A hypothesis with the contributions that add up to its total."""

    rank: int
    """Rank after rescoring, from 1; 0 if the hypothesis was dropped or merged into another one."""
    first_pass_rank: int
    """Rank in the first pass, from 1; generated hypotheses come after all others."""
    words: Words
    errors: int | None
    """None without a reference."""
    total: float
    components: Mapping[str, float]
    """Unweighted components whose weight is not 0."""
    terms: Mapping[str, float]
    """Weighted components, which add up to the total."""
    phrases: tuple[str, ...] = ()
    """The phrases that give the component ``phrases``, each with its slots in parentheses."""
    features: Mapping[str, Mapping[str, FeaturePart]] = field(default_factory=dict)
    """Features of each reranker, by the name of its component and of the feature. The terms of a reranker's
    features add up to the term of its component."""
    generated: Generated | None = None
    """Origin of a generated hypothesis; None if the recogniser made the hypothesis."""

    def to_dict(self) -> dict[str, Any]:
        features = {
            component: {name: asdict(part) for name, part in parts.items()}
            for component, parts in self.features.items()
        }
        return {
            "text": " ".join(self.words),
            "rank": self.rank or None,
            "first_pass_rank": self.first_pass_rank if self.generated is None else None,
            "errors": self.errors,
            "total": self.total,
            "components": dict(self.components),
            "weighted": dict(self.terms),
            **({"phrases": list(self.phrases)} if self.phrases else {}),
            **({} if self.generated is None else {"generated": generated_record(self.generated)}),
            **({"features": features} if features else {}),
        }


@dataclass(frozen=True, slots=True)
class Explanation:
    """The best hypotheses of a list, compared with the choices of the first pass and of the oracle."""

    id: str
    reference: str | None
    weights: Weights
    best: tuple[Candidate, ...]
    """The best hypotheses, in the order that the weights and their decision rule give."""
    first_pass: Candidate
    oracle: Candidate | None
    """The best-ranked of the hypotheses with the fewest errors; None without a reference."""

    @property
    def winner(self) -> Candidate:
        return self.best[0]

    @property
    def has_changed(self) -> bool:
        """Whether the winner differs from the choice of the first pass."""
        return self.winner.first_pass_rank != self.first_pass.first_pass_rank

    @property
    def errors_saved(self) -> int:
        """Errors of the first pass minus errors of the winner; 0 without a reference."""
        return (self.first_pass.errors or 0) - (self.winner.errors or 0)

    def lead_over(self, other: Candidate) -> dict[str, float]:
        """Return how much more each component adds to the total of the winner than to that of ``other``."""
        return {name: value - other.terms[name] for name, value in self.winner.terms.items()}

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data."""
        oracle = self.oracle
        return {
            "id": self.id,
            "reference": self.reference,
            "weights": weights_by_component(self.weights),
            "decision": self.weights.decision.kind,
            "best": [candidate.to_dict() for candidate in self.best],
            "first_pass": self.first_pass.to_dict(),
            "oracle": oracle and oracle.to_dict(),
            "lead_over_first_pass": self.lead_over(self.first_pass),
            "lead_over_oracle": oracle and self.lead_over(oracle),
        }


def explain_list(
    scored: MeasuredList,
    weights: Weights,
    rerankers: Sequence[Reranker] = (),
    encodings: Mapping[str, np.ndarray] | None = None,
    phrases: Sequence[Sequence[PhraseMatch]] = (),
    *,
    has_reference: bool = True,
) -> Explanation:
    """Explain the ranking of a list.

    Args:
        weights: weights and decision rule that rank the list.
        rerankers: the rerankers that the weights name.
        encodings: result of ``encode_words`` for the list; None if no reranker encodes words.
        phrases: phrases found in each hypothesis; empty if there are none.
        has_reference: whether the list has a reference; errors mean nothing without one.

    Raises:
        LimitExceeded: the list is too long for its decision rule.
    """
    order = order_by_decision(scored, weights)
    list_totals = scored.selection.order(scored.words, totals(scored.components, weights))[1]
    errors = [counts.errors for counts in scored.evaluated.hypotheses]
    ranks = {position: rank for rank, position in enumerate(order, 1)}
    by_name = weights_by_component(weights, scored.components)
    by_weight = {name: weight for name, weight in by_name.items() if weight}
    encodings = encodings or {}
    features = [
        _find_features(scored, reranker, weights, encodings.get(reranker.name)) for reranker in rerankers
    ]

    def candidate(position: int) -> Candidate:
        components = {name: float(get_component(scored.components, name)[position]) for name in by_weight}
        terms = {name: weight * components[name] for name, weight in by_weight.items()}
        total = float(list_totals[position])
        if not np.isfinite(total):  # dropped, or merged into another
            total = sum(terms.values())
        if scored.selection.merge:
            terms[MERGED] = total - sum(terms.values())
        return Candidate(
            ranks.get(position, 0),
            scored.first_pass_order.index(position) + 1,
            scored.words[position],
            errors[position] if has_reference else None,
            total,
            components,
            terms,
            _quote_phrases(scored.read[position], phrases[position] if phrases else ()),
            {
                reranker.component: parts[position]
                for reranker, parts in zip(rerankers, features, strict=True)
            },
            scored.nbest.hypotheses[position].generated,
        )

    oracle = min(order, key=errors.__getitem__) if has_reference else None
    return Explanation(
        scored.evaluated.id,
        scored.reference if has_reference else None,
        weights,
        tuple(map(candidate, order[:N_SHOWN])),
        candidate(scored.first_pass_index),
        None if oracle is None else candidate(oracle),
    )


def explain_lists(
    rescorer: Rescorer, scored: Sequence[MeasuredList], weights: Weights, *, has_reference: bool = True
) -> list[Explanation]:
    """Explain the ranking of each list, with the phrases and encodings that ``explain_list`` needs.

    Scores of rerankers are not explained in lists that a model cannot read, where rerankers may not have run.
    """
    rerankers, component = used_rerankers(rescorer.bundle, weights), rescorer.ranker.component(Phrases)
    encodings = encode_words(rescorer, [item.nbest for item in scored], rerankers)
    phrases = (component.finder.find(item.nbest, item.read, component.expected) for item in scored)
    return [
        explain_list(
            item, weights, () if item.degradation else rerankers, encoded, found, has_reference=has_reference
        )
        for item, encoded, found in zip(scored, encodings, phrases, strict=True)
    ]


def _quote_phrases(words: Words, matches: Sequence[PhraseMatch]) -> tuple[str, ...]:
    """Quote each phrase as it stands in a hypothesis, with its slots in parentheses."""
    quoted = []
    for match in matches:
        phrase = " ".join(words[match.start : match.start + match.n_words])
        slots = ", ".join(share.slot for share in match.slots)
        quoted.append(f"{phrase} ({slots})" if slots else phrase)
    return tuple(quoted)


def encode_words(
    rescorer: Rescorer, lists: Sequence[NBestList], rerankers: Sequence[Reranker]
) -> list[dict[str, np.ndarray]]:
    """Compute the encodings that rerankers need: for each list, (H, K) float64 by the reranker's name."""
    by_list: list[dict[str, np.ndarray]] = [{} for _ in lists]
    for reranker in rerankers:
        if reranker.encoder is not None:
            for found, encoding in zip(by_list, rescorer.encode(lists, reranker.encoder), strict=True):
                found[reranker.name] = encoding
    return by_list


def _find_features(
    scored: MeasuredList, reranker: Reranker, weights: Weights, encoding: np.ndarray | None
) -> list[dict[str, FeaturePart]]:
    """Compute, for each hypothesis, the features by name and their contributions to the total."""
    inputs = scored.components, scored.read, scored.context
    values, weight = reranker.feature_values(*inputs).tolist(), weights.rerankers[reranker.name]
    x, encoding = reranker.inputs(*inputs), reranker.centre_encoding(encoding)
    parts = weight * reranker.contributions(x, encoding)
    rests = weight * scored.components[reranker.component] - parts.sum(axis=1)
    rows = []
    names = reranker.inputs_by_name
    for row, terms, rest in zip(values, parts.tolist(), rests.tolist(), strict=True):
        shown = row + [None] * (len(names) - len(row))  # an encoding has many numbers, of which none is shown
        found = {name: FeaturePart(*pair) for name, *pair in zip(names, shown, terms, strict=True)}
        if not reranker.ensemble.is_linear:
            found[INTERACTION] = FeaturePart(None, rest)
        rows.append(found)
    return rows


def sort_by_change(explanations: list[Explanation]) -> list[Explanation]:
    """Select explanations of lists whose winner rescoring changed, and sort them, the largest change first.

    The number of errors changed decides; among equal numbers, or without references, it is by how much the
    total of the winner exceeds that of the first pass's choice.
    """
    changed = [item for item in explanations if item.has_changed]
    return sorted(
        changed, key=lambda item: (-abs(item.errors_saved), item.first_pass.total - item.winner.total)
    )
