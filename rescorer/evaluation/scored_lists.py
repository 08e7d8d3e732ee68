"""Score lists and texts once by all models, so that systems can be compared by applying other weights.

A cache on disk keeps the scores of the models, so that a second tuning need not run them. Each of its files
holds the scores of one batch of hypotheses, word by word. A mixture can be computed from them under any λ.
The name of a file is a hash of everything that the scores depend on: the words and contexts of the batch, as
its models read them, the files of the models, the device and the precision. If a file cannot be used, its
scores are computed again.
"""

from __future__ import annotations

import hashlib
import math
import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from rescorer.decision import expected_errors, fewest_errors_first
from rescorer.errors import FormatError, InvalidList, pluralise
from rescorer.evaluation.error_rate import DEFAULT_COUNTING, CountingSettings
from rescorer.evaluation.list_errors import (
    ALL,
    EvaluatedList,
    Selection,
    evaluate_list,
    find_first_pass_order,
    find_first_pass_totals,
)
from rescorer.list_checks import join_words, normalise_previous
from rescorer.models.bundle import PHRASES, WEIGHTS, Bundle, BundleSource, read_bundle
from rescorer.models.language_model import LanguageModel
from rescorer.models.precision import choose_precisions
from rescorer.pipeline import Encoders, Rescorer, TrieScorer, find_encoders, load_bundle_models
from rescorer.progress import track
from rescorer.ranking import Ranking, posteriors
from rescorer.runtime import user_cache_folder
from rescorer.scoring.options import RescoreOptions
from rescorer.trie import EdgeScores, HypothesisTrie, Words
from rescorer.types import LENGTH, MAXIMUM, NBestList, RescoredList, TextScore, Weights
from rescorer.weights import totals


def collect_components(rescored: RescoredList) -> dict[str, np.ndarray]:
    """Return the components of a rescored list by name, each (H,) float64 in input order.

    No hypotheses of the list may have been merged or dropped.
    """
    hypotheses = sorted(rescored.hypotheses, key=lambda hypothesis: hypothesis.original_rank)
    return {
        name: np.array([hypothesis.components[name] for hypothesis in hypotheses])
        for name in hypotheses[0].components
    }


@dataclass(frozen=True, slots=True)
class TextTotals:
    """Sums of log-probabilities over texts. They can be added with ``+``, which perplexities cannot.

    Every word and every ``</s>`` is a token. The vocabulary is the union of all models' vocabularies, so that
    their perplexities can be compared. Words outside of it count as one more word, ``<unk>``.
    """

    n_sentences: int = 0
    n_tokens: int = 0
    n_unknown: int = 0
    """Words that the n-gram model of the bundle does not know."""
    log_probs: Mapping[str, float] = field(default_factory=dict)
    """Sum of ln P over all tokens, by model. Models that could not read one of the texts are left out."""

    @classmethod
    def from_score(cls, score: TextScore) -> TextTotals:
        log_probs = {name: math.fsum(values) for name, values in score.log_probs.items()}
        return cls(1, len(score.words) + 1, sum(score.unknown), log_probs)

    def __add__(self, other: TextTotals) -> TextTotals:
        if not (self.n_sentences and other.n_sentences):
            return self if self.n_sentences else other
        return TextTotals(
            self.n_sentences + other.n_sentences,
            self.n_tokens + other.n_tokens,
            self.n_unknown + other.n_unknown,
            {
                name: value + other.log_probs[name]
                for name, value in self.log_probs.items()
                if name in other.log_probs
            },
        )

    def perplexity(self, model: str) -> float:
        """Compute exp of the mean -ln P per token; raise FormatError if there are no tokens."""
        if not self.n_tokens:
            raise FormatError("no text to compute the perplexity of")
        return to_perplexity(self.log_probs[model], self.n_tokens)

    def to_dict(self) -> dict[str, Any]:
        return {
            "sentences": self.n_sentences,
            "tokens": self.n_tokens,
            "unknown_words": self.n_unknown,
            "log_prob": {name: round(value, 4) for name, value in self.log_probs.items()},
            "perplexity": {
                name: round(value, 3) if math.isfinite(value := self.perplexity(name)) else None
                for name in self.log_probs
            },
        }


def to_perplexity(log_prob: float, n_tokens: int) -> float:
    """Compute exp of the mean -ln P per token; infinity if that is larger than any float."""
    try:
        return math.exp(-log_prob / n_tokens)
    except OverflowError:
        return math.inf


def sum_scores(scores: Iterable[TextScore]) -> TextTotals:
    """Add up the scores of texts."""
    return sum(map(TextTotals.from_score, scores), TextTotals())


SCHEMA = 1
MAX_HEADER_BYTES = 1 << 16
MAX_CACHE_BYTES = 4 << 30
"""Largest size of the cache. If its files are larger together, the least recently used ones are deleted."""
SUFFIX = ".safetensors"
IRRELEVANT = (f"{WEIGHTS}/", f"{PHRASES}/")
"""Folders of a bundle that do not influence the scores of its models."""

Arrays = Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]
"""Type and shape of arrays by name."""


def find_cache_folder() -> Path:
    """Return the default folder: ``rescorer/scores`` in the user's cache folder, as XDG specifies it."""
    return user_cache_folder("scores")


def load_cached_rescorer(
    bundle_folder: BundleSource,
    device: str,
    cache: Path,
    on_note: Callable[[str], None],
    dtype: str = "float32",
) -> Rescorer:
    """Load a bundle with a cache of scores; the models are loaded only if a score is missing.

    Args:
        cache: folder of the cache; created if it does not exist.
        on_note: called with a line about each file of the cache that cannot be read or written.
        dtype: precision of matrix products, as in ``load_bundle_models``.

    Raises:
        BundleError: the bundle cannot be used.
    """
    bundle = read_bundle(bundle_folder)
    models = _LazyModels(bundle, device, dtype)
    rescorer = Rescorer(bundle, models)
    rescorer.scorer = CachingTrieScorer(models, bundle, device, cache, on_note, dtype)
    return rescorer


class _LazyModels(Mapping[str, LanguageModel]):
    """The models of a bundle; all are loaded when the first one is needed."""

    def __init__(self, bundle: Bundle, device: str, dtype: str) -> None:
        self._bundle, self._device, self._dtype = bundle, device, dtype

    @cached_property
    def _models(self) -> dict[str, LanguageModel]:
        with track(f"loading {self._bundle.label}", "models", len(self)):
            return load_bundle_models(self._bundle, self._device, self._dtype)

    def __getitem__(self, name: str) -> LanguageModel:
        return self._models[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._bundle.model_kinds)

    def __len__(self) -> int:
        return len(self._bundle.model_kinds)


class CachingTrieScorer(TrieScorer):
    """Scores tries with the models of a bundle, or reads the scores from files of an earlier run.

    Args:
        folder: folder of the files.
        on_note: called with a line about each file that cannot be read or written.
    """

    def __init__(
        self,
        models: Mapping[str, LanguageModel],
        bundle: Bundle,
        device: str,
        folder: Path,
        on_note: Callable[[str], None],
        dtype: str = "float32",
    ) -> None:
        super().__init__(models, bundle.label, find_encoders(bundle), bundle.surface)
        self._folder, self._on_note, self._backward = folder, on_note, bundle.backward
        self._remembers = bundle.remembers
        files, models = bundle.manifest["files"].items(), bundle.manifest["models"].items()
        hashes = sorted((name, digest) for name, digest in files if not name.startswith(IRRELEVANT))
        identity = f"{SCHEMA} {device} {sorted(models)} {hashes}"  # all on which scores depend but words
        precisions = choose_precisions(bundle, dtype, device)
        if others := sorted((name, chosen) for name, chosen in precisions.items() if chosen != "float32"):
            identity += f" {others}"  # names of files of float32 stay
        self._identity = hashlib.sha256(identity.encode()).digest()
        self._can_write = True

    def score(
        self,
        trie: HypothesisTrie,
        only: Sequence[str] = (),
        encoders: Encoders | None = None,
        *,
        surface: bool = False,
        words: Collection[str] = (),
    ) -> dict[str, EdgeScores]:
        names, encoders = self.readers(only, surface=surface), encoders or {}
        if not names:
            return {}
        words = frozenset(words).intersection(names)
        path = self._folder / f"{self._hash(trie, names, encoders, words)}{SUFFIX}"
        arrays = describe_arrays(names, trie, encoders, self._backward, self._remembers)
        arrays = {**arrays, **{f"words/{name}": arrays[f"log_probs/{name}"] for name in words}}
        scores = self._read(path, names, arrays)
        if scores is None:
            scores = super().score(trie, only, encoders, surface=surface, words=words)
            self._write(path, scores)
        return scores

    def _hash(
        self, trie: HypothesisTrie, names: Sequence[str], encoders: Encoders, words: Collection[str]
    ) -> str:
        digest = hashlib.sha256(self._identity)
        for text in (*names, "", *trie.words):
            digest.update(f"{len(text)} {text}".encode())
        arrays = [trie.parent, trie.node_word, trie.end_nodes, *trie.contexts]
        if encoders:  # names of files without encodings stay
            digest.update(repr([(name, encoder.model) for name, encoder in encoders.items()]).encode())
            arrays += [trie.hypothesis_node, *(encoder.projection for encoder in encoders.values())]
        if any(trie.flatness):  # likewise
            digest.update(repr([trie.flatness, trie.confidences]).encode())
        if words:  # likewise
            digest.update(repr(sorted(words)).encode())
        for values in arrays:
            digest.update(f"{values.dtype} {values.shape}".encode() + values.tobytes())
        return digest.hexdigest()

    def _read(self, path: Path, names: Sequence[str], arrays: Arrays) -> dict[str, EdgeScores] | None:
        from safetensors import SafetensorError
        from safetensors.numpy import load

        size = sum(dtype.itemsize * math.prod(shape) for dtype, shape in arrays.values())
        try:
            with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as stream:
                status = os.fstat(stream.fileno())
                if not stat.S_ISREG(status.st_mode) or not size <= status.st_size <= size + MAX_HEADER_BYTES:
                    raise ValueError(f"{status.st_size:,} bytes; expected {size:,} and a header")
                tensors = load(stream.read(size + MAX_HEADER_BYTES))
            with suppress(OSError):  # the cache may be shared and read-only
                os.utime(path)  # recently used files are deleted last
            for key, (dtype, shape) in arrays.items():
                values = tensors[key]
                if values.dtype != dtype or values.shape != shape:
                    found = f"{values.dtype} {values.shape}"
                    raise ValueError(f"{key}: {found}; expected {dtype} {shape}")
                if not np.isfinite(values).all():
                    raise ValueError(f"{key}: a value is not finite")
            return {name: unpack_scores(tensors, name, name in self._backward) for name in names}
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            self._on_note(f"{path}: cannot be used and is computed again: {error}")
            return None

    def _write(self, path: Path, scores: Mapping[str, EdgeScores]) -> None:
        """Write a file in one step. If the folder is not writable, report this once, and write no more
        files."""
        from safetensors.numpy import save

        if not self._can_write:
            return
        tensors: dict[str, np.ndarray] = {}
        for name, part in scores.items():
            tensors |= {f"log_probs/{name}": part.log_probs, f"unknown/{name}": part.unknown}
            tensors |= {f"encoding/{name}/{key}": values for key, values in part.encodings.items()}
            if part.cached is not None:
                tensors[f"cached/{name}"] = part.cached
            if part.word_log_probs is not None:
                tensors[f"words/{name}"] = part.word_log_probs
        partial = path.with_suffix(f".{os.getpid()}.partial")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            partial.write_bytes(save({name: np.ascontiguousarray(part) for name, part in tensors.items()}))
            os.replace(partial, path)
            delete_oldest(self._folder)
        except OSError as error:
            self._can_write = False
            with suppress(OSError):
                partial.unlink()
            self._on_note(f"{self._folder}: scores cannot be cached: {error.strerror}")


def delete_oldest(folder: Path, max_bytes: int = MAX_CACHE_BYTES) -> None:
    """Delete the least recently used files until the others fit."""
    files = []
    for path in folder.glob(f"*{SUFFIX}"):
        status = path.lstat()
        files.append((status.st_mtime, status.st_size, path))
    total = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if total <= max_bytes:
            return
        path.unlink(missing_ok=True)
        total -= size


def describe_arrays(
    names: Sequence[str],
    trie: HypothesisTrie,
    encoders: Encoders,
    backward: Collection[str] = (),
    remembers: Collection[str] = (),
) -> Arrays:
    """Return the type and shape that every array of a file must have, by name, such as ``log_probs/ngram``.

    Args:
        names: names of the models, none of which contains a slash.
        backward: names of the backward models.
        remembers: names of the models that can have a neural cache.
    """
    arrays: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
    for name in names:
        n_edges = trie.in_direction(name in backward).n_edges
        arrays[f"log_probs/{name}"] = np.dtype(np.float64), (n_edges,)
        arrays[f"unknown/{name}"] = np.dtype(np.bool_), (n_edges,)
        if any(trie.flatness) and name in remembers:
            arrays[f"cached/{name}"] = np.dtype(np.float64), (n_edges,)
    for key, encoder in encoders.items():
        if encoder.model in names:
            shape = len(trie.hypothesis_node), encoder.projection.shape[1]
            arrays[f"encoding/{encoder.model}/{key}"] = np.dtype(np.float64), shape
    return arrays


def unpack_scores(tensors: Mapping[str, np.ndarray], name: str, backward: bool = False) -> EdgeScores:
    """Read the scores of a model from the arrays of a file."""
    prefix = f"encoding/{name}/"
    encodings = {key.removeprefix(prefix): tensors[key] for key in tensors if key.startswith(prefix)}
    log_probs, unknown = tensors[f"log_probs/{name}"], tensors[f"unknown/{name}"]
    others = tensors.get(f"cached/{name}"), tensors.get(f"words/{name}")
    return EdgeScores(log_probs, unknown, encodings, backward, *others)


@dataclass(frozen=True)
class MeasuredList:
    """A list with the errors and the components (scores) of its hypotheses, in input order."""

    nbest: NBestList
    evaluated: EvaluatedList
    reference: str
    components: Mapping[str, np.ndarray]
    """(H,) float64 by name."""
    words: Sequence[Words]
    """Words of each hypothesis in which hypotheses are compared and errors are counted."""
    first_pass_order: Sequence[int]
    """Indices of the hypotheses in the order of the recogniser, best first."""
    first_pass_totals: np.ndarray | None
    """(H,) scores by which the recogniser ranked the hypotheses; None if only their order is known."""
    selection: Selection
    """Choice of the hypotheses that take part in rankings."""
    context: Words = ()
    """The words that were said before, as models read them."""
    words_read: Sequence[Words] = ()
    """Words of each hypothesis that models read; empty if these are the same as ``words``."""
    counting: CountingSettings = DEFAULT_COUNTING
    """Settings by which the errors were counted."""
    degradation: str = ""
    """See ``Ranking.degradation``."""

    @property
    def read(self) -> Sequence[Words]:
        """Words of each hypothesis that models read; ``words`` if ``words_read`` is empty."""
        return self.words_read or self.words

    @property
    def readings(self) -> tuple[Words, ...]:
        """All readings of the reference as written; there are several if the reference has alternatives."""
        return self.counting.expand(self.reference, self.nbest.id)

    @property
    def first_pass_index(self) -> int:
        """Index of the hypothesis that the recogniser ranked first."""
        return self.first_pass_order[0]

    @property
    def n_recognised(self) -> int:
        """Number of hypotheses of the recogniser, which come before generated hypotheses."""
        return sum(hypothesis.generated is None for hypothesis in self.nbest.hypotheses)

    @property
    def has_generated(self) -> bool:
        """Whether hypotheses were generated for the list."""
        return self.nbest.hypotheses[-1].generated is not None

    @property
    def recognised(self) -> MeasuredList:
        """The list without generated hypotheses; the others keep their positions."""
        if not self.has_generated:
            return self
        n, first = self.n_recognised, self.first_pass_totals
        streams = {name: values[:n] for name, values in self.nbest.streams.items()}
        return replace(
            self,
            nbest=replace(self.nbest, hypotheses=self.nbest.hypotheses[:n], streams=streams),
            evaluated=replace(self.evaluated, hypotheses=self.evaluated.hypotheses[:n]),
            components={name: values[:n] for name, values in self.components.items()},
            words=self.words[:n],
            words_read=self.words_read[:n],
            first_pass_order=self.first_pass_order[:n],
            first_pass_totals=None if first is None else first[:n],
        )


def score_lists(
    rescorer: Rescorer,
    lists: Sequence[NBestList],
    weights: Weights | None = None,
    first_pass_weights: Weights | None = None,
    counting: CountingSettings = DEFAULT_COUNTING,
    selection: Selection = ALL,
    *,
    generate: bool = False,
) -> tuple[list[MeasuredList], list[InvalidList]]:
    """Score lists that have references, and count the errors of their hypotheses.

    Args:
        weights: weights from which the λ of the mixture are taken; None for the bundle's default.
        first_pass_weights: weights that define the first pass; None for the order of the list.
        counting: settings by which errors are counted.
        selection: choice of the hypotheses that will take part in rankings.
        generate: add hypotheses in which phrases replace words that sound like them.

    Returns:
        The lists, and an error for each list that cannot be scored or evaluated.
    """
    rankings = rescorer.rank_each(lists, RescoreOptions(weights, MAXIMUM, generate=generate))
    extended = (
        answer.nbest if isinstance(answer, Ranking) else nbest
        for nbest, answer in zip(lists, rankings, strict=True)
    )
    components = (answer.components if isinstance(answer, Ranking) else answer for answer in rankings)
    normalisers = (ranker := rescorer.ranker).text_normaliser.normalise, ranker.bundle.normaliser.normalise
    scored, errors = _count_lists(normalisers, extended, components, first_pass_weights, counting, selection)
    too_long = {id(answer.nbest) for answer in rankings if isinstance(answer, Ranking) and answer.degradation}
    scored = [replace(item, degradation=LENGTH) if id(item.nbest) in too_long else item for item in scored]
    return scored, errors


def describe_too_long(scored: Sequence[MeasuredList], bundle: Bundle) -> str:
    """Say how many lists are too long for a model of a bundle, without a full stop; empty if none is."""
    n_long = sum(item.degradation == LENGTH for item in scored)
    if not n_long:
        return ""
    return (
        f"{n_long:,} of {pluralise(len(scored), 'list')} are too long for a language model, whose scores are "
        f"0 there ({bundle.describe_lengths()})"
    )


def count_lists(
    normalise: Callable[[str], Words],
    lists: Sequence[NBestList],
    first_pass_weights: Weights | None = None,
    counting: CountingSettings = DEFAULT_COUNTING,
    selection: Selection = ALL,
) -> tuple[list[MeasuredList], list[InvalidList]]:
    """Count errors as ``score_lists`` does, but run no models: the only components are the lists' streams."""
    components = (
        {name: np.array(values, dtype=np.float64) for name, values in nbest.streams.items()}
        for nbest in lists
    )
    return _count_lists((normalise, normalise), lists, components, first_pass_weights, counting, selection)


def _count_lists(
    normalisers: tuple[Callable[[str], Words], Callable[[str], Words]],
    lists: Iterable[NBestList],
    components: Iterable[Mapping[str, np.ndarray] | InvalidList],
    first_pass_weights: Weights | None,
    counting: CountingSettings,
    selection: Selection,
) -> tuple[list[MeasuredList], list[InvalidList]]:
    """Count errors in the words of the first normaliser; the second one gives the words that models read."""
    normalise, read = normalisers
    scored: list[MeasuredList] = []
    errors: list[InvalidList] = []
    for nbest, scores in zip(lists, components, strict=True):
        if isinstance(scores, InvalidList):
            errors.append(scores)
            continue
        try:
            evaluated = evaluate_list(nbest, normalise, first_pass_weights, counting, read)
            words, words_read = (
                tuple(map(words_of, (hypothesis.text for hypothesis in nbest.hypotheses)))
                for words_of in normalisers
            )
            order = find_first_pass_order(nbest, read, first_pass_weights)
            first_pass_totals = None
            with suppress(InvalidList):  # infinite scores of the only stream matter nowhere else
                first_pass_totals = find_first_pass_totals(nbest, words_read, first_pass_weights)
        except InvalidList as error:
            errors.append(error)
            continue
        said = (spoken.words for spoken in normalise_previous(nbest.previous, read))
        scored.append(
            MeasuredList(
                nbest,
                evaluated,
                nbest.reference or "",
                scores,
                words,
                order,
                first_pass_totals,
                selection,
                join_words(said, read(nbest.context)),
                words_read,
                counting,
            )
        )
    return scored, errors


def score_references(
    rescorer: Rescorer, scored: Sequence[MeasuredList], weights: Weights | None = None
) -> list[TextScore]:
    """Score the first reading of each reference with all models."""
    texts = [" ".join(item.readings[0]) for item in scored]
    return rescorer.score_text(texts, weights=weights)


def order_by_weights(scored: MeasuredList, weights: Weights) -> list[int]:
    """Return the positions of the selected hypotheses in the order of their totals under ``weights``."""
    return scored.selection.order(scored.words, totals(scored.components, weights))[0]


def order_by_expected_errors(scored: MeasuredList, weights: Weights) -> list[int]:
    """Return the positions of the selected hypotheses in the order of their expected errors.

    Errors are in the unit in which they are counted. The posteriors are those under ``weights`` at the
    temperature of their decision rule.

    Raises:
        LimitExceeded: the hypotheses of the list are too many, or too long, to be compared.
    """
    order, total = scored.selection.order(scored.words, totals(scored.components, weights))
    positions = sorted(order)
    kept = total[positions]
    beliefs = posteriors(kept, weights.decision.temperature)
    errors = expected_errors([scored.words[i] for i in positions], beliefs, scored.evaluated.unit)
    return [positions[k] for k in fewest_errors_first(errors, kept)]


def order_by_decision(scored: MeasuredList, weights: Weights) -> list[int]:
    """Return the positions of the selected hypotheses in the order of the decision rule of ``weights``.

    Raises:
        LimitExceeded: as in ``order_by_expected_errors``.
    """
    if weights.decision.kind == "minimum_bayes_risk":
        return order_by_expected_errors(scored, weights)
    return order_by_weights(scored, weights)


def order_by_first_pass(scored: MeasuredList) -> list[int]:
    """Return all positions of a list in the order of the recogniser."""
    return list(scored.first_pass_order)


def order_selection_by_first_pass(scored: MeasuredList, selection: Selection | None = None) -> list[int]:
    """Return the positions of the selected hypotheses in the order of the recogniser.

    If equal hypotheses are merged, and the scores of the first pass are known, their merged scores decide.

    Args:
        selection: choice of the hypotheses that take part; None for that of the list.
    """
    selection = scored.selection if selection is None else selection
    scores = scored.first_pass_totals
    if selection.merge and scores is not None:
        return selection.order(scored.words, scores)[0]
    kept = set(selection.order(scored.words, np.zeros(len(scored.words)), keep_order=True)[0])
    return [i for i in scored.first_pass_order if i in kept]


def order_by_file(scored: MeasuredList) -> list[int]:
    """Return the positions of the selected hypotheses in input order; with merging, in first-pass order."""
    if scored.selection.merge:
        return order_selection_by_first_pass(scored)
    return scored.selection.order(scored.words, np.zeros(len(scored.words)), keep_order=True)[0]


def order_by_errors(scored: MeasuredList) -> list[int]:
    """Return all positions of a list in the order of an oracle, the fewest errors first."""
    errors = [counts.errors for counts in scored.evaluated.hypotheses]
    return sorted(range(len(errors)), key=errors.__getitem__)


def rerank(scored: MeasuredList, weights: Weights) -> EvaluatedList:
    """Return the errors of a list's selected hypotheses in the order of their totals under ``weights``."""
    return reorder(scored.evaluated, order_by_weights(scored, weights))


def rank_by_first_pass(scored: MeasuredList) -> EvaluatedList:
    """Return the errors of a list's hypotheses in the order of the recogniser."""
    return reorder(scored.evaluated, order_by_first_pass(scored))


def reorder(evaluated: EvaluatedList, order: Sequence[int]) -> EvaluatedList:
    """Return the errors of the hypotheses at these positions, in the order of the positions."""
    return replace(evaluated, hypotheses=tuple(evaluated.hypotheses[i] for i in order))
