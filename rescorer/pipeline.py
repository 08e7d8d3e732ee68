"""``Rescorer``, which takes lists all the way in one process: normalise, build a trie, score, combine, rank.

A ``Rescorer`` joins a ``ListRanker`` (text, weights, ranking) and a ``TrieScorer`` (language models); the
gRPC service runs these two halves in different processes. The file command, evaluation, tuning and the
benchmark all use ``Rescorer``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from rescorer.errors import BundleError, ConfigError, InputError, InvalidList, ScoringError, quote
from rescorer.extensions import make_ranker
from rescorer.list_checks import find_wrong_types
from rescorer.models import CONTEXT_CACHE_BYTES
from rescorer.models.bundle import MANIFEST, Bundle, BundleSource, read_bundle
from rescorer.models.language_model import (
    LanguageModel,
    OpenVocabularyModel,
    VectorModel,
    score_with_words,
)
from rescorer.models.network_files import CONFIG_FILE
from rescorer.models.ngram_files import place_ngram, read_ngram, read_words
from rescorer.models.ngrams import NgramModel, align_vocabularies
from rescorer.models.precision import choose_precisions
from rescorer.progress import track
from rescorer.ranking import Ranking
from rescorer.runtime import Phase, pause, phase
from rescorer.safe_input import Folder
from rescorer.scoring.batch import Batch, ScoredPart, plan, score_words
from rescorer.scoring.components import BoundOptions, PreparedList
from rescorer.scoring.options import RescoreOptions, Weighting, as_lists, as_texts
from rescorer.trie import EdgeScores, HypothesisTrie, WordEncoder
from rescorer.types import Hypothesis, NBestList, RescoredList, TextScore, Weights
from rescorer.weights import MIXTURE, check_mixture


def load_bundle_models(
    bundle: Bundle,
    device: str = "cpu",
    dtype: str = "float32",
    context_cache_bytes: int = CONTEXT_CACHE_BYTES,
) -> dict[str, LanguageModel]:
    """Load the models of a bundle and align their vocabularies; return them by name.

    Args:
        device: torch name of the device on which networks run. If there is room, the tables of n-grams are
            also placed there; see ``place_ngram``.
        dtype: precision of the networks' matrix products, see ``NeuralLanguageModel``; or ``auto`` for that
            which the bundle records, see ``choose_precisions``.
        context_cache_bytes: largest memory with which each recurrent network caches its states after
            contexts, see ``NeuralLanguageModel``.

    Raises:
        BundleError: a model cannot be read.
        ConfigError: torch does not have the device, the dtype is unknown, or ``auto`` without a record.
    """
    models: dict[str, LanguageModel] = {}
    precisions = choose_precisions(bundle, dtype, device)
    for name, entry in bundle.manifest["models"].items():
        if entry["kind"] == "ngram":
            ngram = load_ngram(bundle.files, name, entry)
            place_ngram(ngram, device)
            models[name] = ngram
            continue
        folder = bundle.files.subfolder(entry["path"].rstrip("/"))
        if entry["kind"] == "units":
            from rescorer.units.files import load_unit_model  # imports torch

            models[name] = load_unit_model(folder, name, device, precisions[name], context_cache_bytes)
        else:
            models[name] = load_network(folder, name, device, precisions[name], context_cache_bytes)
            network = models[name]
            if network.backward != (name in bundle.backward):  # since weights are checked by the manifest
                found = "backward" if network.backward else "forward"
                raise BundleError(
                    f"{bundle.folder / MANIFEST}: model {name!r} is a {found} network by its {CONFIG_FILE}, "
                    "but not by 'backward' in the manifest"
                )
    align_vocabularies(list(models.values()))
    return models


def load_ngram(folder: Folder, name: str, entry: Mapping[str, Any]) -> NgramModel:
    """Load an n-gram by its entry in the manifest. The entry of a KenLM binary also names a word list."""
    words = frozenset(read_words(folder, entry["words"])) if "words" in entry else None
    with folder.open(entry["path"]) as stream:
        ngram = read_ngram(stream, name, words, backward=entry.get("backward", False))
    if unknown := sorted(set(entry.get("slots", ())).difference(ngram.vocabulary())):
        place = f"{folder.path / MANIFEST}: model {name!r}"
        raise BundleError(f"{place}: the slot {quote(unknown[0])} is not a word of the model")
    return ngram


def load_network(
    folder: Path | Folder,
    name: str,
    device: str,
    dtype: str = "float32",
    context_cache_bytes: int = CONTEXT_CACHE_BYTES,
) -> LanguageModel:
    """Load a network. torch is imported only here, because its import is slow and n-grams do not need it."""
    from rescorer.models.kernels import torch_device
    from rescorer.models.neural import NeuralLanguageModel, load_model
    from rescorer.runtime import apply_threads

    apply_threads()
    place = torch_device(device)
    model, words = load_model(folder)
    return NeuralLanguageModel(model, words, name, place, dtype, context_cache_bytes)


Encoders = Mapping[str, WordEncoder]


class TrieScorer:
    """The language models of one bundle, by name.

    Args:
        label: the bundle's name and version, for error messages.
        encoders: the encoders of words of those rerankers that have one, by the name of the reranker.
        surface: names of the models that read texts as they are written.
    """

    def __init__(
        self,
        models: Mapping[str, LanguageModel],
        label: str,
        encoders: Encoders | None = None,
        surface: Collection[str] = (),
    ) -> None:
        self.models, self.label, self.surface = models, label, frozenset(surface)
        self.encoders: Encoders = encoders or {}

    @classmethod
    def load(
        cls,
        folder: BundleSource,
        device: str = "cpu",
        dtype: str = "float32",
        context_cache_bytes: int = CONTEXT_CACHE_BYTES,
    ) -> TrieScorer:
        """Verify a bundle and load its models; arguments and errors are those of ``load_bundle_models``."""
        bundle = read_bundle(folder)
        models = load_bundle_models(bundle, device, dtype, context_cache_bytes)
        return cls(models, bundle.label, find_encoders(bundle), bundle.surface)

    def score(
        self,
        trie: HypothesisTrie,
        only: Sequence[str] = (),
        encoders: Encoders | None = None,
        *,
        surface: bool = False,
        words: Collection[str] = (),
    ) -> dict[str, EdgeScores]:
        """Score every edge of a trie with each model that reads its texts.

        Args:
            only: names of the models to use; empty for all.
            encoders: encoders of words, by any names; the edge scores have the encodings under the same
                names.
            surface: whether the trie holds texts as they are written; see ``ScoreRequest``.
            words: names of the models in pieces of words that also return probabilities of words.

        Raises:
            ConfigError: an encoder's model has no context vectors, or none of the length that the encoder
                projects.
            ScoringError: a score is not finite.
        """
        names = self.readers(only, surface=surface)
        scores = {name: self._score(name, trie, encoders or {}, name in words) for name in names}
        for name, edge_scores in scores.items():
            values = [edge_scores.log_probs, edge_scores.of_words, *edge_scores.encodings.values()]
            values += [] if edge_scores.cached is None else [edge_scores.cached]
            if not all(np.isfinite(array).all() for array in values):
                raise ScoringError(f"model {name!r} of {self.label} returned a score that is not finite")
        return scores

    def readers(self, only: Sequence[str] = (), *, surface: bool = False) -> list[str]:
        """Return the names of the models that read texts as they are written, or canonical words.

        Args:
            only: names of the models to choose from; empty for all.
        """
        return [name for name in only or self.models if (name in self.surface) == surface]

    def _score(self, name: str, trie: HypothesisTrie, encoders: Encoders, words: bool) -> EdgeScores:
        pause()
        model = self.models[name]
        projections = {key: one.projection for key, one in encoders.items() if one.model == name}
        if not projections:
            return score_with_words(model, trie) if words else model.score(trie)
        if not isinstance(model, VectorModel):
            raise ConfigError(
                f"words are to be encoded by model {quote(name)}, an n-gram, which has no context vectors"
            )
        for projection in projections.values():
            if len(projection) != model.vector_size:
                raise ConfigError(
                    f"words are to be encoded by context vectors of length {len(projection)}, but those of "
                    f"model {quote(name)} have the length {model.vector_size}"
                )
        if words and isinstance(model, OpenVocabularyModel):
            return model.score_words(trie, projections)
        return model.score(trie, projections)


def _last_batch(scored: tuple[PreparedList, list[ScoredPart] | InvalidList]) -> Batch | None:
    """The batch that completed the scores of a list; None if it has none."""
    _, parts = scored
    return None if isinstance(parts, InvalidList) or not parts else parts[-1].batch


def find_encoders(bundle: Bundle) -> dict[str, WordEncoder]:
    """Return the encoders of words of those rerankers of a bundle that have one, by the reranker's name."""
    rerankers = bundle.rerankers.items()
    return {name: reranker.encoder for name, reranker in rerankers if reranker.encoder is not None}


MAX_BATCH_WORDS = 65_536
"""Default for the largest number of words per batch. At hidden size 200, a network needs 1 KB per word: 64
MB."""


class Rescorer:
    """Score and re-rank n-best lists with one bundle of models.

    Examples:
        >>> rescorer = Rescorer.load("models/starter/1")  # doctest: +SKIP
        >>> rescorer.rescore(lists)[0].best.text  # doctest: +SKIP
    """

    def __init__(
        self, bundle: Bundle, models: Mapping[str, LanguageModel], max_batch_words: int = MAX_BATCH_WORDS
    ) -> None:
        self.ranker = make_ranker(bundle)
        self.scorer = TrieScorer(models, bundle.label, find_encoders(bundle), bundle.surface)
        self.max_batch_words = max_batch_words

    @classmethod
    def load(
        cls,
        folder: BundleSource,
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
        with track(f"loading {bundle.label}", "models", len(bundle.model_kinds)):
            models = load_bundle_models(bundle, device, dtype, context_cache_bytes)
        return cls(bundle, models, max_batch_words)

    @property
    def bundle(self) -> Bundle:
        return self.ranker.bundle

    @property
    def models(self) -> Mapping[str, LanguageModel]:
        """The language models, by name."""
        return self.scorer.models

    def rescore(
        self,
        lists: NBestList | Sequence[NBestList],
        options: RescoreOptions | Weighting = None,
        **changes: Any,
    ) -> list[RescoredList]:
        """Re-rank lists, in input order.

        Args:
            lists: one n-best list, or several.
            options: a ``RescoreOptions``, weights alone, or the name of a set of weights of the bundle.
            **changes: fields of ``RescoreOptions`` by name, such as ``merge=True``.

        Raises:
            InvalidList: a list cannot be scored; use ``rescore_each`` to score the others.
            ConfigError: the weights do not fit the bundle, the bundle has no set of phrases with a given
                name, or the options name another model.
            LimitExceeded: a phrase is invalid, or there are too many phrases.
            TypeError: something other than lists or options was given.
        """
        answers = self.rescore_each(lists, options, **changes)
        for answer in answers:
            if isinstance(answer, InputError):
                raise answer
        return answers  # type: ignore[return-value]

    def rescore_each(
        self,
        lists: NBestList | Sequence[NBestList],
        options: RescoreOptions | Weighting = None,
        **changes: Any,
    ) -> list[RescoredList | InvalidList]:
        """Re-rank lists as ``rescore`` does, but return an error in place of a list that cannot be scored."""
        bound = self.ranker.bind(RescoreOptions.make(options, **changes))
        lists = as_lists(lists)
        wrong = dict(find_wrong_types(lists))
        rankings = iter(self.rank_each([nbest for i, nbest in enumerate(lists) if i not in wrong], bound))
        with phase(Phase.RANK):
            answers = (wrong.get(i) or next(rankings) for i in range(len(lists)))
            return [
                ranked.to_rescored_list(bound.weights, self.bundle.label)
                if isinstance(ranked, Ranking)
                else ranked
                for ranked in answers
            ]

    def rank_each(
        self, lists: Sequence[NBestList], options: BoundOptions | RescoreOptions | Weighting = None
    ) -> list[Ranking | InvalidList]:
        """Re-rank lists as ``rescore_each`` does, but return columns: writing files from objects is slow.

        Raises:
            ScoringError: models give no list a score that is finite.
        """
        lists = as_lists(lists)
        bound = options if isinstance(options, BoundOptions) else self.ranker.bind(options)
        answers: list[Ranking | InvalidList | None] = [None] * len(lists)
        valid: list[PreparedList] = []
        places: list[int] = []
        words = self.ranker.normalise_lists(lists)
        for i, nbest in enumerate(lists):
            try:
                valid.append(self.ranker.prepare(nbest, bound, words=words[i]))
                places.append(i)
            except InvalidList as error:
                answers[i] = error
        ranked = list[Ranking | InvalidList]()
        for _, of_batch in groupby(self._score_apart(valid), key=_last_batch):
            scored = [*of_batch]
            complete = [(each, parts) for each, parts in scored if not isinstance(parts, InvalidList)]
            with phase(Phase.RANK):
                found = iter(self.ranker.rank_each(complete))
            ranked += [parts if isinstance(parts, InvalidList) else next(found) for _, parts in scored]
        for i, answer in zip(places, ranked, strict=True):
            answers[i] = answer
        return answers  # type: ignore[return-value]

    def score_text(
        self,
        texts: str | Sequence[str],
        context: str = "",
        weights: RescoreOptions | Weighting = None,
    ) -> list[TextScore]:
        """Return the log-probability of each word of each text under every model and under the mixture.

        Args:
            texts: one text, or several.
            context: words before each text in the same sentence.
            weights: weights, of which only the λ of the mixture are used; None for the bundle's default.

        Raises:
            InvalidList: a text is too long.
            TypeError: something other than texts was given.
        """
        texts = as_texts(texts)
        if not isinstance(context, str):
            raise TypeError(f"context is of type {type(context).__name__}; expected a string")
        nbest = NBestList("", tuple(map(Hypothesis, texts)), context=context)
        prepared = self.ranker.prepare_texts(nbest, self.ranker.bind(weights))
        answers: dict[int, TextScore] = {}
        for parts in plan([prepared], self.max_batch_words, backward=bool(self.bundle.backward)):
            batch = self._run(Batch(parts))
            for index in range(len(parts)):
                answers |= score_words(batch.part(index), prepared, self.bundle)
        return [answers[i] for i in range(len(texts))]

    def mixture_log_probs(
        self,
        lists: Sequence[NBestList],
        mixtures: Sequence[Mapping[str, float]],
        cache: Sequence[float] = (),
        neural_cache: Sequence[tuple[float, float]] = (),
    ) -> np.ndarray:
        """Mix the models' scores word by word, once for each of G choices of interpolation weights.

        Args:
            lists: lists, which have N hypotheses in total.
            mixtures: G interpolation weights by model name, each with sum 1.
            cache: G interpolation weights λ of the cache of words; empty: none.
            neural_cache: G pairs of λ and θ of the neural cache; empty: none.

        Returns:
            (G, N) float64, log-probabilities of the mixtures in nats.

        Raises:
            ConfigError: a mixture names a model that the bundle lacks, or its λ do not sum to 1.
            InvalidList: a list cannot be scored.
        """
        lists = as_lists(lists)
        for mixture in mixtures:
            check_mixture(mixture, list(self.bundle.model_kinds), self.bundle.backward)
        caches = cache or [0.0] * len(mixtures)
        neural_caches = neural_cache or [(0.0, Weights().flatness)] * len(mixtures)
        choices = [
            Weights(mixture=mixture, cache=share, neural_cache=neural, flatness=flatness)
            for mixture, share, (neural, flatness) in zip(mixtures, caches, neural_caches, strict=True)
        ]
        log_probs = np.zeros((len(choices), sum(len(nbest.hypotheses) for nbest in lists)))
        # of a choice, only θ changes the scores of models
        flatness_of = [one.flatness if one.neural_cache else None for one in choices]
        for flatness in dict.fromkeys(flatness_of):
            rows = [row for row, of in enumerate(flatness_of) if of == flatness]
            self._mix([choices[row] for row in rows], lists, rows, log_probs)
        return log_probs

    def _mix(
        self,
        choices: Sequence[Weights],
        lists: Sequence[NBestList],
        rows: Sequence[int],
        log_probs: np.ndarray,
    ) -> None:
        """Compute the mixtures of ``choices``, all with the same θ, each into its row of ``log_probs``."""
        bound = [self.ranker.bind_weights(weights, RescoreOptions()) for weights in choices]
        widest = max(bound, key=lambda one: (one.weights.neural_cache, one.weights.cache))
        # without neural caches, scores are the same as in rescoring
        models = {name: None for one in choices for name in one.mixture if one.neural_cache}
        models |= {self.bundle.ngram: None} if models else {}  # the n-gram says which words are unknown
        mixed = {name for one in choices for name, share in one.mixture.items() if share}
        first = 0
        prepared = [self.ranker.prepare(nbest, widest) for nbest in lists]
        words = self.bundle.open_vocabulary & mixed
        prepared = [replace(each, word_models=words) for each in prepared]
        for each, parts in self._score(prepared, tuple(models)):
            last = first + len(each.words)
            for row, options in zip(rows, bound, strict=True):
                log_probs[row, first:last] = self.ranker.columns(each, parts, options)[MIXTURE]
            first = last

    def encode(self, lists: Sequence[NBestList], encoder: WordEncoder) -> list[np.ndarray]:
        """Encode the words of every hypothesis as a reranker would, but without subtracting the mean of the
        list.

        Returns:
            (H, K) float64 for each list.

        Raises:
            ConfigError: the bundle does not have the encoder's model, or the model's context vectors do not
                have the length that the encoder projects.
            InvalidList: a list cannot be scored.
        """
        if encoder.model not in self.bundle.model_kinds:  # self.models may load them
            known = [*self.bundle.model_kinds]
            raise ConfigError(f"words are to be encoded by {quote(encoder.model)}; the bundle has {known}")
        bound = self.ranker.bind_weights(Weights(), RescoreOptions())
        prepared = [self.ranker.prepare(nbest, bound) for nbest in lists]
        encodings = []
        for each, parts in self._score(prepared, (encoder.model,), {"": encoder}):
            rows = np.zeros((len(each.words), encoder.projection.shape[1]))
            for part in parts:
                scores = {**part.batch.scores, **part.batch.surface_scores}[encoder.model]
                rows[np.array(part.indices)] = scores.encodings[""][part.rows]
            encodings.append(rows)
        return encodings

    def _score_apart(
        self, lists: Sequence[PreparedList]
    ) -> Iterator[tuple[PreparedList, list[ScoredPart] | InvalidList]]:
        """Score lists as ``_score`` does; after a batch that fails, score lists one by one.

        A damaged model may overflow at a single word, which must not cost other lists their answers.
        """
        n_scored = 0
        try:
            for each in self._score(lists):
                yield each
                n_scored += 1
        except ScoringError:
            rest = lists[n_scored:]
            alone = [*map(self._score_alone, rest)]
            if not n_scored and all(isinstance(one, InvalidList) for one in alone):
                raise
            yield from zip(rest, alone, strict=True)

    def _score_alone(self, prepared: PreparedList) -> list[ScoredPart] | InvalidList:
        try:
            ((_, parts),) = self._score([prepared])
        except ScoringError as error:
            return InvalidList(str(error), list_id=prepared.nbest.id)
        return parts

    def _score(
        self,
        lists: Sequence[PreparedList],
        models: Sequence[str] = (),
        encoders: Mapping[str, WordEncoder] | None = None,
    ) -> Iterator[tuple[PreparedList, list[ScoredPart]]]:
        """Score lists batch by batch; yield every list, in order, as soon as all of it is scored."""
        scored, n_scored = list[ScoredPart](), 0
        n_words = sum(int(each.word_counts.sum()) for each in lists)
        what = "scoring" if n_words > self.max_batch_words else ""  # a single batch has no steps to show
        with track(what, "hypotheses", sum(len(each.words) for each in lists)) as task:
            for parts in plan(lists, self.max_batch_words, backward=bool(self.bundle.backward)):
                batch = self._run(Batch(parts, models, encoders))
                for index, part in enumerate(parts):
                    scored.append(batch.part(index))
                    n_scored += len(part.indices)
                    if n_scored == len(part.prepared.words):
                        yield part.prepared, scored
                        scored, n_scored = [], 0
                task.advance(sum(len(part.indices) for part in parts))

    def _run(self, batch: Batch) -> Batch:
        """Score what a batch asks for, until it asks for nothing more."""
        request = batch.advance()
        while request is not None:
            scores = self.scorer.score(
                request.trie,
                request.models,
                request.encoders,
                surface=request.surface,
                words=request.words,
            )
            request = batch.advance(scores)
        return batch
