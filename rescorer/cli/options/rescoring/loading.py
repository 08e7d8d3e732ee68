"""Options for the answers of ``rescorer rescore`` and for the machine, and what loads its models."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from rescorer.cli.options.candidates import CandidateOptions
from rescorer.cli.options.lists import ListInputOptions
from rescorer.cli.options.models import DeviceOption, DtypeOption
from rescorer.cli.options.phrases import PhraseOptions
from rescorer.cli.options.rescoring.decision import DecisionOptions
from rescorer.cli.options.rescoring.sessions import SessionOptions
from rescorer.cli.options.selection import SelectionOptions
from rescorer.cli.options.text import TextOptions
from rescorer.cli.options.weights import WeightOptions
from rescorer.files.rescoring import LocalRescorer
from rescorer.formats.rescored import get_renderer
from rescorer.options import RescoreOptions
from rescorer.pipeline import MAX_BATCH_WORDS, Rescorer
from rescorer.scoring.ranker import ListRanker


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerOptions:
    """How lists are read, and what decides their answers besides the models."""

    text: TextOptions
    lists: ListInputOptions
    weights: WeightOptions
    selection: SelectionOptions
    decision: DecisionOptions
    session: SessionOptions
    phrases: PhraseOptions
    candidates: CandidateOptions

    def apply(self, ranker: ListRanker) -> None:
        """Let a ranker compare texts, expect phrases and generate hypotheses; see the ``apply`` of each."""
        self.text.apply(ranker)
        self.phrases.apply(ranker)
        self.candidates.apply(ranker)


@dataclass(frozen=True, slots=True)
class MachineOptions:
    """Where the models run, how much they get at a time, and in how many processes."""

    device: DeviceOption = "cpu"
    dtype: DtypeOption = "float32"
    batch_words: Annotated[int, typer.Option(help="Number of words per batch.")] = MAX_BATCH_WORDS
    processes: Annotated[
        int,
        typer.Option(
            min=0,
            help="Number of scoring processes, each with its own copy of the models; 0: one per core. Pays "
            "off for long files only, since a process takes seconds to start.",
        ),
    ] = 1
    threads: Annotated[
        int, typer.Option(min=0, help="CPU threads of each process; 0: divide the cores among them.")
    ] = 0


@dataclass(frozen=True)
class RescorerLoader:
    """Loads the models in a scoring process."""

    bundle: Path
    machine: MachineOptions
    options: RescoreOptions
    applied: AnswerOptions | None = None
    """Options with the words by which texts are compared, phrases and a dictionary; None for the defaults."""
    to: str = "jsonl"

    def __call__(self) -> LocalRescorer:
        """Load the models; raises BundleError and ConfigError like ``Rescorer.load``."""
        machine = self.machine
        rescorer = Rescorer.load(self.bundle, machine.device, machine.batch_words, machine.dtype)
        if self.applied is not None:
            self.applied.apply(rescorer.ranker)
        return LocalRescorer(rescorer, self.options, get_renderer(self.to))
