"""All components, also those that only some requests use: caches, phrases, generation, rerankers.

To add a component, write its class here and name it in ``COMPONENTS``. Importing this module is cheap: the
modules that only some requests need are imported when the first such request comes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rescorer.errors import InvalidList, LimitExceeded, quote
from rescorer.list_checks import collect_confidences, join_history, join_words
from rescorer.models.bundle import Bundle
from rescorer.models.language_model import mix
from rescorer.reranking.reranker import Reranker, replace_by_base
from rescorer.scoring.batch import Batch, ScoreRequest
from rescorer.scoring.components import (
    Asked,
    AskedBy,
    Columns,
    Component,
    Growth,
    Interpolation,
    LanguageModels,
    Mixture,
    Outline,
    PreparedList,
    ScoredList,
    Streams,
    UnknownWords,
    WordCount,
    interpolate_mixture,
    sum_mixture,
)
from rescorer.scoring.options import RescoreOptions
from rescorer.scoring.ranker import ListRanker
from rescorer.text import Normaliser
from rescorer.trie import EdgeScores, HypothesisTrie, WordEncoder, Words
from rescorer.types import NBestList, Phrase, Weights
from rescorer.weights import CACHE, COUNTED, GENERATED, MIXTURE, NEURAL_CACHE, OOV, PHRASES, SOUND_MATCH

if TYPE_CHECKING:
    from rescorer.candidates import Generator
    from rescorer.models.language_model import SessionCache
    from rescorer.phrases import PhraseFinder, PhraseMatch, PhraseSet, SlotScores


class Caches(Component):
    """Two columns: the change of the mixture by the cache of words, and that by the neural cache.

    Lists without previous utterances or context do not have these columns.
    """

    name = "caches"
    asked_by = AskedBy(weights=("cache", "neural_cache"))
    needs_scores = True
    columns = (CACHE, NEURAL_CACHE)

    def prepare(self, prepared: PreparedList) -> PreparedList:
        history = prepared.history
        if not self.bundle.reads_previous:
            history = join_history((one.words for one in prepared.spoken), prepared.context)
        weights = prepared.options.weights
        return replace(
            prepared,
            history=history,
            confidences=collect_confidences(prepared.spoken),
            flatness=weights.flatness if weights.neural_cache and history else 0.0,
        )

    def interpolations(self, batch: Batch, weights: Weights) -> Mapping[str, Interpolation]:
        from rescorer.models.language_model import mix_neural_caches, read_sessions

        caches: dict[str, SessionCache | None] = {
            CACHE: read_sessions(batch.trie, weights.cache),
            NEURAL_CACHE: mix_neural_caches(batch.trie, batch.scores, weights.mixture, weights.neural_cache),
        }
        return {name: cache for name, cache in caches.items() if cache is not None}

    def mixture_key(self, weights: Weights) -> Hashable:
        return weights.cache, weights.neural_cache

    def add_columns(self, columns: Columns, scored: ScoredList) -> None:
        if scored.prepared.history and scored.weights.mixture:
            changes = scored.gather(lambda batch: sum_mixture(batch, scored.options))
            columns |= {name: changes[name] for name in self.columns if name in changes}


class Phrases(Component):
    """The credits of each hypothesis for its phrases. Only lists in which a phrase was found have them."""

    name = "phrases"
    asked_by = AskedBy(options=("phrases", "phrase_lists"), lists=("phrases",))
    columns = (PHRASES,)
    expected: Sequence[PhraseSet] = ()
    """Sets of phrases that are expected in the lists of every request; see ``expect``."""
    shared: Sequence[PhraseSet] = ()
    """Sets of phrases that are expected in all lists of one request."""

    @cached_property
    def finder(self) -> PhraseFinder:
        """The ``PhraseFinder``, made at the first use; it keeps the compiled phrases of recent requests."""
        from rescorer.phrases import PhraseFinder

        return PhraseFinder(self.normalise, self.bundle.phrases, self.bundle.slot_words)

    def expect(self, phrases: Sequence[Phrase], names: Sequence[str]) -> None:
        """Expect phrases in the lists of all requests from now on.

        Args:
            phrases: the phrases to expect.
            names: names of sets of phrases in the bundle, to expect as well.

        Raises:
            ConfigError: the bundle has no set of phrases with such a name.
            LimitExceeded: a phrase is invalid, or there are too many.
        """
        self.expected = self.finder.select(tuple(phrases), names)
        self.always = bool(self.expected)

    def bind(self, options: RescoreOptions, weights: Weights) -> Component:
        finder, bound = self.finder, copy(self)  # all copies share the finder and what it keeps
        bound.shared = [*self.expected, *finder.select(options.phrases, options.phrase_lists)]
        return bound

    def steps_by_size(self, request: Any) -> int:
        has_own = any(nbest.phrases for nbest in request.lists)
        if not (has_own or self.expected or request.phrases or request.phrase_lists):
            return 0
        from rescorer.phrases import STEPS_PER_PHRASE, estimate_steps, measure_phrases

        max_words = self.bundle.normaliser.max_words
        n_phrases, longest = measure_phrases(request.phrases, max_words)
        known = [*self.expected, *self.finder.find_named(request.phrase_lists)]
        shared = [longest, *(one.longest for one in known)]
        steps = 0
        for nbest in request.lists:
            n_own, longest = measure_phrases(nbest.phrases, max_words)
            n_phrases += n_own
            words = [max_words(hypothesis.text) for hypothesis in nbest.hypotheses]
            n_words = sum(words) + (max_generated_words(words) if request.generate else 0)
            steps += estimate_steps(n_words, [*shared, longest])
        return steps + STEPS_PER_PHRASE * n_phrases

    def steps_to_prepare(self, prepared: PreparedList) -> int:
        return self.finder.estimate_steps(prepared.nbest, prepared.words, self.shared)

    def prepare(self, prepared: PreparedList) -> PreparedList:
        found = self.finder.find(prepared.nbest, prepared.words, self.shared)
        if not found or prepared.options.weights.phrases == 0:  # unknown words of phrases stay unknown, too
            return prepared
        return replace(prepared, notes={**prepared.notes, self.name: found})

    def ask(self, batch: Batch) -> Asked:
        """Ask the n-grams that know slots to score the hypotheses in which phrases may fill these slots.

        A slot is a word such as ``$name`` that stood for names in the n-gram's training text.
        """
        models = [name for name in self.bundle.slots if not batch.models or name in batch.models]
        if not models or not any(self.name in part.prepared.notes for part in batch.parts):
            return
        from rescorer.phrases import read_slots

        hypotheses = [(part.prepared, i) for part in batch.parts for i in part.indices]
        sums: dict[int, Mapping[str, np.ndarray]] = {}
        for readings in read_slots(
            [prepared.words[i] for prepared, i in hypotheses],
            [prepared.history for prepared, _ in hypotheses],
            [self._matches(prepared, i) for prepared, i in hypotheses],
            batch.partial.tolist(),
        ):
            scores = yield ScoreRequest(readings.trie, tuple(models))
            sums |= readings.sum_scores(scores)
        batch.notes[self.name] = sums

    def _matches(self, prepared: PreparedList, index: int) -> Sequence[PhraseMatch]:
        found: Sequence[Sequence[PhraseMatch]] = prepared.notes.get(self.name, ())
        return found[index] if found else ()

    def tokens(self, prepared: PreparedList) -> int:
        """Count the words of all readings of distinct hypotheses; words before them count once per part."""
        found: Sequence[Sequence[PhraseMatch]] = prepared.notes.get(self.name, ())
        if not self.bundle.slots or not found:
            return 0
        from rescorer.phrases import MAX_PART_WORDS

        distinct = {id(matches): i for i, matches in enumerate(found)}  # equal hypotheses share their matches
        n_readings = {i: math.prod(1 + len(match.slots) for match in found[i]) for i in distinct.values()}
        n_words = sum(n * (len(prepared.words[i]) + 1) for i, n in n_readings.items() if n > 1)
        return n_words + len(prepared.history) * (1 + n_words // MAX_PART_WORDS) if n_words else 0

    def steps_to_rank(self, prepared: PreparedList, weights: Weights) -> int:
        """Count the hypotheses with phrases, whose scores are corrected one by one."""
        found: Sequence[Sequence[PhraseMatch]] = prepared.notes.get(self.name, ())
        n_corrected = sum(map(bool, found))
        return n_corrected * (STEPS_PER_CORRECTION + STEPS_PER_CORRECTED_MODEL * len(self.bundle.model_kinds))

    def add_columns(self, columns: Columns, scored: ScoredList) -> None:
        """Add the credits, and change earlier columns so that unknown words of phrases count as known."""
        found: Sequence[Sequence[PhraseMatch]] = scored.prepared.notes.get(self.name, ())
        if not found:
            return
        for part in scored.parts:
            batch = part.batch
            slots: SlotScores = batch.notes.get(self.name, {})
            if not slots and not batch.once("has unknown words", partial(_has_unknown, batch)):
                continue
            interpolations = interpolate_mixture(batch, scored.options)
            mixture, ngram = scored.weights.mixture, self.bundle.ngram
            reader = PhraseReader(batch.trie, batch.scores, mixture, ngram, interpolations, slots)
            for row, index in enumerate(part.indices, start=part.rows.start):
                if found[index]:
                    gains = reader.find_gains(row, scored.prepared.words[index], found[index])
                    for name in gains.keys() & columns.keys():
                        columns[name][index] += gains[name]
        columns[PHRASES] = np.array([math.fsum(match.credit for match in matches) for matches in found])


STEPS_PER_CORRECTION = 1_600
"""Steps that take as long as comparing the phrases of one hypothesis with its scores, whatever its length."""
STEPS_PER_CORRECTED_MODEL = 800
"""Further steps for each model."""


def max_generated_words(words: Sequence[int]) -> int:
    """Return an upper bound of the words of all hypotheses that are generated for a list.

    Args:
        words: upper bound of the words of each hypothesis, best first.
    """
    from rescorer.candidates import DEFAULT, MAX_PHRASE_CHARS, MAX_REPLACED

    longest = max(words[: DEFAULT.top], default=0) + MAX_REPLACED * MAX_PHRASE_CHARS
    return (DEFAULT.max_new + DEFAULT.max_combined) * longest


def expected_phrases(prepared: PreparedList) -> tuple[Phrase, ...]:
    """Return all phrases that are expected in a list, each once.

    Raises:
        InvalidList: a phrase of the list is invalid, or the list has too many phrases.
    """
    component = next((one for one in prepared.components if isinstance(one, Phrases)), None)
    return component.finder.collect(prepared.nbest, component.shared) if component else ()


def _has_unknown(batch: Batch) -> bool:
    return any(part.unknown.any() for part in batch.scores.values())


@dataclass(frozen=True, slots=True)
class PhraseReader:
    """Corrects the scores of hypotheses whose phrases have unknown words, or fill slots of n-grams.

    A name that is not in a model's vocabulary costs as much as any other unknown word, often too much for the
    right hypothesis to win. If the name is part of an expected phrase, it gets its log-probability in the
    phrase model, unless that of ``<unk>`` is larger; see ``PhraseSet.word_log_probs``. The scores in
    ``slots`` include this correction already.
    """

    trie: HypothesisTrie
    scores: Mapping[str, EdgeScores]
    """The models' edge scores, by name."""
    mixture: Mapping[str, float]
    """λ of the mixture."""
    ngram: str
    """Name of the model whose unknown words are counted."""
    interpolations: Mapping[str, Interpolation] = field(default_factory=dict)
    """Interpolations of the mixture, by column."""
    slots: SlotScores = field(default_factory=dict)
    """Scores of the readings of hypotheses with slots."""

    def find_gains(self, row: int, words: Words, matches: Sequence[PhraseMatch]) -> dict[str, float]:
        """Return how much the phrases of hypothesis ``row`` of the trie add to its value in each column."""
        from rescorer.phrases import phrase_log_probs

        log_probs = phrase_log_probs(words, matches)
        read = self.slots.get(row, {})
        # words after a slot are predicted from the slot
        n_scored = max([len(words), *map(len, read.values())])
        log_probs = np.append(log_probs, -np.inf)[:n_scored]
        in_phrases = log_probs > -np.inf
        indices = np.arange(n_scored) if read else np.flatnonzero(in_phrases)
        edges = {name: part.path_edges(self.trie, row)[indices] for name, part in self.scores.items()}
        gains = self._compare(edges, log_probs[indices], read)
        gains[OOV] = -float(self.scores[self.ngram].unknown[edges[self.ngram]][in_phrases[indices]].sum())
        return gains

    def _compare(
        self, edges: Mapping[str, np.ndarray], log_probs: np.ndarray, read: Mapping[str, np.ndarray]
    ) -> dict[str, float]:
        """Sum, for each column, by how much the log-probabilities of n words of a hypothesis rise.

        Args:
            edges: (n,) edges of the words, by model.
            log_probs: (n,) log-probabilities under the phrase model, -inf outside of phrases.
            read: (n,) log-probabilities by the models that read slots.
        """
        before = {name: part.of_words[edges[name]] for name, part in self.scores.items()}
        after = {
            name: np.where(self.scores[name].unknown[edges[name]], np.maximum(values, log_probs), values)
            for name, values in before.items()
        }
        after |= read
        for part in (before, after):
            if not self.mixture:
                continue
            mixed = mix([part[name] for name in self.mixture], list(self.mixture.values()))
            # all models of an interpolated mixture read the same trie, forward
            for name, interpolation in self.interpolations.items():
                interpolated = interpolation.interpolate(mixed, edges[next(iter(self.mixture))])
                part[name] = interpolated - mixed
                mixed = interpolated
            part[MIXTURE] = mixed
        return {name: float(np.sum(values - before[name])) for name, values in after.items()}


class Generation(Component):
    """Adds hypotheses with phrases, and two columns: the number of replaced spans, and the match of sound.

    Lists whose generated hypotheses were in the input have these columns too.
    """

    name = "generation"
    asked_by = AskedBy(options=("generate",), hypotheses=("generated",))
    columns = (GENERATED, SOUND_MATCH)
    dictionary: Path | None = None  # file of pronunciations; None: the installed dictionary

    @cached_property
    def generator(self) -> Generator:
        """Generator of hypotheses, made at the first use, which raises the errors of ``load_pronouncer``."""
        from rescorer.candidates import Generator
        from rescorer.sounds import load_pronouncer

        return Generator(self.normalise, load_pronouncer(self.dictionary))

    def bind(self, options: RescoreOptions, weights: Weights) -> Component:
        return _Generating(self)

    def steps_by_size(self, request: Any) -> int:
        if not request.generate:
            return 0
        from rescorer.candidates import estimate_steps_by_size

        max_words = self.bundle.normaliser.max_words
        named = [self.bundle.phrases[name] for name in request.phrase_lists if name in self.bundle.phrases]
        shared = [*request.phrases, *(phrase for one in named for phrase in one.phrases)]
        return sum(
            estimate_steps_by_size(
                [one.text for one in nbest.hypotheses], [*nbest.phrases, *shared], max_words
            )
            for nbest in request.lists
        )

    def add_columns(self, columns: Columns, scored: ScoredList) -> None:
        made = [hypothesis.generated for hypothesis in scored.prepared.nbest.hypotheses]
        if made[-1] is None:  # generated hypotheses come last
            return
        columns[GENERATED] = np.array([0.0 if one is None else float(len(one.parts)) for one in made])
        columns[SOUND_MATCH] = np.array([0.0 if one is None else one.sound_match for one in made])

    def growth(self, outline: Outline) -> Growth | None:
        if not outline.options.generate:
            return None
        from rescorer.candidates import DEFAULT, MAX_PHRASE_CHARS, MAX_REPLACED

        sources = outline.nbest.hypotheses[: DEFAULT.top]
        longest = max((source.text for source in sources), key=len, default="")
        # the new words stand in its text, in its fields with times, and in its ``generated``
        phrase_bytes = 64 + 12 * MAX_PHRASE_CHARS + 64 * (MAX_PHRASE_CHARS // 2)
        source_bytes = max((source.ByteSize() for source in sources), default=0)
        return Growth(
            DEFAULT.max_new + DEFAULT.max_combined,
            MAX_REPLACED * phrase_bytes + 2 * source_bytes,
            f"{longest} {'x ' * (MAX_REPLACED * MAX_PHRASE_CHARS // 2)}",
        )


class _Generating(Generation):
    """The component ``Generation``, bound to a request that asks for new hypotheses."""

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
        return replace(prepared, nbest=nbest, words=(*prepared.words, *new))


class Rerankers(Component):
    """A column per reranker of the bundle that has a weight in the request: its scores."""

    name = "rerankers"
    asked_by = AskedBy(weights=("rerankers",))
    needs_scores = True

    def __init__(self, bundle: Bundle, normalise: Callable[[str], Words]) -> None:
        super().__init__(bundle, normalise)
        self.columns = tuple(reranker.component for reranker in bundle.rerankers.values())

    def complete(self, weights: Weights) -> Weights:
        """If the weights have no λ of the mixture, take those of the first used reranker that was trained
        with the mixture."""
        if weights.mixture:
            return weights
        used = used_rerankers(self.bundle, weights)
        shares = next((reranker.base.mixture for reranker in used if MIXTURE in reranker.needs), {})
        return replace(weights, mixture=shares) if shares else weights

    def without_models(self, weights: Weights, models: Collection[str] | None) -> Weights:
        used = used_rerankers(self.bundle, weights)
        unable = used if models is None else [one for one in used if set(one.models) - set(models)]
        return replace_by_base(weights, unable)

    def bind(self, options: RescoreOptions, weights: Weights) -> Component:
        bound = copy(self)
        bound.columns = tuple(one.component for one in used_rerankers(self.bundle, weights))
        return bound

    def prepare(self, prepared: PreparedList) -> PreparedList:
        """Raise InvalidList if the list lacks a stream that a reranker needs."""
        for reranker in used_rerankers(self.bundle, prepared.options.weights):
            if missing := self._find_missing_streams(prepared.nbest, reranker):
                message = f"missing, but reranker {quote(reranker.name)} needs it; the list has: "
                others = self.bundle.rerankers.values()
                able = [one.name for one in others if not self._find_missing_streams(prepared.nbest, one)]
                message += ", ".join(sorted(prepared.nbest.streams)) or "none"
                message += f"; {', '.join(map(quote, able))} can rank it" if able else ""
                raise InvalidList(message, list_id=prepared.nbest.id, field=f'streams["{missing[0]}"]')
        return prepared

    def _find_missing_streams(self, nbest: NBestList, reranker: Reranker) -> list[str]:
        return [name for name in needed_streams(self.bundle, reranker) if name not in nbest.streams]

    def encoders(self, weights: Weights) -> Mapping[str, WordEncoder]:
        used = used_rerankers(self.bundle, weights)
        return {one.name: one.encoder for one in used if one.encoder is not None}

    def add_columns(self, columns: Columns, scored: ScoredList) -> None:
        """Add the scores. If a model that a reranker needs cannot read a list, its base weights stand in."""
        prepared = scored.prepared
        encodings = scored.gather(
            lambda batch: {
                name: rows
                for one in (*batch.scores.values(), *batch.surface_scores.values())
                for name, rows in one.encodings.items()
            }
        )
        said = words_said_before(prepared)
        for reranker in used_rerankers(self.bundle, scored.weights):
            if not prepared.unread.keys().isdisjoint(reranker.models):
                columns[reranker.component] = reranker.base_totals(columns)
                continue
            try:
                encoding = encodings.get(reranker.name)
                columns[reranker.component] = reranker.score(columns, prepared.words, said, encoding)
            except LimitExceeded as error:
                raise InvalidList(error.message, list_id=prepared.nbest.id, field=error.field) from None

    def steps_to_rank(self, prepared: PreparedList, weights: Weights) -> int:
        from rescorer.reranking.reranker import estimate_steps

        said = words_said_before(prepared)
        used = used_rerankers(self.bundle, weights)
        return sum(estimate_steps(reranker, prepared.words, said) for reranker in used)


def used_rerankers(bundle: Bundle, weights: Weights) -> list[Reranker]:
    """Return the rerankers of a bundle to which weights give a weight other than 0."""
    names = [name for name, weight in weights.rerankers.items() if weight]
    return [bundle.rerankers[name] for name in names if name in bundle.rerankers]


def needed_streams(bundle: Bundle, reranker: Reranker) -> list[str]:
    """Return the names of the streams that a list must have for a reranker."""
    own = {*bundle.model_kinds, MIXTURE, *COUNTED}
    return [name for name in reranker.needs if name not in own]


def words_said_before(prepared: PreparedList) -> Words:
    """Return the words of previous utterances and of the context, which rerankers look up in hypotheses."""
    return join_words((one.words for one in prepared.spoken), prepared.context)


COMPONENTS: tuple[type[Component], ...] = (
    Streams,
    LanguageModels,
    Mixture,
    UnknownWords,
    Caches,
    Phrases,
    Generation,
    WordCount,
    Rerankers,
)
"""All components, in the order of their columns. Each may read and change the columns of earlier ones."""


def make_ranker(bundle: Bundle, dictionary: Path | None = None, language: str = "") -> ListRanker:
    """Make a ranker with all components.

    Args:
        dictionary: file of pronunciations, for generating hypotheses; None: the installed dictionary.
        language: language by whose rules texts become canonical words; empty: that of the bundle.
    """
    ranker = ListRanker(bundle, COMPONENTS)
    if language:
        settings = replace(bundle.text_normaliser.settings, language=language)
        ranker.text_normaliser = Normaliser(settings)
    ranker.component(Generation).dictionary = dictionary
    return ranker
