"""Score tries with back-off n-gram models, using KenLM (Heafield 2011)."""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import kenlm
import numpy as np

from rescorer.errors import BundleError
from rescorer.lm.base import EdgeScores
from rescorer.profiling import Phase, phase
from rescorer.trie import HypothesisTrie
from rescorer.vocabulary import END, SPECIAL_TOKENS, UNKNOWN

LN_10 = math.log(10.0)
"""Converts KenLM's base-10 logarithms to natural ones; no other scoring code uses base 10."""


class NgramModel:
    """A back-off model from an ARPA file (gzip or plain) or a KenLM binary.

    Args:
        path: the model file.
        words: its vocabulary; required for a KenLM binary, from which it cannot be read.

    Raises:
        BundleError: If KenLM cannot read the file, or the vocabulary of a binary is missing.
    """

    def __init__(self, path: Path, name: str = "ngram", words: frozenset[str] | None = None) -> None:
        self.name = name
        config = kenlm.Config()
        config.show_progress = False
        config.arpa_complain = kenlm.ARPALoadComplain.NONE
        try:
            self.kenlm = kenlm.Model(str(path), config)
        except (OSError, RuntimeError) as error:
            raise BundleError(f"{path}: cannot be read as an n-gram model: {error}") from None
        self._words = frozenset(read_arpa_words(path)) if words is None else words
        self._log_shares: Mapping[str, float] = {}
        self._default_log_share = 0.0

    @property
    def order(self) -> int:
        return int(self.kenlm.order)

    def vocabulary(self) -> frozenset[str]:
        """See ``LanguageModel``."""
        return self._words

    def share_unknown(self, log_shares: Mapping[str, float], default: float) -> None:
        """See ``LanguageModel``."""
        self._log_shares, self._default_log_share = log_shares, default

    def log_share(self, word: str) -> float:
        """See ``LanguageModel``."""
        if word in self._words:
            return 0.0
        return self._log_shares.get(word, self._default_log_share)

    def kenlm_word(self, word: str) -> str:
        """The word to look up in KenLM: ``<s>`` or ``</s>`` inside a text is an unknown word."""
        return UNKNOWN if word in SPECIAL_TOKENS else word

    def unigram_log_probs(self, words: list[str]) -> np.ndarray:
        """ln P(word) without context, (n,) float64; unknown words get the probability of ``<unk>``."""
        no_context, after = kenlm.State(), kenlm.State()
        self.kenlm.NullContextWrite(no_context)
        base_score = self.kenlm.BaseScore
        return np.array([base_score(no_context, word, after) for word in words], dtype=np.float64) * LN_10

    def score(self, trie: HypothesisTrie) -> EdgeScores:
        """See ``LanguageModel``."""
        with phase(Phase.NGRAM):
            return self._score(trie)

    def _score(self, trie: HypothesisTrie) -> EdgeScores:
        words = [self.kenlm_word(word) for word in trie.words]
        unknown = np.array([word not in self._words for word in trie.words] + [False])
        log_shares = np.array([self.log_share(word) for word in trie.words] + [0.0])
        states = [self._root_state(context, words) for context in trie.contexts]
        states += [kenlm.State() for _ in range(trie.n_nodes - trie.n_roots)]
        base_score = self.kenlm.BaseScore
        n_inner = trie.n_nodes - trie.n_roots
        parents, ids = trie.edge_parent.tolist(), trie.edge_word.tolist()
        log10_probs = [
            base_score(states[parent], words[word], state)
            for parent, word, state in zip(parents, ids, states[trie.n_roots :], strict=False)
        ]
        ignored = kenlm.State()
        log10_probs += [base_score(states[parent], END, ignored) for parent in parents[n_inner:]]
        log_probs = np.array(log10_probs, dtype=np.float64) * LN_10 + log_shares[trie.edge_word]
        return EdgeScores(log_probs, unknown[trie.edge_word])

    def _root_state(self, context: np.ndarray, words: list[str]) -> kenlm.State:
        """The state after ``<s>`` and the words of a context."""
        state = kenlm.State()
        self.kenlm.BeginSentenceWrite(state)
        for word in context.tolist():
            after = kenlm.State()
            self.kenlm.BaseScore(state, words[word], after)
            state = after
        return state


def is_arpa(path: Path) -> bool:
    """Whether a file, gzip or plain, starts like an ARPA file."""
    try:
        with _open_model(path) as stream:
            return stream.read(64).lstrip().startswith(b"\\data\\")
    except (OSError, EOFError, zlib.error):
        return False


def read_arpa_words(path: Path) -> Iterator[str]:
    """Yield the unigrams of an ARPA file, without ``<s>``, ``</s>`` and ``<unk>``.

    Raises:
        BundleError: If the file is not an ARPA file.
    """
    with _open_model(path) as stream:
        in_unigrams = False
        for line in stream:
            if line.startswith(b"\\"):
                if in_unigrams:
                    return
                in_unigrams = line.strip() == b"\\1-grams:"
            elif in_unigrams and line.strip():
                word = line.split()[1].decode("utf-8")
                if word not in SPECIAL_TOKENS and word != "<UNK>":
                    yield word
    raise BundleError(
        f"{path}: no unigram section; expected an ARPA file, or a KenLM binary with a list of its words"
    )


def _open_model(path: Path) -> BinaryIO:
    """Open a plain or gzip-compressed file, detected by its first bytes."""
    with open(path, "rb") as raw:
        is_gzip = raw.read(2) == b"\x1f\x8b"
    return gzip.open(path, "rb") if is_gzip else open(path, "rb")  # type: ignore[return-value]
