"""Score tries with back-off n-gram models, using KenLM (Heafield 2011)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import closing, nullcontext
from pathlib import Path
from typing import BinaryIO

import kenlm
import numpy as np

from rescorer.errors import BundleError
from rescorer.lm.base import EdgeScores
from rescorer.lm.files.arpa import TextCopy, is_gzip, read_arpa, starts_like_arpa
from rescorer.lm.files.kenlm_binary import read_kenlm_header
from rescorer.profiling import Phase, phase
from rescorer.safe_input.files import descriptor_path, open_regular
from rescorer.trie import HypothesisTrie
from rescorer.vocabulary import END, SPECIAL_TOKENS, UNKNOWN

LN_10 = math.log(10.0)
"""Converts KenLM's base-10 logarithms to natural ones; no other scoring code uses base 10."""


class NgramModel:
    """A back-off model from an ARPA file (gzip or plain) or a KenLM binary.

    Args:
        source: the model file, by its path or opened.
        words: its vocabulary; required for a KenLM binary, from which it cannot be read.

    Raises:
        BundleError: If KenLM cannot read the file, or the vocabulary of a binary is missing.
    """

    def __init__(
        self, source: Path | BinaryIO, name: str = "ngram", words: frozenset[str] | None = None
    ) -> None:
        self.name = name
        with (
            open_regular(source) if isinstance(source, Path) else nullcontext(source) as stream,
            closing(TextCopy(is_gzip(stream))) as copy,
        ):
            arpa_words = check_ngram_file(stream, copy, is_binary=words is not None)
            self.kenlm = load_kenlm(stream, descriptor_path(copy.file() or stream))
        self._words = arpa_words if words is None else words
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


def check_ngram_file(stream: BinaryIO, copy: TextCopy, *, is_binary: bool) -> frozenset[str]:
    """Check that what an n-gram file declares fits its size, and return the words of an ARPA file.

    Args:
        copy: takes the text of a compressed file.
        is_binary: whether a KenLM binary is possible; its words must then be known from elsewhere.

    Raises:
        BundleError: If the file is neither, or declares more than it can contain.
    """
    if is_binary and not starts_like_arpa(stream):
        read_kenlm_header(stream)
        return frozenset()
    return read_arpa(stream, copy).words


def load_kenlm(stream: BinaryIO, path: str) -> kenlm.Model:
    """Load an open model file by a path that leads to its content.

    Raises:
        BundleError: If KenLM cannot read it; without KenLM's message, which quotes the file.
    """
    config = kenlm.Config()
    config.show_progress = False
    config.arpa_complain = kenlm.ARPALoadComplain.NONE
    try:
        return kenlm.Model(path, config)
    except (OSError, RuntimeError, MemoryError) as error:
        position = re.search(r"Byte: (\d+)", str(error))
        place = f" at byte {int(position[1]):,}" if position else ""
        raise BundleError(f"{stream.name}: KenLM cannot read it as an n-gram model{place}") from None
