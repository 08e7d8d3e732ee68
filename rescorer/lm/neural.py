"""Owns the run of a network over a trie, level by level, on CPU or GPU; knows nothing of training."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from rescorer.errors import ConfigError
from rescorer.lm import CONTEXT_CACHE_BYTES, context_stats
from rescorer.lm.base import EdgeScores
from rescorer.lm.context_cache import ContextCache
from rescorer.lm.int8 import multiply_in_int8
from rescorer.lm.linear import narrow
from rescorer.lm.networks import ContextNetwork, NeuralModel, RecurrentNetwork, State, WindowedNetwork
from rescorer.lm.ngram_contexts import distinct_rows, node_windows
from rescorer.lm.output import TreeSoftmax
from rescorer.profiling import Phase, phase
from rescorer.trie import HypothesisTrie
from rescorer.vocabulary import MARKS, Vocabulary


class NeuralLanguageModel:
    """A trained network as a language model.

    Args:
        dtype: ``bfloat16`` multiplies a recurrent network's and its output layer's matrices in that type,
            twice as fast where the processor has it; the model given is changed. ``int8`` multiplies what a
            recurrent network does at every word in that type, three times as fast, and the rest as
            ``bfloat16`` does; CPUs only.
        context_cache_bytes: of what a recurrent network made of contexts, for lists that have the same one or
            one that has grown; 0: nothing is kept. The model's parameters must stay what they are.
    """

    def __init__(
        self,
        model: NeuralModel,
        words: Vocabulary,
        name: str = "neural",
        device: str | torch.device = "cpu",
        dtype: str = "float32",
        context_cache_bytes: int = CONTEXT_CACHE_BYTES,
    ) -> None:
        self.name = name
        self.device = torch.device(device)
        self.model = model.to(self.device).eval().requires_grad_(False)
        self._narrow(dtype)
        self.words = words
        self._contexts = ContextCache(context_cache_bytes)
        self._log_shares: Mapping[str, float] = {}
        self._default_log_share = 0.0

    def _narrow(self, dtype: str) -> None:
        network, output = map(self.model.get_submodule, ("network", "output"))
        if dtype not in ("float32", "bfloat16", "int8"):
            raise ConfigError(f"dtype is {dtype!r}; expected float32, bfloat16 or int8")
        if dtype == "float32":
            return
        if dtype == "int8" and self.device.type != "cpu":
            raise ConfigError(f"dtype int8 is for CPUs; on {self.device} take bfloat16")
        if isinstance(network, RecurrentNetwork):
            if dtype == "int8":
                multiply_in_int8(network.matrices_a_word())
            narrow(network.parameters())
        if not isinstance(output, TreeSoftmax):
            narrow(output.parameters())

    @property
    def start_word(self) -> int:
        """What stands before a sentence's first word, as in training."""
        return self.words.end if self.model.config.carried else self.words.start

    def vocabulary(self) -> frozenset[str]:
        return frozenset(self.words.words) - MARKS

    def share_unknown(self, log_shares: Mapping[str, float], default: float) -> None:
        """Says what part of P(<unk>) each unknown word has: ln of it, by word, ``default`` for others."""
        self._log_shares, self._default_log_share = log_shares, default

    def log_share(self, word: str) -> float:
        """ln of the part of P(<unk>) that is the word's; 0 for words it knows."""
        if self.words.knows(word):
            return 0.0
        return self._log_shares.get(word, self._default_log_share)

    @torch.inference_mode()
    def score(self, trie: HypothesisTrie) -> EdgeScores:
        with phase(Phase.TEXT):
            ids = np.append(self.words.encode(trie.words), self.words.end)
            unknown = np.array([not self.words.knows(word) for word in trie.words] + [False])
            log_shares = np.array([self.log_share(word) for word in trie.words] + [0.0])
        with phase(Phase.NETWORK):
            vectors, row_of_node = self._vectors(trie, ids)  # (U, D), (N,)
        with phase(Phase.OUTPUT):
            rows, words = row_of_node[trie.edge_parent], ids[trie.edge_word]
            log_probs = self.model.output.log_probs(vectors, self._tensor(rows), self._tensor(words))
            values = log_probs.double().cpu().numpy() + log_shares[trie.edge_word]
        return EdgeScores(values, unknown[trie.edge_word])

    def _tensor(self, array: np.ndarray) -> Tensor:
        """On a GPU by way of pinned memory: the host goes on while the array travels."""
        tensor = torch.from_numpy(array)
        if self.device.type == "cuda":
            return tensor.pin_memory().to(self.device, non_blocking=True)
        return tensor

    def _vectors(self, trie: HypothesisTrie, ids: np.ndarray) -> tuple[Tensor, np.ndarray]:
        """Context vectors, and which of them is each node's."""
        network = self.model.network
        if not isinstance(network, WindowedNetwork):
            return self._recurrent_vectors(trie, ids), np.arange(trie.n_nodes)
        words = self._tensor(np.append(ids, self.start_word))
        windows = node_windows(trie, network.window, start_word=len(ids))
        distinct, row_of_node = distinct_rows(windows, len(words))
        return network.contexts(words, self._tensor(distinct)), row_of_node

    def _recurrent_vectors(self, trie: HypothesisTrie, ids: np.ndarray) -> Tensor:
        """Context vectors of all nodes, (N, D): recurrent state is advanced once a node, a level a step."""
        network: ContextNetwork = self.model.network
        inputs = network.inputs(self._tensor(ids))  # (W, I): the input projection once a distinct word
        vectors = torch.empty(trie.n_nodes, network.output_size, device=self.device)
        vectors[: trie.n_roots], state = self._roots(trie, ids, inputs)
        parent, word = self._tensor(trie.parent), self._tensor(trie.node_word)
        above = 0
        for level in trie.levels():
            rows = parent[level] - above  # where the parents are in the level above
            above = level.start
            gates = inputs.index_select(0, word[level])  # many times as fast as inputs[...]
            vectors[level], state = network.step(gates, tuple(part.index_select(0, rows) for part in state))
        return vectors

    def _roots(self, trie: HypothesisTrie, ids: np.ndarray, inputs: Tensor) -> tuple[Tensor, State]:
        """Vectors and states after the start word and the words of each root's context."""
        network: ContextNetwork = self.model.network
        start = network.inputs(torch.tensor([self.start_word], device=self.device))
        vectors, state = network.step(start.expand(trie.n_roots, -1), network.start(trie.n_roots))
        if not any(len(context) for context in trie.contexts):
            return vectors, state
        contexts = [ids[context] for context in trie.contexts]
        n_known, after = self._contexts.recall(contexts, (vectors, *state))
        context_stats.count(sum(map(len, contexts)), sum(n_known))
        left = [context[n:] for context, n in zip(trie.contexts, n_known, strict=True)]
        for place in range(max(len(words) for words in left)):
            going = [root for root, words in enumerate(left) if len(words) > place]
            words = self._tensor(np.array([left[root][place] for root in going]))
            rows = torch.tensor(going, device=self.device)
            new_vectors, new_state = network.step(inputs[words], tuple(part[rows] for part in after[1:]))
            new = (new_vectors, *new_state)
            after = tuple(part.index_copy(0, rows, each) for part, each in zip(after, new, strict=True))
        self._contexts.keep(contexts, after)
        return after[0], after[1:]
