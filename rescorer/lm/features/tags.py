"""Induced parts of speech of the words so far: the filter of a hidden Markov model.

A network reads, after each word, f = P(tag | words of the sentence so far) - 1/K as features beside the word.
They depend on no later word, so that the network stays a left-to-right model. ``docs/decisions/
feature-inputs.md`` says where they go.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from rescorer.trie import HypothesisTrie


class TagFilter(nn.Module):
    """A hidden Markov model of K tags, and what it knows of the tag of the last word.

    The parameters are those of a trained model, and not trained with a network. A word without tags, whose
    row in ``words`` is zero, has features of zero and begins a new sentence: ``<s>`` and ``</s>`` are such.
    So does a word that the model holds impossible after the words before it.
    """

    start: Tensor
    """(K,) P(tag of the first word)."""
    transitions: Tensor
    """(K, K) P(next tag | tag), one row per tag."""
    words: Tensor
    """(V, K) P(tag | word) under even tags, which is proportional to P(word | tag)."""

    def __init__(self, n_tags: int, vocabulary_size: int) -> None:
        super().__init__()
        self.n_tags = n_tags
        self.register_buffer("start", torch.zeros(n_tags))
        self.register_buffer("transitions", torch.zeros(n_tags, n_tags))
        self.register_buffer("words", torch.zeros(vocabulary_size, n_tags))

    def initial(self, n: int) -> Tensor:
        """What is expected of the first tag of n sentences, (n, K)."""
        return self.start.expand(n, -1)

    def read(self, expected: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
        """Read one word of each of N texts.

        Args:
            expected: (N, K) distribution of its tag before it is read.
            words: (N,) ids.

        Returns:
            (N, K) features, and what is expected of the next tag, (N, K).
        """
        joint = expected * self.words[words]
        total = joint.sum(dim=1, keepdim=True)
        is_tagged = total > torch.finfo(joint.dtype).tiny
        posterior = joint / torch.where(is_tagged, total, torch.ones_like(total))
        features = torch.where(is_tagged, posterior - 1 / self.n_tags, torch.zeros_like(joint))
        return features, torch.where(is_tagged, posterior @ self.transitions, self.start)

    def read_texts(self, words: Tensor, expected: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Features after each word, (B, T) → (B, T, K), and what is expected after the last one, (B, K)."""
        expected = self.initial(len(words)) if expected is None else expected
        features = expected.new_zeros(*words.shape, self.n_tags)
        for position, column in enumerate(words.t()):
            features[:, position], expected = self.read(expected, column)
        return features, expected

    def read_trie(self, trie: HypothesisTrie, ids: np.ndarray) -> tuple[Tensor, list[Tensor]]:
        """Features after the word of each node, (N, K), and after each word of the context of each root.

        Those of a root are the features after its context; those after no words are zero.

        Args:
            ids: ids of the words of the trie.
        """
        device = self.start.device
        features = torch.zeros(trie.n_nodes, self.n_tags, device=device)
        expected = torch.empty_like(features)
        in_contexts = []
        for root, context in enumerate(trie.contexts):
            words = torch.from_numpy(ids[context]).to(device)
            read, expected[root : root + 1] = self.read_texts(words[None])
            in_contexts.append(read[0])
            features[root] = read[0, -1] if len(context) else 0.0
        parent = torch.from_numpy(trie.parent).to(device)
        words = torch.from_numpy(ids[trie.node_word]).to(device)
        for level in trie.levels():
            features[level], expected[level] = self.read(expected[parent[level]], words[level])
        return features, in_contexts
