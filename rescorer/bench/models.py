"""Build models for a benchmark without a bundle: a random network and an n-gram of the lists' own words.

Scoring with them takes as much work as with trained models of the same sizes.
"""

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
from rescorer.lm.files.network_config import WINDOWED_KINDS
from rescorer.lm.networks import NetworkConfig, NeuralModel
from rescorer.lm.neural import NeuralLanguageModel
from rescorer.lm.ngrams import place_ngram, read_ngram
from rescorer.lm.vocabulary_alignment import align_vocabularies
from rescorer.pipeline import MAX_BATCH_WORDS, Rescorer
from rescorer.safe_input.files import Folder
from rescorer.text import Normaliser
from rescorer.trie import Words
from rescorer.types import NBestList, Weights
from rescorer.vocabulary import END, SPECIAL_TOKENS, START, UNKNOWN, Vocabulary


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Shape of a random network and of an n-gram."""

    network: str = "lstm"
    hidden: int = 200
    """Size of embeddings and hidden states."""
    classes: int = 0
    """Number of classes of the class-factored softmax; 0: √V."""
    vocabulary: int = 10_000
    """Number of words of the network, including ``<s>``, ``</s>`` and ``<unk>``."""
    output: str = "classes"
    layers: int = 1
    window: int = 4
    """Context length, in words, of feed-forward and log-bilinear networks."""
    attention_window: int = 128
    """Number of words to which each layer of a transformer attends."""
    heads: int = 4
    """Number of attention heads of a transformer."""
    order: int = 4
    """Order of the n-gram."""

    def __post_init__(self) -> None:
        if self.vocabulary < len(SPECIAL_TOKENS) + 2:
            raise ConfigError(f"vocabulary is {self.vocabulary}; expected at least {len(SPECIAL_TOKENS) + 2}")
        if not 0 <= self.classes < self.vocabulary:
            raise ConfigError(
                f"classes is {self.classes}; expected fewer classes than the vocabulary has words"
            )

    def config(self) -> NetworkConfig:
        """Build the network's config, with classes of equal size."""
        classes = self.classes or math.isqrt(self.vocabulary)
        n_words = self.vocabulary - 1
        windows = dict.fromkeys(WINDOWED_KINDS, self.window) | {"transformer": self.attention_window}
        class_sizes = tuple(len(part) for part in np.array_split(np.arange(n_words), classes))
        return NetworkConfig(
            self.vocabulary,
            class_sizes if self.output == "classes" else (),
            self.network,
            embedding_size=self.hidden,
            hidden_size=self.hidden,
            layers=self.layers,
            output=self.output,
            tied=self.output != "tree",
            window=windows.get(self.network, 0),
            activation="linear" if self.network == "lbl" else "tanh",
            heads=self.heads if self.network == "transformer" else 1,
        )


def build_rescorer(
    spec: ModelSpec,
    lists: Sequence[NBestList],
    folder: Path,
    device: str = "cpu",
    dtype: str = "float32",
    batch_words: int = MAX_BATCH_WORDS,
) -> Rescorer:
    """Build a rescorer whose models know the lists' words; the result is the same in every process.

    Args:
        folder: where the n-gram's file is written.

    Raises:
        ConfigError: there are no lists.
    """
    if not lists:
        raise ConfigError("no lists to benchmark")
    normaliser = Normaliser()
    sentences = [normaliser.normalise(hypothesis.text) for nbest in lists for hypothesis in nbest.hypotheses]
    arpa = folder / f"model-{os.getpid()}.arpa"
    arpa.write_text(estimate_arpa(sentences, spec.order), encoding="utf-8")
    torch.manual_seed(1)
    network = NeuralLanguageModel(
        NeuralModel(spec.config()),
        build_vocabulary(spec, sentences),
        device=device,
        dtype=dtype,
        context_cache_bytes=0,
    )
    ngram = read_ngram(arpa)
    place_ngram(ngram, device)
    models: dict[str, LanguageModel] = {"ngram": ngram, "neural": network}
    align_vocabularies(list(models.values()))
    weights = Weights("default", mixture={"ngram": 0.5, "neural": 0.5})
    manifest = {"models": {"ngram": {"kind": "ngram", "path": arpa.name}}}
    kinds: dict[str, ModelKind] = {"ngram": "ngram", "neural": "neural"}
    bundle = Bundle(Folder(folder), "spec", 0, manifest, normaliser, kinds, {"default": weights})
    return Rescorer(bundle, models, batch_words)


def build_vocabulary(spec: ModelSpec, sentences: Iterable[Words]) -> Vocabulary:
    """Collect the most frequent words of the sentences, padded with words that do not occur.

    The order is random, so that frequent words spread over the classes as they do in trained models.
    """
    counts = Counter(word for words in sentences for word in words if word not in SPECIAL_TOKENS)
    n = spec.vocabulary - len(SPECIAL_TOKENS)
    known = [word for word, _ in counts.most_common(n)]
    known += [f"unheard {i}" for i in range(n - len(known))]
    words = [END, UNKNOWN, *known]
    order = np.random.default_rng(1).permutation(len(words))
    return Vocabulary((*(words[i] for i in order), START))


def estimate_arpa(sentences: Iterable[Words], order: int) -> str:
    """Estimate an n-gram model of all sentences with P = c(h, w) / (c(h) + 1), as ARPA text.

    The remaining probability goes to back-off. The model is normalised only approximately, which does
    not matter for measuring the speed of look-ups.
    """
    counts = [Counter[Words]() for _ in range(order + 1)]
    for sentence in sentences:
        marked = (START, *sentence, END)
        for n in range(1, order + 1):
            counts[n].update(zip(*(marked[i:] for i in range(n)), strict=False))
    history_counts = [Counter[Words]() for _ in range(order + 1)]
    for n in range(1, order + 1):
        for words, count in counts[n].items():
            history_counts[n - 1][words[:-1]] += count
    counts[1][UNKNOWN,] = 1
    lines = ["\\data\\", *(f"ngram {n}={len(counts[n])}" for n in range(1, order + 1))]
    for n in range(1, order + 1):
        lines += ["", f"\\{n}-grams:"]
        for words, count in counts[n].items():
            log10_prob = math.log10(count / (history_counts[n - 1][words[:-1]] + 1))
            back_off = f"\t{-math.log10(history_counts[n][words] + 1):.6f}" if n < order else ""
            lines.append(f"{log10_prob:.6f}\t{' '.join(words)}{back_off}")
    return "\n".join([*lines, "", "\\end\\", ""])
