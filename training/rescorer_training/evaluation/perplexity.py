"""Perplexity of models and their mixtures on a text, under several treatments of unknown words.

Models come from a bundle, or are single n-gram models and networks, in any combination. They are aligned over
the union of their vocabularies. Log-probabilities are computed over the same tries as in rescoring. Two
perplexities are comparable only if tokens, vocabulary and the treatment of unknown words are the same.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rescorer.errors import BundleError, ConfigError, FormatError, ScoringError
from rescorer.evaluation.scored_lists import to_perplexity
from rescorer.models.arpa import LOG_ZERO
from rescorer.models.bundle import read_bundle
from rescorer.models.language_model import LanguageModel, OpenVocabularyModel, mix, score_with_words
from rescorer.models.network_files import TOKENIZER_FILE
from rescorer.models.ngram_files import contains_words, read_ngram, read_words
from rescorer.models.ngrams import NgramModel, align_vocabularies
from rescorer.pipeline import MAX_BATCH_WORDS, load_bundle_models, load_network
from rescorer.progress import ProgressTask, track
from rescorer.safe_input import Folder
from rescorer.scoring.batch import plan_batches
from rescorer.text import Normaliser
from rescorer.trie import Words, build_trie
from rescorer.weights import MIXTURE, check_mixture
from rescorer_training.corpus import UNITS_FOLDER, common_normaliser, is_backward, recorded_normalisers
from rescorer_training.pipes import check_no_pipe

TOLERANCE = 1e-6
"""Fitting a mixture ends when an iteration improves the mean log-likelihood by less than this, in nats."""
MAX_ITERATIONS = 200


def fit_mixture(log_probs: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Return the interpolation weights λ that maximise Σ_t ln Σ_m λ_m · P_m(t) (Jelinek & Mercer 1980).

    The objective is concave, so the result does not depend on the starting point.

    Args:
        log_probs: for each model, (T,) ln P of every held-out token.
    """
    columns = np.stack(list(log_probs.values()))  # (M, T)
    highest = columns.max(axis=0)
    relative = np.exp(columns - highest)  # relative to the best model of each token, so nothing underflows
    shares = np.full(len(columns), 1.0 / len(columns))
    previous = -np.inf
    for _ in range(MAX_ITERATIONS):
        mixed = shares @ relative  # (T,)
        likelihood = float(np.mean(np.log(mixed) + highest))
        if likelihood - previous < TOLERANCE:
            break
        previous = likelihood
        shares = shares * (relative / mixed).mean(axis=1)
    return dict(zip(log_probs, (shares / shares.sum()).tolist(), strict=True))


@dataclass(frozen=True)
class ModelSet:
    """Models with aligned vocabularies, by name, and their common normaliser."""

    models: Mapping[str, LanguageModel]
    normaliser: Normaliser
    shares: Mapping[str, float]
    """Interpolation weight λ of each model in the word-level mixture; empty for a single model and for both
    directions."""


def load_models(
    bundle: Path | None,
    ngrams: Sequence[Path] = (),
    neurals: Sequence[Path] = (),
    *,
    normaliser: Normaliser | None = None,
    shares: Mapping[str, float] | None = None,
    device: str = "cpu",
    with_units: bool = False,
) -> ModelSet:
    """Load models and align their vocabularies, so that unknown words are treated as in a bundle.

    Args:
        ngrams: ARPA files or KenLM binaries, which are named ngram, ngram2, …
        neurals: folders of trained networks or of their training runs, which are named neural, neural2, …;
            runs may be in pieces of words.
        normaliser: normaliser of the texts. None for the one recorded with the models, or else the default.
        shares: interpolation weight λ by model name. If None, they are the bundle's weights if all models
            come from the bundle, and equal weights otherwise. Models of both directions are not mixed.
        with_units: whether models in pieces of words that score words are among them.

    Raises:
        ConfigError: no model is given, the shares do not match the models, the models were trained with
            different normalisers and none is given, or a network is in pieces of words without
            ``with_units``.
        BundleError: a model cannot be read.
    """
    loaded = read_bundle(bundle) if bundle else None
    if normaliser is None:
        recorded = {bundle: loaded.normaliser} if bundle and loaded else {}
        recorded |= recorded_normalisers([*ngrams, *map(resolve_model_folder, neurals)])
        normaliser = common_normaliser(recorded) or Normaliser()
    models = load_bundle_models(loaded, device) if loaded else {}
    for name in loaded.open_vocabulary if loaded else ():
        if not (with_units and scores_words(models[name]) and loaded and name not in loaded.unmixed):
            del models[name]
    for path in ngrams:
        name = choose_name("ngram", models)
        models[name] = open_ngram(path, name)
    for folder in neurals:
        name = choose_name("neural", models)
        models[name] = open_network(folder, name, device, with_units=with_units)
    if not models:
        raise ConfigError("no model given: add --bundle, --ngram or --neural")
    align_vocabularies(list(models.values()))
    chosen: Mapping[str, float] = {name: 1 / len(models) for name in models}
    backward = [name for name, model in models.items() if model.backward]
    if shares:
        check_mixture(shares, list(models), backward)
        chosen = shares
    elif 0 < len(backward) < len(models):
        chosen = {}
    elif loaded and models.keys() <= loaded.model_kinds.keys():
        chosen = loaded.weights["default"].mixture
    chosen = chosen if len(models) > 1 else {}
    return ModelSet(models, normaliser, chosen)


def open_network(folder: Path, name: str, device: str, *, with_units: bool = False) -> LanguageModel:
    """Load a network from its folder or from that of its run.

    Args:
        with_units: whether it may be one in pieces of words; a run has such a model in its folder ``units``.

    Raises:
        BundleError: a file is missing or damaged.
        ConfigError: it is in pieces of words, and may not be, or has not been written yet.
    """
    pieces = find_pieces(folder)
    if pieces is None:
        return load_network(resolve_model_folder(folder), name, device)
    from rescorer.units.files import load_unit_model

    if not with_units:
        raise ConfigError(
            f"{folder}: was trained in pieces of words, which this command does not read; measure it with "
            "`rescorer-train perplexity`, or give a network over words"
        )
    if not pieces.is_dir():
        raise ConfigError(
            f"{folder}: its training in pieces of words has not ended; continue it with --resume, or write "
            f"the model so far: rescorer-train import rescorer {pieces.parent} -o {pieces} --validation TEXT"
        )
    return load_unit_model(pieces, name, device)


def find_pieces(folder: Path) -> Path | None:
    """Return the folder of a model in pieces of words, which may be missing; None for networks over words.

    Args:
        folder: the folder of a run, of its best network, or of the model.
    """
    run = folder.parent if folder.name == "best" else folder
    if not (run / TOKENIZER_FILE).exists():
        return None
    return run / UNITS_FOLDER if (run / "best").is_dir() else run


def scores_words(model: LanguageModel) -> bool:
    """Whether a model has probabilities of words: pieces of words may not say where words end."""
    return not isinstance(model, OpenVocabularyModel) or model.scores_words


def choose_name(kind: str, taken: Collection[str]) -> str:
    """Return ``kind``, or the first of ``kind2``, ``kind3``, … that is not taken."""
    names = [kind, *(f"{kind}{i}" for i in range(2, len(taken) + 2))]
    return next(name for name in names if name not in taken)


def open_ngram(path: Path, name: str = "ngram") -> NgramModel:
    """Open an n-gram model.

    A KenLM binary does not contain its words. ``rescorer-train ngram`` writes them to a file next to the
    binary.

    Raises:
        BundleError: the file, the word list of a binary, or the record of its direction cannot be read.
        ConfigError: the file is a pipe.
    """
    check_no_pipe(path)
    words = None if contains_words(path) else _read_binary_words(path)
    return read_ngram(path, name, words, backward=is_backward(path))


def _read_binary_words(path: Path) -> frozenset[str]:
    """Read the word list next to a KenLM binary; raises BundleError if there is none."""
    words = path.with_suffix(".words.txt")
    if not words.exists():
        raise BundleError(
            f"{path}: is a KenLM binary, and the list of its words, {words}, is missing; give its ARPA file"
        )
    return frozenset(read_words(Folder(words.parent), words.name))


def resolve_model_folder(folder: Path) -> Path:
    """Return the best model's folder if ``folder`` is a training run, and ``folder`` itself otherwise."""
    best = folder / "best"
    return best if best.is_dir() else folder


@dataclass(frozen=True)
class TokenScores:
    """Scores of a text by model. Its T tokens are all words, and ``</s>`` after each of its S sentences."""

    lengths: np.ndarray
    """(S,) int64 number of tokens in each sentence."""
    log_probs: Mapping[str, np.ndarray]
    """For each model, (T,) float64 ln P over the union of the models' vocabularies.

    A word that a model does not know gets its share of the model's ``<unk>``."""
    unknown: Mapping[str, np.ndarray]
    """For each model, (T,) bool: True for words that the model does not know."""
    log_shares: Mapping[str, np.ndarray]
    """For each model, (T,) float64 ln of the word's share of P(``<unk>``); 0 for words that it knows."""
    backward: frozenset[str] = frozenset()
    """Names of the backward models. For them, the last token of a sentence is its start, not its end."""

    def mix(self, shares: Mapping[str, float]) -> np.ndarray:
        """Return the mixture's log-probabilities ln Σ_m λ_m · P_m, (T,), for interpolation weights λ."""
        return mix([self.log_probs[name] for name in shares], list(shares.values()))

    @property
    def has_both_directions(self) -> bool:
        """Whether there are forward and backward models."""
        return 0 < len(self.backward) < len(self.log_probs)

    def average_directions(self, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """Average the models' values, (T,) each, over the models of each direction, then over both."""
        backward = [part for name, part in values.items() if name in self.backward]
        forward = [part for name, part in values.items() if name not in self.backward]
        mean: np.ndarray = (np.mean(forward, axis=0) + np.mean(backward, axis=0)) / 2
        return mean

    def sum_by_sentence(self, values: np.ndarray) -> np.ndarray:
        """Sum (T,) values over each sentence; returns (S,)."""
        return np.add.reduceat(values, np.cumsum(self.lengths) - self.lengths)


def score_tokens(
    models: Mapping[str, LanguageModel],
    sentences: Sequence[Words],
    progress: str = "",
    *,
    in_order: bool = False,
) -> TokenScores:
    """Score every token of a text with every model.

    Args:
        in_order: score the sentences as a text in order. Networks that were trained that way then carry their
            state from sentence to sentence, and networks with topics read the topics of all sentences before.
            Other models score each sentence on its own.

    Raises:
        FormatError: there are no sentences.
        ScoringError: a score is not finite.
    """
    if not sentences:
        raise FormatError("no words in the text to score")
    lengths = np.array([len(words) + 1 for words in sentences])
    index = {word: i for i, word in enumerate(dict.fromkeys(word for words in sentences for word in words))}
    tokens = np.array(
        [i for words in sentences for i in (*map(index.__getitem__, words), len(index))]
    )  # (T,)
    log_probs, unknown, log_shares = {}, {}, {}
    with track(progress, "words", len(tokens) * len(models)) as task:
        for name, model in models.items():
            known = index if isinstance(model, OpenVocabularyModel) else model.vocabulary()
            unknown[name] = np.array([word not in known for word in index] + [False])[tokens]
            log_shares[name] = np.array([*map(model.log_share, index), 0.0])[tokens]
            log_probs[name] = _score_with_model(model, sentences, lengths, log_shares[name], in_order, task)
            if not np.isfinite(log_probs[name]).all():
                raise ScoringError(f"model {name!r} gave a score that is not finite")
    backward = frozenset(name for name, model in models.items() if model.backward)
    return TokenScores(lengths, log_probs, unknown, log_shares, backward)


def _score_with_model(
    model: LanguageModel,
    sentences: Sequence[Words],
    lengths: np.ndarray,
    log_shares: np.ndarray,
    in_order: bool,
    task: ProgressTask,
) -> np.ndarray:
    """Return ln P of every token under one model, (T,)."""
    histories: Sequence[Words] = [()] * len(sentences)
    if in_order:
        from rescorer_training.evaluation.past_text import (
            carries_state,
            find_topical_histories,
            score_with_carried_state,
        )

        if carries_state(model):
            task.advance(len(log_shares))
            return score_with_carried_state(model, sentences) + log_shares
        histories = find_topical_histories(model, sentences)
    ends = np.cumsum(lengths)
    log_probs = np.empty(len(log_shares))
    for plan in plan_batches(sentences, [()] * len(sentences), MAX_BATCH_WORDS):
        trie = build_trie([sentences[i] for i in plan.indices], [histories[i] for i in plan.indices])
        scores = score_with_words(model, trie)
        for hypothesis, i in enumerate(plan.indices):
            log_probs[ends[i] - lengths[i] : ends[i]] = scores.of_words[scores.path_edges(trie, hypothesis)]
        task.advance(plan.cost)
    return log_probs


BOTH_DIRECTIONS = "both directions"
"""Name of the pseudo-perplexity exp(-Σ_s ½(ln P_forward(s) + ln P_backward(s)) / T) of T tokens.

It is the geometric mean of the perplexities of both directions, whose scores of sentences are added in
rescoring (Xiong et al. 2017, "The Microsoft 2016 conversational speech recognition system"). The averages are
not normalised, but by Cauchy and Schwarz Σ_s √(P_forward(s) · P_backward(s)) ≤ 1: a normalised model that is
proportional to them has at most this perplexity.
"""


@dataclass(frozen=True, slots=True)
class Perplexity:
    """Perplexities of one model, which differ in how they treat unknown words.

    Tokens are all words, and one ``</s>`` per sentence.
    """

    n_unknown: int
    """Number of words that the model does not know."""
    shared: float
    """Perplexity if a word that only other models know gets its share of ``<unk>``, as in a bundle.

    All models then spread probability 1 over the same words, so that they are comparable."""
    counted: float | None
    """Perplexity if every unknown word gets the whole probability of ``<unk>``.

    KenLM's ``query`` and most papers count in this way. Models with the same vocabulary are comparable. None
    for a mixture of models with different vocabularies."""
    excluded: float | None
    """Perplexity over the tokens that all models know; None if there are none.

    It is lower than the others, because the hardest words are left out."""
    n_impossible: int = 0
    """Number of impossible tokens (SRILM's zeroprobs), whose ln P is at most ``LOG_ZERO``.

    A model without ``<unk>`` gives no probability to unknown words."""
    possible: float | None = None
    """Perplexity over all other tokens, which are possible; None if there are none."""


@dataclass(frozen=True, slots=True)
class TextPerplexity:
    """Perplexities of several models on one text."""

    n_sentences: int
    n_tokens: int
    n_excluded: int
    """Number of tokens that at least one model does not know."""
    models: Mapping[str, Perplexity]
    """Results by model name, including ``mixture`` if interpolation weights are given, and
    ``BOTH_DIRECTIONS`` if there are forward and backward models."""


def measure(scores: TokenScores, shares: Mapping[str, float] | None = None) -> TextPerplexity:
    """Compute the perplexity of every model and, given interpolation weights ``shares``, of their mixture."""
    excluded = np.logical_or.reduce(list(scores.unknown.values()))  # (T,)

    def measure_model(
        log_probs: np.ndarray, unknown: np.ndarray, log_shares: np.ndarray | None
    ) -> Perplexity:
        known = log_probs[~excluded]
        possible = log_probs[log_probs > LOG_ZERO]
        return Perplexity(
            n_unknown=int(unknown.sum()),
            shared=perplexity(log_probs),
            counted=None if log_shares is None else perplexity(log_probs - log_shares),
            excluded=perplexity(known) if len(known) else None,
            n_impossible=len(log_probs) - len(possible),
            possible=perplexity(possible) if len(possible) else None,
        )

    models = {
        name: measure_model(log_probs, scores.unknown[name], scores.log_shares[name])
        for name, log_probs in scores.log_probs.items()
    }
    if shares:
        unknown_to_all = np.logical_and.reduce([scores.unknown[name] for name in shares])
        same_vocabulary = not any(scores.log_shares[name].any() for name in shares)
        log_shares = np.zeros(len(unknown_to_all)) if same_vocabulary else None
        models[MIXTURE] = measure_model(scores.mix(shares), unknown_to_all, log_shares)
    if scores.has_both_directions:
        unknown = np.logical_or.reduce(list(scores.unknown.values()))
        averages = scores.average_directions(scores.log_probs), scores.average_directions(scores.log_shares)
        models[BOTH_DIRECTIONS] = measure_model(averages[0], unknown, averages[1])
    return TextPerplexity(len(scores.lengths), len(excluded), int(excluded.sum()), models)


def perplexity(log_probs: np.ndarray) -> float:
    """Return exp of the mean negative log-probability; ``log_probs``: (T,) in nats."""
    return to_perplexity(math.fsum(log_probs), len(log_probs))


@dataclass(frozen=True, slots=True)
class Contribution:
    """Contribution of one model to a mixture, on the text on which the interpolation weights are fitted."""

    share: float
    """Interpolation weight λ."""
    alone: float
    """Perplexity of the model alone."""
    without: float | None
    """Perplexity of the other models, mixed with weights fitted for them; None if there are no others."""


def measure_contributions(scores: TokenScores, shares: Mapping[str, float]) -> dict[str, Contribution]:
    """Measure the contribution of each model; return the results by model name."""

    def measure_without(name: str) -> float | None:
        others = {key: values for key, values in scores.log_probs.items() if key != name}
        return perplexity(scores.mix(fit_mixture(others))) if others else None

    return {
        name: Contribution(share, perplexity(scores.log_probs[name]), measure_without(name))
        for name, share in shares.items()
    }
