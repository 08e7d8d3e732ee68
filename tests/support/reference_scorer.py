"""Score one sentence at a time in float64: the reference against which trie scoring is tested.

It is deliberately slow and simple, and shares no computations between sentences.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from rescorer.models.contexts import CONTEXT_BLOCK, TagFilter
from rescorer.models.language_model import LanguageModel
from rescorer.models.networks import RecurrentNetwork
from rescorer.models.neural import NeuralLanguageModel
from rescorer.models.ngrams import END_ID, LN_10, START_ID, NgramModel, NgramTable, TableNgram
from rescorer.trie import SENTENCE_END, Words


def reference_log_probs(model: LanguageModel, words: Words, context: Words = ()) -> np.ndarray:
    """ln P of each word and of ``</s>`` after the context, (n + 1,) float64.

    A backward model scores the reversed words, without the context.

    Raises:
        TypeError: If there is no reference scorer for this kind of model.
    """
    if not model.backward:
        return _log_probs(model, words, context)
    *log_probs, end = _log_probs(model, words[::-1], ())
    return np.array([*log_probs[::-1], end])


def _log_probs(model: LanguageModel, words: Words, context: Words) -> np.ndarray:
    if isinstance(model, TableNgram):
        return _ngram_log_probs(model, words, last_sentence(context))
    if isinstance(model, NeuralLanguageModel):
        return _neural_log_probs(model, words, context)
    raise TypeError(f"no reference scorer for {type(model).__name__}")


def reference_encoding(
    model: NeuralLanguageModel, words: Words, context: Words, projection: np.ndarray
) -> np.ndarray:
    """Mean of the context vectors of each word and of ``</s>``, times a projection (D, K): (K,) float64."""
    words, context = (words[::-1], ()) if model.backward else (words, context)
    vectors = reference_vectors(model, words, context).numpy()
    mean: np.ndarray = vectors.mean(axis=0) @ projection
    return mean


def reference_mixture(
    models: Mapping[str, LanguageModel], weights: Mapping[str, float], words: Words, context: Words = ()
) -> np.ndarray:
    """ln Σ_m λ_m · P_m of each word and of ``</s>``, (n + 1,) float64."""
    parts = [
        weight * np.exp(reference_log_probs(models[name], words, context)) for name, weight in weights.items()
    ]
    return np.log(np.sum(parts, axis=0))


def _ngram_log_probs(model: TableNgram, words: Words, context: Words) -> np.ndarray:
    skip = model.content.skip
    ids = [START_ID] * (1 + skip) + [*model.units.encode((*context, *words)).tolist(), END_ID]
    first = 1 + skip + len(context)
    log10_probs = [_log10_prob(model.table, ids[: i - skip], ids[i]) for i in range(first, len(ids))]
    within = model.units.log10_within(words)  # of classes
    log10_within = np.zeros(len(words)) if within is None else within
    return (np.array(log10_probs) + np.append(log10_within, 0.0)) * LN_10 + _log_shares(model, words)


def _log10_prob(table: NgramTable, history: list[int], word: int) -> float:
    """The stored log10 P of the longest n-gram, and the back-off weights of the histories of longer ones."""
    history = history[len(history) - min(len(history), table.order - 1) :]
    backoff = 0.0
    while (stored := _look_up(table, [*history, word])) is None:
        backoff += (_look_up(table, history) or (0.0, 0.0))[1]
        history = history[1:]
    return backoff + stored[0]


def _look_up(table: NgramTable, ngram: list[int]) -> tuple[float, float] | None:
    """log10 probability and log10 back-off weight of an n-gram; None if the model does not have it."""
    place, values = ngram[0], table.unigrams[ngram[0]]
    for order, word in zip(table.orders, ngram[1:], strict=False):
        matches = order.match(np.array([place]), np.array([word]), table.n_words, table.library)
        if not len(matches.pairs):
            return None
        place, values = int(matches.places[0]), matches.values[0]
    return float(values[0]), float(values[1])


def last_sentence(history: Words) -> Words:
    """Return the words of a history that belong to the sentence of the hypotheses."""
    ends = [i for i, word in enumerate(history) if word == SENTENCE_END]
    return history[ends[-1] + 1 :] if ends else history


def _neural_log_probs(model: NeuralLanguageModel, words: Words, context: Words) -> np.ndarray:
    network = copy.deepcopy(model.model).cpu().double()
    ids = [*model.words.encode(words), model.words.end]
    with torch.no_grad():
        distribution = network.output.distribution(reference_vectors(model, words, context))  # (T, V)
    log_probs = np.array([float(distribution[t, i]) for t, i in enumerate(ids)])
    return log_probs + _log_shares(model, words)


def reference_vectors(model: NeuralLanguageModel, words: Words, context: Words) -> Tensor:
    """The vectors from which the words of a text, and ``</s>``, are predicted after a context, (T, D)."""
    network = copy.deepcopy(model.model).cpu().double()
    history = _encode_history(model, context)
    before = history if network.config.carried else _encode_history(model, last_sentence(context))
    inputs = torch.tensor([[model.start_word, *before, *model.words.encode(words)]])
    with torch.no_grad():
        if network.tags is not None:
            features = _tag_features(network.tags, inputs[0].tolist())
            vectors = network.network(inputs, None, features[None])[0] + network.topic_output(features)
            return vectors[0, len(before) :]
        if model.topics is None:
            return network.network(inputs)[0][0, len(before) :]
        sentence = model.topics.features([history])  # (1, K)
        topics = sentence.repeat(inputs.shape[1], 1)
        if network.config.carried and isinstance(network.network, RecurrentNetwork) and len(before):
            topics[0] = 0.0
            for i in range(len(before)):  # each word of the history has the topics of its block
                topics[i + 1] = model.topics.features([before[: i // CONTEXT_BLOCK * CONTEXT_BLOCK]])[0]
        vectors, _ = network.network(inputs, None, topics[None].double())
        return vectors[0, len(before) :] + network.topic_output(sentence.double())


def _tag_features(tags: TagFilter, words: list[int]) -> Tensor:
    """Features after each word, (T, K) float64: sums over all tags of the word and of the one before it."""
    start, transitions, emissions = (part.numpy() for part in (tags.start, tags.transitions, tags.words))
    expected, features = start, []
    for word in words:
        joint = [float(p * e) for p, e in zip(expected, emissions[word], strict=True)]
        if sum(joint) == 0:  # <s>, </s>: a sentence begins
            expected, posterior = start, [1 / tags.n_tags] * tags.n_tags
        else:
            posterior = [value / sum(joint) for value in joint]
            expected = np.sum([p * row for p, row in zip(posterior, transitions, strict=True)], axis=0)
        features.append([p - 1 / tags.n_tags for p in posterior])
    return torch.tensor(features, dtype=torch.float64)


def _encode_history(model: NeuralLanguageModel, history: Words) -> np.ndarray:
    ends = (word == SENTENCE_END for word in history)
    return np.where(np.fromiter(ends, bool, len(history)), model.words.end, model.words.encode(history))


def _log_shares(model: NgramModel | NeuralLanguageModel, words: Words) -> np.ndarray:
    return np.array([*(model.log_share(word) for word in words), 0.0])
