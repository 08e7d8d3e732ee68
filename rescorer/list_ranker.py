"""Check, normalise and rank n-best lists: the lightweight half of a ``Rescorer``, without language models.

This module needs neither torch nor KenLM, so that a process that only receives requests and ranks answers
starts quickly and stays small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np

from rescorer.bundle import Bundle, check_weights
from rescorer.candidates.generation import Generator
from rescorer.candidates.pronunciation import load_pronouncer
from rescorer.decision.confidence import estimate_confidence
from rescorer.decision.rules import apply_rule
from rescorer.errors import InvalidList, LimitExceeded, quote
from rescorer.lm.base import EdgeScores
from rescorer.lm.caches.session_cache import Caches
from rescorer.lm.mixture import mix_scores
from rescorer.phrases.finder import PhraseFinder
from rescorer.phrases.matching import PhraseMatch
from rescorer.phrases.phrase_set import PhraseSet
from rescorer.phrases.slots import SlotScores
from rescorer.phrases.unknown_words import adjust_for_phrases
from rescorer.preparation.list_checks import check_lengths, check_list, find_wrong_hypothesis
from rescorer.preparation.previous import collect_confidences, join_history, join_words, normalise_previous
from rescorer.prepared_list import ENCODING_OF, PreparedList, components_of, rank_prepared
from rescorer.ranking import Ranking
from rescorer.reranking.reranker import Reranker
from rescorer.reranking.word_encoder import WordEncoder
from rescorer.runtime.profiling import Phase, phase
from rescorer.score_combination import COUNTED, MIXTURE, OOV, totals
from rescorer.trie import HypothesisTrie, Words
from rescorer.types import (
    Calibration,
    DecisionRule,
    NBestList,
    TextScore,
    Weights,
    WordConfidence,
)


class ListRanker:
    """Prepare lists for the language models, and rank them by the models' scores.

    Args:
        bundle: the normaliser, weights and model names to use.
        dictionary: file of pronunciations, for generating hypotheses; None: the installed dictionary.
    """

    def __init__(self, bundle: Bundle, dictionary: Path | None = None) -> None:
        self.bundle = bundle
        rerankers = [reranker.component for reranker in bundle.rerankers.values()]
        self._reserved_names = frozenset({*bundle.model_kinds, *COUNTED, MIXTURE, *rerankers})
        self._normalise = bundle.normaliser.normalise
        self.phrases = PhraseFinder(self._normalise, bundle.phrases, bundle.slot_words)
        self.dictionary = dictionary

    def effective_weights(self, weights: Weights | None) -> Weights:
        """Return complete weights: the default ones for None, with the bundle's λ if the weights have none.

        Raises:
            ConfigError: the weights name models that the bundle lacks, or the λ do not sum to 1.
        """
        default = self.bundle.weights["default"]
        if weights is None:
            return default
        if not weights.mixture:
            weights = replace(weights, mixture=self._find_shares(weights) or default.mixture)
        check_weights(
            weights,
            list(self.bundle.model_kinds),
            self.bundle.rerankers,
            self.bundle.backward,
            self.bundle.remembers,
        )
        return weights

    def _find_shares(self, weights: Weights) -> Mapping[str, float]:
        """The λ of the first reranker with a weight that has any; empty if there is none."""
        used = self.used_rerankers(weights)
        return next((reranker.base.mixture for reranker in used if MIXTURE in reranker.needs), {})

    @cached_property
    def generator(self) -> Generator:
        """What makes hypotheses from phrases; raises as ``load_pronouncer`` does."""
        return Generator(self._normalise, load_pronouncer(self.dictionary))

    def prepare(
        self,
        nbest: NBestList,
        weights: Weights,
        phrases: Sequence[PhraseSet] = (),
        *,
        generate: bool = False,
        spend: Callable[[int], None] = lambda steps: None,
    ) -> PreparedList:
        """Check a list against complete weights and normalise its words.

        Args:
            phrases: sets of phrases that are expected besides those of the list.
            generate: add hypotheses with phrases in place of what sounds like them.
            spend: called with an upper bound of the steps of each search before it begins; it may raise.

        Raises:
            InvalidList: the list cannot be scored under these weights.
        """
        with phase(Phase.TEXT):
            check_list(nbest, weights, self._reserved_names)
            self._check_reranker_streams(nbest, weights)
            try:
                words = self.normalise_texts([hypothesis.text for hypothesis in nbest.hypotheses])
            except (AttributeError, TypeError):
                if error := find_wrong_hypothesis(nbest):
                    raise error from None
                raise
            context = self._normalise(nbest.context)
            check_lengths(nbest.id, words, context)
            if generate and (expected := self.phrases.collect(nbest, phrases)):
                spend(self.generator.estimate_steps(nbest, expected))
                nbest = self.generator.extend(nbest, expected)
                words += self.normalise_texts([h.text for h in nbest.hypotheses[len(words) :]])
            spoken = normalise_previous(nbest.previous, self._normalise)
            previous = [utterance.words for utterance in spoken]
            spend(self.phrases.estimate_steps(nbest, words, phrases))
            found = self.phrases.find(nbest, words, phrases)
            matches = found if weights.phrases != 0 else ()  # nor do unknown words of phrases count then
        has_cache = weights.cache or weights.neural_cache
        reads_previous = self.bundle.reads_previous or has_cache
        history = join_history(previous, context) if reads_previous else context
        confidences = collect_confidences(spoken) if has_cache else ()
        flatness = weights.flatness if weights.neural_cache and history else 0.0
        said = join_words(previous, context)
        return PreparedList(nbest, words, context, history, said, matches, confidences, flatness)

    def _check_reranker_streams(self, nbest: NBestList, weights: Weights) -> None:
        """Raise InvalidList if a list lacks a stream that a reranker needs."""
        for reranker in self.used_rerankers(weights):
            if missing := self._find_missing_streams(nbest, reranker):
                message = f"missing, but reranker {quote(reranker.name)} needs it; the list has: "
                message += ", ".join(sorted(nbest.streams)) or "none"
                others = self.bundle.rerankers.values()
                if able := [other.name for other in others if not self._find_missing_streams(nbest, other)]:
                    message += f"; {', '.join(map(quote, able))} can rank it"
                raise InvalidList(message, list_id=nbest.id, field=f'streams["{missing[0]}"]')

    def _find_missing_streams(self, nbest: NBestList, reranker: Reranker) -> list[str]:
        return [name for name in self.needed_streams(reranker) if name not in nbest.streams]

    def needed_streams(self, reranker: Reranker) -> list[str]:
        """The streams that a list must have for a reranker."""
        return [name for name in reranker.needs if name not in self._reserved_names]

    def used_rerankers(self, weights: Weights) -> list[Reranker]:
        """The rerankers of the bundle to which weights give a weight other than 0."""
        names = [name for name, weight in weights.rerankers.items() if weight]
        return [self.bundle.rerankers[name] for name in names if name in self.bundle.rerankers]

    def used_encoders(self, weights: Weights) -> dict[str, WordEncoder]:
        """The encoders of words that the rerankers with a weight need, by the name of the reranker."""
        used = self.used_rerankers(weights)
        return {reranker.name: reranker.encoder for reranker in used if reranker.encoder is not None}

    def normalise_texts(self, texts: Sequence[str]) -> tuple[Words, ...]:
        """Return the canonical words of each text; equal texts are normalised once and share their words."""
        words = {text: self._normalise(text) for text in dict.fromkeys(texts)}
        return tuple(map(words.__getitem__, texts))

    def sentence_sums(
        self,
        trie: HypothesisTrie,
        scores: Mapping[str, EdgeScores],
        weights: Weights,
        partial: np.ndarray | None = None,
        caches: Caches | None = None,
    ) -> dict[str, np.ndarray]:
        """Sum edge scores over each hypothesis of a trie.

        Args:
            scores: the models' edge scores, by name.
            weights: complete weights; only the λ of the mixture matter.
            partial: (H,) bool, True for hypotheses whose end of sentence is not scored; None if there are
                none.
            caches: caches with which the mixture is interpolated.

        Returns:
            Arrays of (H,) float64 by name: one per model, one for the mixture, what each cache changed in
            it, and the number of unknown words. With encodings of words, (H, K) float64 for
            each, named ``encoding/RERANKER``.
        """
        sums = {name: part.sum_paths(trie, partial) for name, part in scores.items()}
        mixed = mix_scores(scores, weights.mixture)
        sums[MIXTURE] = mixed.sum_paths(trie, partial)
        for name, cache in (caches or {}).items():
            mixed = cache.add_to(mixed)
            with_cache = mixed.sum_paths(trie, partial)
            sums |= {MIXTURE: with_cache, name: with_cache - sums[MIXTURE]}
        sums[OOV] = scores[self.bundle.ngram].count_unknown(trie)
        for part in scores.values():
            sums |= {f"{ENCODING_OF}{name}": values for name, values in part.encodings.items()}
        return sums

    def adjust_for_phrases(
        self,
        sums: Mapping[str, np.ndarray],
        trie: HypothesisTrie,
        scores: Mapping[str, EdgeScores],
        mixture: Mapping[str, float],
        words: Sequence[Words],
        matches: Sequence[Sequence[PhraseMatch]],
        places: Iterable[tuple[int, int]],
        caches: Caches | None = None,
        slots: SlotScores | None = None,
    ) -> None:
        """Change ``sentence_sums`` so that n-grams read slots and unknown words of phrases count as known.

        Arguments are those of ``phrases.unknown_words.adjust_for_phrases``.
        """
        ngram = self.bundle.ngram
        adjust_for_phrases(sums, trie, scores, mixture, ngram, words, matches, places, caches, slots)

    def rank(
        self,
        prepared: PreparedList,
        sums: Mapping[str, np.ndarray],
        weights: Weights,
        *,
        merge: bool = False,
        drop_empty: bool = False,
        decision: DecisionRule | None = None,
    ) -> Ranking:
        """Rank one list by its totals and a decision rule.

        Args:
            sums: the result of ``sentence_sums`` for this list's hypotheses.
            merge: merge hypotheses with equal canonical words, adding their probabilities.
            drop_empty: drop hypotheses without canonical words; the first one stays if all are empty.
            decision: the rule that decides; None for that of the weights.

        Raises:
            InvalidList: a total is not finite, or the list is too long for the rule or a reranker.
        """
        components = components_of(prepared, sums)
        for reranker in self.used_rerankers(weights):
            try:
                components[reranker.component] = reranker.score(
                    components, prepared.words, prepared.said, sums.get(f"{ENCODING_OF}{reranker.name}")
                )
            except LimitExceeded as error:
                raise InvalidList(error.message, list_id=prepared.nbest.id, field=error.field) from None
        total = totals(components, weights)
        ranked = rank_prepared(prepared, components, total, merge=merge, drop_empty=drop_empty)
        ranked = apply_rule(ranked, decision or weights.decision, prepared.words, self._normalise)
        if weights.calibration is None:
            return ranked
        return self._add_confidence(ranked, prepared, total, weights.calibration)

    def _add_confidence(
        self, ranked: Ranking, prepared: PreparedList, total: np.ndarray, calibration: Calibration
    ) -> Ranking:
        """Add the confidence in the best hypothesis and in each word as it is written in the text."""
        best = ranked.order[0]
        confidence = estimate_confidence(calibration, prepared.words, total, best)
        if confidence.words is None:
            return replace(ranked, confidence=confidence.utterance)
        remaining = iter(confidence.words.tolist())
        words = []
        for written in prepared.nbest.hypotheses[best].text.split():
            # a written word can be several canonical words, such as we_did, or none
            parts = [next(remaining) for _ in self.bundle.normaliser.normalise_token(written)]
            words.append(WordConfidence(written, min(parts, default=None)))
        return replace(ranked, confidence=confidence.utterance, word_confidences=words)

    def text_scores(
        self,
        texts: Sequence[str],
        words: Sequence[Words],
        trie: HypothesisTrie,
        scores: Mapping[str, EdgeScores],
        weights: Weights,
        first: int = 0,
    ) -> list[TextScore]:
        """Score each word of some texts, which are the hypotheses of ``trie`` from index ``first``."""
        parts = {**scores, MIXTURE: mix_scores(scores, weights.mixture)}
        by_direction = {part.backward: part for part in parts.values()}
        ngram = scores[self.bundle.ngram]
        by_node: dict[int, tuple[dict[str, tuple[float, ...]], tuple[bool, ...]]] = {}  # equal texts share it
        answers = []
        for i, (text, text_words) in enumerate(zip(texts, words, strict=True), start=first):
            node = int(trie.hypothesis_node[i])
            if node not in by_node:
                edges = {backward: part.path_edges(trie, i) for backward, part in by_direction.items()}
                word_scores = {
                    name: tuple(part.log_probs[edges[part.backward]].tolist()) for name, part in parts.items()
                }
                by_node[node] = word_scores, tuple(ngram.unknown[edges[ngram.backward][:-1]].tolist())
            answers.append(TextScore(text, text_words, *by_node[node]))
        return answers
