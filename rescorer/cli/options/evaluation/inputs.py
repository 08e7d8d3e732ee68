"""Options of the commands that evaluate lists: how these are read, ranked, selected and counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from rescorer.cli.options.candidates import CandidateOptions
from rescorer.cli.options.evaluation.scoring import (
    CountingOptions,
    ListReader,
    ReferenceOption,
    make_list_reader,
)
from rescorer.cli.options.lists import ListInputOptions
from rescorer.cli.options.phrases import PhraseOptions
from rescorer.cli.options.selection import SelectionOptions
from rescorer.cli.options.text import TextOptions
from rescorer.cli.options.weights import FirstPassOption, WeightOptions, check_streams, parse_first_pass
from rescorer.errors import InvalidList
from rescorer.evaluation.comparison.scored_lists import ScoredList, score_lists
from rescorer.pipeline import Rescorer
from rescorer.scoring.ranker import ListRanker
from rescorer.types import NBestList, Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedTextOptions:
    """How texts are read, normalised and counted that no models score."""

    text: TextOptions
    lists: ListInputOptions
    counting: CountingOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedListOptions:
    """Lists with references, and the weights that rank them."""

    reference: ReferenceOption = None
    text: TextOptions
    lists: ListInputOptions
    weights: WeightOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationOptions:
    """What ``rescorer evaluate`` and ``rescorer report`` need in order to evaluate files."""

    reference: ReferenceOption = None
    bundle: Annotated[
        Path | None,
        typer.Option(
            "--bundle",
            "-b",
            help="Model bundle to re-rank with: adds rows for each of its models, for their mixture, for "
            "minimum Bayes risk (MBR), and for the word weight without models.",
        ),
    ] = None
    tune: Annotated[
        bool,
        typer.Option(
            "--tune", help="With --bundle: add rows with weights tuned on other folds, as by `rescorer tune`."
        ),
    ] = False
    first_pass: FirstPassOption = None
    text: TextOptions
    lists: ListInputOptions
    weights: WeightOptions
    selection: SelectionOptions
    counting: CountingOptions
    phrases: PhraseOptions
    candidates: CandidateOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedListOptions:
    """What commands need in order to rank lists under one set of weights and to count their errors."""

    reference: ReferenceOption = None
    first_pass: FirstPassOption = None
    text: TextOptions
    lists: ListInputOptions
    weights: WeightOptions
    counting: CountingOptions

    def make_reader(self, *, warn_of_markup: bool = True) -> ListReader:
        """Build a function that reads the lists of inputs; see ``make_list_reader``."""
        return make_list_reader(self.reference, self.lists, warn_of_markup=warn_of_markup)

    def parse_first_pass(self) -> Weights | None:
        """The recogniser's own weights; None for the order of the lists."""
        return parse_first_pass(self.first_pass)

    def check_streams(self, lists: Sequence[NBestList], weights: Weights, source: str) -> None:
        """Raise ConfigError if the lists lack a stream of the weights, of the first pass or of an option."""
        for some in (weights, self.parse_first_pass()):
            check_streams(lists, some, self.lists, source)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredListOptions(RankedListOptions):
    """What commands need in order to score lists by the models of a bundle and to count their errors."""

    selection: SelectionOptions
    phrases: PhraseOptions
    candidates: CandidateOptions

    def apply(self, ranker: ListRanker) -> None:
        """Let a ranker compare texts, expect phrases and generate hypotheses; see the ``apply`` of each."""
        self.text.apply(ranker)
        self.phrases.apply(ranker)
        self.candidates.apply(ranker)

    def score(
        self, rescorer: Rescorer, lists: Sequence[NBestList], weights: Weights
    ) -> tuple[list[ScoredList], list[InvalidList]]:
        """Score lists; see ``score_lists``."""
        return score_lists(
            rescorer,
            lists,
            weights,
            self.parse_first_pass(),
            self.counting.settings(),
            self.selection.selection(),
            generate=self.candidates.generate,
        )
