"""Score tries with KenLM (Heafield 2011), one call per edge: for its binary files, and as a twin in tests.

Needs the package ``kenlm``, which is imported only when such a model is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, BinaryIO

import numpy as np

from rescorer.errors import BundleError
from rescorer.lm.ngrams.model import LN_10, NgramModel
from rescorer.safe_input.files import descriptor_path
from rescorer.trie import HypothesisTrie, Words
from rescorer.vocabulary import END, SPECIAL_TOKENS, UNKNOWN


class KenlmNgram(NgramModel):
    """A model that KenLM has loaded.

    Args:
        model: a ``kenlm.Model``.
        words: its vocabulary, which a KenLM binary does not contain.
    """

    def __init__(self, model: Any, words: frozenset[str], name: str = "ngram") -> None:
        from kenlm import State

        super().__init__(name)
        self.kenlm, self._new_state, self._words = model, State, words

    @property
    def order(self) -> int:
        return int(self.kenlm.order)

    def vocabulary(self) -> frozenset[str]:
        return self._words

    def unigram_log_probs(self, words: Sequence[str]) -> np.ndarray:
        no_context = self._new_state()
        self.kenlm.NullContextWrite(no_context)
        return self._log_probs(no_context, [look_up_as(word) for word in words])

    def next_log_probs(self, context: Words, words: Sequence[str]) -> np.ndarray:
        state = self._state_after([look_up_as(word) for word in context])
        return self._log_probs(state, [word if word == END else look_up_as(word) for word in words])

    def edge_log10_probs(self, trie: HypothesisTrie) -> np.ndarray:
        trie = trie.within_sentence
        words = [look_up_as(word) for word in trie.words]
        states = [self._state_after([words[i] for i in context]) for context in trie.contexts]
        states += [self._new_state() for _ in range(trie.n_nodes - trie.n_roots)]
        base_score = self.kenlm.BaseScore
        n_inner = trie.n_nodes - trie.n_roots
        parents, ids = trie.edge_parent.tolist(), trie.edge_word.tolist()
        log10_probs = [
            base_score(states[parent], words[word], state)
            for parent, word, state in zip(parents, ids, states[trie.n_roots :], strict=False)
        ]
        ignored = self._new_state()
        log10_probs += [base_score(states[parent], END, ignored) for parent in parents[n_inner:]]
        return np.array(log10_probs)

    def _log_probs(self, state: Any, words: Sequence[str]) -> np.ndarray:
        """ln P of each word in a state, (n,) float64."""
        base_score, after = self.kenlm.BaseScore, self._new_state()
        return np.array([base_score(state, word, after) for word in words], dtype=np.float64) * LN_10

    def _state_after(self, words: Sequence[str]) -> Any:
        """The state after ``<s>`` and some words."""
        state, after = self._new_state(), self._new_state()
        self.kenlm.BeginSentenceWrite(state)
        for word in words:
            self.kenlm.BaseScore(state, word, after)
            state, after = after, state
        return state


def look_up_as(word: str) -> str:
    """The word to look up in KenLM: ``<s>`` or ``</s>`` inside a text is an unknown word."""
    return UNKNOWN if word in SPECIAL_TOKENS else word


def load_kenlm(stream: BinaryIO, words: frozenset[str], name: str = "ngram") -> KenlmNgram:
    """Load an open ARPA file or KenLM binary with KenLM.

    Raises:
        BundleError: KenLM is not installed or cannot read the file; without KenLM's message, which quotes
            the file.
    """
    try:
        import kenlm
    except ImportError:
        raise BundleError(
            f"{stream.name}: is a KenLM binary, and the package kenlm is not installed; install "
            "'rescorer[kenlm]', with Python below 3.13, or use the ARPA file that the binary was made from"
        ) from None
    config = kenlm.Config()
    config.show_progress = False
    config.arpa_complain = kenlm.ARPALoadComplain.NONE
    try:
        return KenlmNgram(kenlm.Model(descriptor_path(stream), config), words, name)
    except (OSError, RuntimeError, MemoryError) as error:
        position = re.search(r"Byte: (\d+)", str(error))
        at_byte = f" at byte {int(position[1]):,}" if position else ""
        raise BundleError(f"{stream.name}: KenLM cannot read it as an n-gram model{at_byte}") from None
