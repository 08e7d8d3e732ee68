"""Generated hypotheses: phrases that are expected in a list, in place of spans that sound like them."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rescorer.extensions.phrases import expected_phrases
from rescorer.options import RescoreOptions
from rescorer.score_combination import GENERATED, SOUND_MATCH
from rescorer.scoring.components import AskedBy, Columns, Component, Growth, Outline, PreparedList, ScoredList
from rescorer.types import Weights

if TYPE_CHECKING:
    from rescorer.candidates.generation import Generator


class Generation(Component):
    """Adds hypotheses, and the numbers that only generated ones have: replaced spans, and what sound says.

    Lists may have come with generated hypotheses, which have these numbers too.
    """

    name = "generation"
    asked_by = AskedBy(options=("generate",), hypotheses=("generated",))
    columns = (GENERATED, SOUND_MATCH)
    dictionary: Path | None = None
    """File of pronunciations; None: the installed dictionary."""

    @cached_property
    def generator(self) -> Generator:
        """What makes hypotheses from phrases; raises as ``load_pronouncer`` does."""
        from rescorer.candidates.generation import Generator
        from rescorer.candidates.pronunciation import load_pronouncer

        return Generator(self.normalise, load_pronouncer(self.dictionary))

    def bind(self, options: RescoreOptions, weights: Weights) -> Component:
        return _Generating(self)

    def add_columns(self, columns: Columns, scored: ScoredList) -> None:
        made = [hypothesis.generated for hypothesis in scored.prepared.nbest.hypotheses]
        if made[-1] is None:  # generated ones are the last
            return
        columns[GENERATED] = np.array([0.0 if one is None else float(len(one.parts)) for one in made])
        columns[SOUND_MATCH] = np.array([0.0 if one is None else one.sound_match for one in made])

    def growth(self, outline: Outline) -> Growth | None:
        if not outline.options.generate:
            return None
        from rescorer.candidates.generation import DEFAULT, MAX_PHRASE_CHARS, MAX_REPLACED

        sources = outline.nbest.hypotheses[: DEFAULT.top]
        longest = max((source.text for source in sources), key=len, default="")
        # the phrases in its text, in its fields with times, and in what says how it was made
        phrase_bytes = 64 + 12 * MAX_PHRASE_CHARS + 64 * (MAX_PHRASE_CHARS // 2)
        source_bytes = max((source.ByteSize() for source in sources), default=0)
        return Growth(
            DEFAULT.max_new + DEFAULT.max_combined,
            MAX_REPLACED * phrase_bytes + 2 * source_bytes,
            f"{longest} {'x ' * (MAX_REPLACED * MAX_PHRASE_CHARS // 2)}",
        )


class _Generating(Generation):
    """The component of a request that asks for hypotheses."""

    def __init__(self, component: Generation) -> None:
        super().__init__(component.bundle, component.normalise)
        self._component = component

    def steps_to_extend(self, prepared: PreparedList) -> int:
        phrases = expected_phrases(prepared)
        return self._component.generator.estimate_steps(prepared.nbest, phrases) if phrases else 0

    def extend(self, prepared: PreparedList) -> PreparedList:
        phrases = expected_phrases(prepared)
        if not phrases:
            return prepared
        nbest = self._component.generator.extend(prepared.nbest, phrases)
        new = tuple(self.normalise(made.text) for made in nbest.hypotheses[len(prepared.words) :])
        return replace(prepared, nbest=nbest, words=prepared.words + new)
