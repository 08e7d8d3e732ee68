"""Make lists from text alone, in imitation of real lists with references.

A made list takes the pattern of a real list of about the same length: which hypotheses are right, wrong and
different at which words. The wrong words are drawn by ``confusions``, and the scores of the real list are
changed by as much as other words change them (``score_model``). So the length of lists, their numbers of
errors, how much their hypotheses have in common, and what the words do not explain in their scores, are those
of real lists.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rescorer.errors import ConfigError
from rescorer.text import Normaliser
from rescorer.types import Hypothesis, NBestList
from rescorer_training.lists.confusions import Confusions, Substitution
from rescorer_training.lists.context_model import ContextModel
from rescorer_training.lists.patterns import Pattern, Words, apply_pattern, find_pattern
from rescorer_training.lists.pronunciations import Pronunciations
from rescorer_training.lists.score_model import ScoreModel, describe
from rescorer_training.lists.texts import Sentence

METHOD = "text"
N_TEMPLATES = 5
"""A template is drawn from this number of real lists whose references are nearest in length."""
SCORE_DECIMALS = 4


@dataclass(frozen=True, slots=True)
class Template:
    """A real list."""

    source: NBestList
    hypotheses: tuple[Words, ...]
    pattern: Pattern
    facts: np.ndarray
    """Facts of its hypotheses; see ``score_model``."""
    scores: np.ndarray
    """(H, S) float64, in nats."""


class ListImitator:
    """Makes lists that resemble real ones."""

    def __init__(
        self,
        lists: Sequence[NBestList],
        normaliser: Normaliser,
        pronunciations: Pronunciations,
        counts: Mapping[str, int],
        model: ContextModel,
    ) -> None:
        """Learn from real lists.

        Args:
            counts: number of occurrences of words in texts.
            model: language model that stands for that of the recogniser.

        Raises:
            ConfigError: no list can be used, or lists have different streams.
        """
        self._model = model
        usable = [nbest for nbest in lists if nbest.reference and normaliser.normalise(nbest.reference)]
        if not usable:
            raise ConfigError("no list has a reference; lists to learn from need one")
        self.streams = tuple(usable[0].streams)
        different = next((nbest for nbest in usable if set(nbest.streams) != set(self.streams)), None)
        if different is not None:
            raise ConfigError(
                f"list {different.id!r} has the streams {sorted(different.streams)}, list {usable[0].id!r} "
                f"has {sorted(self.streams)}; learn from lists with the same streams"
            )
        self.templates = [self._template(nbest, normaliser) for nbest in usable]
        self._lengths = np.array([template.pattern.n_words for template in self.templates])
        self.score_model = ScoreModel.fit(
            [template.facts for template in self.templates], [template.scores for template in self.templates]
        )
        references = [normaliser.normalise(nbest.reference or "") for nbest in usable]
        substitutions, insertions = collect_errors(references, [t.pattern for t in self.templates])
        self.confusions = Confusions(pronunciations, counts, model, substitutions, insertions)

    def _template(self, nbest: NBestList, normaliser: Normaliser) -> Template:
        hypotheses = tuple(normaliser.normalise(hypothesis.text) for hypothesis in nbest.hypotheses)
        pattern = find_pattern(normaliser.normalise(nbest.reference or ""), hypotheses)
        scores = np.array([nbest.streams[name] for name in self.streams]).reshape(-1, len(hypotheses)).T
        facts = describe(hypotheses, pattern.errors(), self._model)
        return Template(nbest, hypotheses, pattern, facts, scores)

    @property
    def word_range(self) -> tuple[int, int]:
        """Least and largest number of words of the real references."""
        return int(self._lengths.min()), int(self._lengths.max())

    def make(self, sentence: Sentence) -> NBestList:
        """Make the list of a sentence; chance depends only on the sentence and the seed."""
        random = sentence.random()
        reference = sentence.words
        distances = np.abs(np.log(self._lengths / len(reference)))
        nearest = np.argsort(distances, kind="stable")[:N_TEMPLATES]
        template = self.templates[random.choice(nearest)]
        pattern = template.pattern.stretch(len(reference))
        wrong, inserted = self._draw_words(pattern, reference, random)
        hypotheses = apply_pattern(pattern, reference, wrong, inserted)
        facts = describe(hypotheses, pattern.errors(), self._model)
        scores = self.score_model.transfer(template.scores, template.facts, facts)
        rows = find_kept(hypotheses, template.hypotheses)
        return NBestList(
            id=f"{METHOD}-{sentence.key}",
            hypotheses=tuple(Hypothesis(" ".join(hypotheses[row])) for row in rows),
            streams={
                name: tuple(np.round(scores[rows, column], SCORE_DECIMALS).tolist())
                for column, name in enumerate(self.streams)
            },
            reference=sentence.text,
            group=template.source.group,
            fields={"method": METHOD, "imitates": template.source.id},
        )

    def _draw_words(
        self, pattern: Pattern, reference: Words, random: np.random.Generator
    ) -> tuple[list[Words], list[tuple[Words, ...]]]:
        wrong = [
            self.confusions.draw_wrong(word, reference[:j], len(pattern.wrong[j]), random)
            if pattern.wrong[j]
            else ()
            for j, word in enumerate(reference)
        ]
        inserted = [
            self.confusions.draw_inserted(len(insertions), random) if insertions else ()
            for insertions in pattern.inserted
        ]
        return wrong, inserted

    def make_all(self, sentences: Sequence[Sentence]) -> Iterator[NBestList]:
        """Make the lists of sentences."""
        return map(self.make, sentences)


def find_kept(hypotheses: Sequence[Words], originals: Sequence[Words]) -> list[int]:
    """Indices of hypotheses without those that became equal although their originals differ."""
    first_original: dict[Words, Words] = {}
    pairs = zip(hypotheses, originals, strict=True)
    return [row for row, (made, real) in enumerate(pairs) if first_original.setdefault(made, real) == real]


def collect_errors(
    references: Sequence[Words], patterns: Sequence[Pattern]
) -> tuple[list[Substitution], Counter[Words]]:
    """The distinct substitutions of each list, and its insertions."""
    substitutions = [
        Substitution(word, heard, reference[:j])
        for reference, pattern in zip(references, patterns, strict=True)
        for j, word in enumerate(reference)
        for heard in pattern.wrong[j]
    ]
    insertions = Counter(
        words for pattern in patterns for insertions in pattern.inserted for words in insertions
    )
    return substitutions, insertions
