"""The single path from lists to answers: normalise, build a trie, score it, combine, rank.

``Rescorer`` composes a ``ListRanker`` (text, weights, ranking) and a ``TrieScorer`` (language models) in one
process; the gRPC service runs the two halves in different processes. The file command, evaluation, tuning and
the benchmark all use ``Rescorer``.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from rescorer.bundle import Bundle, read_bundle
from rescorer.conversation import Phrase
from rescorer.errors import ConfigError, InputError, InvalidList, quote
from rescorer.list_ranker import ListRanker
from rescorer.lm import CONTEXT_CACHE_BYTES
from rescorer.lm.base import EdgeScores, LanguageModel
from rescorer.lm.caches.mixing import mix_choices, read_caches
from rescorer.model_loading import load_bundle_models
from rescorer.phrases.phrase_set import PhraseSet
from rescorer.prepared_list import PreparedList, build_tries, flatten_matches
from rescorer.ranking import Ranking
from rescorer.reranking.word_encoder import WordEncoder
from rescorer.runtime.profiling import Phase, phase
from rescorer.score_combination import MIXTURE, OOV
from rescorer.trie import HypothesisTrie
from rescorer.trie_scorer import Encoders, TrieScorer, find_encoders, score_past, score_slots
from rescorer.types import DecisionRule, NBestList, RescoredList, TextScore, Weights

MAX_BATCH_WORDS = 65_536
"""Default number of words per batch. At hidden size 200, a network needs 1 KB per word: 64 MB."""


class Rescorer:
    """Score and re-rank n-best lists with one bundle of models.

    Examples:
        >>> rescorer = Rescorer.load("models/starter/1")  # doctest: +SKIP
        >>> rescorer.rescore(lists)[0].best.text  # doctest: +SKIP
    """

    def __init__(
        self, bundle: Bundle, models: Mapping[str, LanguageModel], max_batch_words: int = MAX_BATCH_WORDS
    ) -> None:
        self.ranker = ListRanker(bundle)
        self.scorer = TrieScorer(models, bundle.label, find_encoders(bundle))
        self.max_batch_words = max_batch_words

    @classmethod
    def load(
        cls,
        folder: Path | str,
        device: str = "cpu",
        max_batch_words: int = MAX_BATCH_WORDS,
        dtype: str = "float32",
        context_cache_bytes: int = CONTEXT_CACHE_BYTES,
    ) -> Rescorer:
        """Verify a bundle and load its models; see ``load_bundle_models`` for the options.

        Raises:
            BundleError: the bundle cannot be used.
            ConfigError: torch does not have the device, or the dtype is unknown.
        """
        bundle = read_bundle(folder)
        return cls(bundle, load_bundle_models(bundle, device, dtype, context_cache_bytes), max_batch_words)

    @property
    def bundle(self) -> Bundle:
        return self.ranker.bundle

    @property
    def models(self) -> Mapping[str, LanguageModel]:
        """The language models, by name."""
        return self.scorer.models

    def rescore(
        self,
        lists: Sequence[NBestList],
        weights: Weights | None = None,
        decision: DecisionRule | None = None,
        *,
        merge: bool = False,
        drop_empty: bool = False,
        generate: bool = False,
        model: str = "",
        phrases: Sequence[Phrase] = (),
        phrase_lists: Sequence[str] = (),
    ) -> list[RescoredList]:
        """Re-rank lists, in input order.

        Args:
            weights: weights of the totals; None for the bundle's default.
            decision: rule that decides by the totals; None for that of the weights.
            merge: merge hypotheses with equal canonical words, adding their probabilities.
            drop_empty: drop hypotheses without canonical words; the first one stays if all are empty.
            generate: add hypotheses with phrases of a list in place of what sounds like them; their
                ``generated`` says how they were made.
            model: name, or ``name/version``, that the bundle must have, as in calls of ``Client``.
            phrases: phrases that are expected in all lists, besides the lists' own.
            phrase_lists: names of the bundle's lists of phrases that are expected in all lists.

        Raises:
            InvalidList: a list cannot be scored; use ``rescore_each`` to score the others.
            ConfigError: the weights do not fit the bundle, it lacks phrases of a name, or the model is
                another.
            LimitExceeded: a phrase is invalid, or there are too many.
        """
        answers = self.rescore_each(
            lists,
            weights,
            decision,
            merge=merge,
            drop_empty=drop_empty,
            generate=generate,
            model=model,
            phrases=phrases,
            phrase_lists=phrase_lists,
        )
        for answer in answers:
            if isinstance(answer, InputError):
                raise answer
        return answers  # type: ignore[return-value]

    def rescore_each(
        self,
        lists: Sequence[NBestList],
        weights: Weights | None = None,
        decision: DecisionRule | None = None,
        *,
        merge: bool = False,
        drop_empty: bool = False,
        generate: bool = False,
        model: str = "",
        phrases: Sequence[Phrase] = (),
        phrase_lists: Sequence[str] = (),
    ) -> list[RescoredList | InvalidList]:
        """Like ``rescore``, but return an error in place of each list that cannot be scored."""
        self._check_model(model)
        weights = self.ranker.effective_weights(weights)
        shared = self.ranker.phrases.select(tuple(phrases), phrase_lists)
        rankings = self.rank_each(
            lists,
            weights,
            decision,
            merge=merge,
            drop_empty=drop_empty,
            generate=generate,
            phrases=shared,
        )
        with phase(Phase.RANK):
            return [
                ranked.to_rescored_list(weights, self.bundle.label) if isinstance(ranked, Ranking) else ranked
                for ranked in rankings
            ]

    def _check_model(self, model: str) -> None:
        if model not in ("", self.bundle.name, self.bundle.label):
            raise ConfigError(
                f"model is {quote(model)}, but this Rescorer has loaded {self.bundle.label!r}: load the "
                "other bundle with Rescorer.load(FOLDER), or choose among the models of a server with "
                "Client(ADDRESS, model=NAME)"
            )

    def rank_each(
        self,
        lists: Sequence[NBestList],
        weights: Weights | None = None,
        decision: DecisionRule | None = None,
        *,
        merge: bool = False,
        drop_empty: bool = False,
        generate: bool = False,
        phrases: Sequence[PhraseSet] = (),
    ) -> list[Ranking | InvalidList]:
        """Like ``rescore_each``, but return each list column by column, as files are written from it.

        Args:
            phrases: sets of phrases that are expected in all lists; see ``PhraseFinder.select``.
        """
        weights = self.ranker.effective_weights(weights)
        answers: list[Ranking | InvalidList | None] = [None] * len(lists)
        valid: list[tuple[int, PreparedList]] = []
        for i, nbest in enumerate(lists):
            try:
                valid.append((i, self.ranker.prepare(nbest, weights, phrases, generate=generate)))
            except InvalidList as error:
                answers[i] = error
        sums = self._sentence_sums([prepared for _, prepared in valid], weights)
        begin = 0
        for i, prepared in valid:
            end = begin + len(prepared.words)
            list_sums = {name: values[begin:end] for name, values in sums.items()}
            try:
                with phase(Phase.RANK):
                    answers[i] = self.ranker.rank(
                        prepared,
                        list_sums,
                        weights,
                        merge=merge,
                        drop_empty=drop_empty,
                        decision=decision,
                    )
            except InvalidList as error:
                answers[i] = error
            begin = end
        return answers  # type: ignore[return-value]

    def score_text(
        self, texts: Sequence[str], context: str = "", weights: Weights | None = None
    ) -> list[TextScore]:
        """Return every model's log-probability of each word of some texts.

        Args:
            weights: weights, of which only the λ of the mixture matter; None for the bundle's default.
        """
        weights = self.ranker.effective_weights(weights)
        with phase(Phase.TEXT):
            words, (before,) = map(self.ranker.normalise_texts, (texts, [context]))
        answers: dict[int, TextScore] = {}
        prepared = PreparedList(NBestList("", ()), words, before, before, before)
        for indices, trie, scores in self._score_lists([prepared]):
            batch_texts, batch_words = [texts[i] for i in indices], [words[i] for i in indices]
            batch_scores = self.ranker.text_scores(batch_texts, batch_words, trie, scores, weights)
            answers.update(zip(indices, batch_scores, strict=True))
        return [answers[i] for i in range(len(texts))]

    def mixture_log_probs(
        self,
        lists: Sequence[NBestList],
        mixtures: Sequence[Mapping[str, float]],
        cache: Sequence[float] = (),
        neural_cache: Sequence[tuple[float, float]] = (),
    ) -> np.ndarray:
        """Mix the models' scores word by word under several interpolation weights.

        Args:
            lists: lists with N hypotheses in total.
            mixtures: G interpolation weights by model name, each with sum 1.
            cache, neural_cache: G λ of each list's cache, G λ and θ of its neural cache; empty: none.

        Returns:
            (G, N) float64, log-probabilities of the mixtures in nats.

        Raises:
            InvalidList: a list cannot be scored.
        """
        cache, neural_cache = cache or [0.0] * len(mixtures), neural_cache or [(0.0, 0.0)] * len(mixtures)
        read = Weights(cache=max(cache, default=0.0), neural_cache=max(neural_cache, default=(0.0,))[0])
        prepared = [replace(self.ranker.prepare(nbest, read), flatness=0.0) for nbest in lists]
        read_past = functools.partial(score_past, self.scorer, remembers=self.bundle.remembers)
        partial = np.array([h.partial for nbest in lists for h in nbest.hypotheses], dtype=bool)
        words = [hypothesis for item in prepared for hypothesis in item.words]
        matches = flatten_matches(prepared)
        log_probs = np.zeros((len(mixtures), len(words)))
        for indices, trie, scores in self._score_lists(prepared):
            rows = np.array(indices)
            slots = score_slots(self.scorer, prepared, indices, self.bundle.slots)
            choices = mix_choices(trie, scores, read_past, mixtures, cache, neural_cache)
            for row, (mixture, mixed, caches) in enumerate(choices):
                log_probs[row, rows] = mixed.sum_paths(trie, partial[rows])
                part = {MIXTURE: log_probs[row]}
                self.ranker.adjust_for_phrases(
                    part, trie, scores, mixture, words, matches, enumerate(indices), caches, slots
                )
        return log_probs

    def encode(self, lists: Sequence[NBestList], encoder: WordEncoder) -> list[np.ndarray]:
        """Encode the words of every hypothesis, as for rerankers; not centred.

        Returns:
            (H, K) float64 for each list.

        Raises:
            ConfigError: the bundle does not have the encoder's model, or it has no context vectors of the
                length that is projected.
            InvalidList: a list cannot be scored.
        """
        if encoder.model not in self.bundle.model_kinds:  # self.models may load them
            known = [*self.bundle.model_kinds]
            raise ConfigError(f"words are to be encoded by {quote(encoder.model)}; the bundle has {known}")
        prepared = [self.ranker.prepare(nbest, Weights()) for nbest in lists]
        ends = np.cumsum([0, *(len(item.words) for item in prepared)], dtype=np.int64)
        encodings = np.zeros((ends[-1], encoder.projection.shape[1]))
        for indices, _, scores in self._score_lists(prepared, [encoder.model], {"": encoder}):
            encodings[np.array(indices)] = scores[encoder.model].encodings[""]
        return [encodings[first:last] for first, last in pairwise(ends)]

    def _sentence_sums(self, lists: Sequence[PreparedList], weights: Weights) -> dict[str, np.ndarray]:
        """Return ``ListRanker.sentence_sums`` of all hypotheses of some lists, in input order."""
        partial = np.array([h.partial for prepared in lists for h in prepared.nbest.hypotheses], dtype=bool)
        words = [hypothesis for prepared in lists for hypothesis in prepared.words]
        matches = flatten_matches(lists)
        sums = {name: np.zeros(len(words)) for name in (*self.models, MIXTURE, OOV)}
        encoders = self.ranker.used_encoders(weights)
        for indices, trie, scores in self._score_lists(lists, encoders=encoders):
            rows = np.array(indices)
            slots = score_slots(self.scorer, lists, indices, self.bundle.slots)
            with phase(Phase.RANK):
                caches = read_caches(trie, scores, weights)
                part = self.ranker.sentence_sums(trie, scores, weights, partial[rows], caches)
                for name, values in part.items():
                    sums.setdefault(name, np.zeros((len(words), *values.shape[1:])))[rows] = values
                self.ranker.adjust_for_phrases(
                    sums, trie, scores, weights.mixture, words, matches, enumerate(indices), caches, slots
                )
        return sums

    def _score_lists(
        self, lists: Sequence[PreparedList], only: Sequence[str] = (), encoders: Encoders | None = None
    ) -> Iterator[tuple[Sequence[int], HypothesisTrie, dict[str, EdgeScores]]]:
        """Score hypotheses in batches; yield the hypothesis indices, trie and edge scores of each batch."""
        backward = bool(self.bundle.backward)
        for indices, trie in build_tries(lists, self.max_batch_words, backward=backward):
            yield indices, trie, self.scorer.score(trie, only, encoders)
