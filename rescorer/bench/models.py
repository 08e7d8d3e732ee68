"""Owns the models of a benchmark without a bundle: a random network of a given shape and an n-gram of the
lists' own word sequences, as much work as trained ones of their sizes."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from rescorer.bundle import Bundle, ModelKind
from rescorer.errors import ConfigError
from rescorer.lm.base import LanguageModel
from rescorer.lm.networks import NetworkConfig, NeuralModel
from rescorer.lm.networks.config import WINDOWED_KINDS
from rescorer.lm.neural import NeuralLanguageModel
from rescorer.lm.ngram import NgramModel
from rescorer.lm.vocabulary_alignment import align_vocabularies
from rescorer.pipeline import MAX_BATCH_WORDS, Rescorer
from rescorer.text import Normaliser
from rescorer.trie import Words
from rescorer.types import NBestList, Weights
from rescorer.vocabulary import END, MARKS, START, UNKNOWN, Vocabulary


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Shape of a network; words and weights are random."""

    network: str = "lstm"
    hidden: int = 200
    """Size of embeddings and hidden states."""
    classes: int = 0
    """Of the class-factored softmax; 0: √V."""
    vocabulary: int = 10_000
    """Words, marks counted."""
    output: str = "classes"
    layers: int = 1
    window: int = 4
    """Words that networks without recurrence see."""
    order: int = 4
    """Of the n-gram."""

    def __post_init__(self) -> None:
        if self.vocabulary < len(MARKS) + 2:
            raise ConfigError(f"vocabulary is {self.vocabulary}; expected at least {len(MARKS) + 2}")
        if not 0 <= self.classes < self.vocabulary:
            raise ConfigError(f"classes is {self.classes}; expected fewer than the vocabulary's words")

    def config(self) -> NetworkConfig:
        """With classes of even size."""
        classes = self.classes or math.isqrt(self.vocabulary)
        n_words = self.vocabulary - 1
        even = tuple(len(part) for part in np.array_split(np.arange(n_words), classes))
        return NetworkConfig(
            self.vocabulary,
            even if self.output == "classes" else (),
            self.network,
            embedding_size=self.hidden,
            hidden_size=self.hidden,
            layers=self.layers,
            output=self.output,
            tied=self.output != "tree",
            window=self.window if self.network in WINDOWED_KINDS else 0,
            activation="linear" if self.network == "lbl" else "tanh",
        )


def spec_rescorer(
    spec: ModelSpec,
    lists: Sequence[NBestList],
    folder: Path,
    device: str = "cpu",
    dtype: str = "float32",
    batch_words: int = MAX_BATCH_WORDS,
) -> Rescorer:
    """Make models that know the lists' words; they are the same in any process.

    Args:
        folder: where the n-gram's file is written.

    Raises:
        ConfigError: there are no lists.
    """
    if not lists:
        raise ConfigError("no list to measure with")
    normaliser = Normaliser()
    sentences = [normaliser.words(each.text) for nbest in lists for each in nbest.hypotheses]
    arpa = folder / f"model-{os.getpid()}.arpa"
    arpa.write_text(counted_arpa(sentences, spec.order), encoding="utf-8")
    torch.manual_seed(1)
    network = NeuralLanguageModel(
        NeuralModel(spec.config()),
        build_vocabulary(spec, sentences),
        device=device,
        dtype=dtype,
        context_cache_bytes=0,
    )
    models: dict[str, LanguageModel] = {"ngram": NgramModel(arpa), "neural": network}
    align_vocabularies(list(models.values()))
    weights = Weights("default", mixture={"ngram": 0.5, "neural": 0.5})
    kinds: dict[str, ModelKind] = {"ngram": "ngram", "neural": "neural"}
    bundle = Bundle(folder, "spec", 0, {}, normaliser, kinds, {"default": weights})
    return Rescorer(bundle, models, batch_words)


def build_vocabulary(spec: ModelSpec, sentences: Iterable[Words]) -> Vocabulary:
    """The most frequent words in random order, so that they spread over the classes as they do over good
    ones; where the sentences have too few, words that none of them has."""
    counts = Counter(word for words in sentences for word in words if word not in MARKS)
    n = spec.vocabulary - len(MARKS)
    known = [word for word, _ in counts.most_common(n)]
    known += [f"unheard {i}" for i in range(n - len(known))]
    words = [END, UNKNOWN, *known]
    order = np.random.default_rng(1).permutation(len(words))
    return Vocabulary((*(words[i] for i in order), START))


def counted_arpa(sentences: Iterable[Words], order: int) -> str:
    """An ARPA file of all n-grams, P = c(h, w) / (c(h) + 1) and the rest for backing off: not normalised to
    the last digit, for it is there to be looked up."""
    counts = [Counter[Words]() for _ in range(order + 1)]
    for sentence in sentences:
        marked = (START, *sentence, END)
        for n in range(1, order + 1):
            counts[n].update(zip(*(marked[i:] for i in range(n)), strict=False))
    followed = [Counter[Words]() for _ in range(order + 1)]
    for n in range(1, order + 1):
        for words, count in counts[n].items():
            followed[n - 1][words[:-1]] += count
    counts[1][UNKNOWN,] = 1
    lines = ["\\data\\", *(f"ngram {n}={len(counts[n])}" for n in range(1, order + 1))]
    for n in range(1, order + 1):
        lines += ["", f"\\{n}-grams:"]
        for words, count in counts[n].items():
            log_prob = math.log10(count / (followed[n - 1][words[:-1]] + 1))
            back_off = f"\t{-math.log10(followed[n][words] + 1):.6f}" if n < order else ""
            lines.append(f"{log_prob:.6f}\t{' '.join(words)}{back_off}")
    return "\n".join([*lines, "", "\\end\\", ""])
