"""Score tries with a neural network on a CPU or GPU; a recurrent network reads them level by level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from rescorer.lm import CONTEXT_CACHE_BYTES
from rescorer.lm.base import EdgeScores
from rescorer.lm.caches.neural_cache import predict_from_past
from rescorer.lm.contexts import context_stats
from rescorer.lm.contexts.context_cache import ContextCache, RowCache, Rows
from rescorer.lm.contexts.ngram_contexts import distinct_rows, node_windows
from rescorer.lm.contexts.past_words import read_past
from rescorer.lm.device import to_device
from rescorer.lm.features.tags import TagFilter
from rescorer.lm.features.topics import CONTEXT_BLOCK, TopicReader
from rescorer.lm.networks import ContextNetwork, NeuralModel, TransformerNetwork, WindowedNetwork
from rescorer.lm.precision import set_precision
from rescorer.lm.sequences import AddInputs, find_read, read_sequences
from rescorer.lm.tree_attention import build_prefix_tree, tree_vectors
from rescorer.runtime.profiling import Phase, phase
from rescorer.trie import SENTENCE_END, HypothesisTrie, Words
from rescorer.vocabulary import SPECIAL_TOKENS, Vocabulary

PROJECTED_ROWS = 8192
"""Number of context vectors that are converted to float64 at a time."""


class NeuralLanguageModel:
    """A trained network as a language model.

    Args:
        dtype: precision of matrix products. ``bfloat16`` applies to a recurrent network or transformer and
            its output layer, and is twice as fast on processors that support it; the given model is converted
            in place. ``int8`` applies to the products that such a network computes for every word, and
            ``bfloat16`` to all others; this is three times as fast and is only supported on CPUs.
        context_cache_bytes: size of the cache for what a recurrent network or transformer has computed of
            contexts; 0 disables the cache. The parameters of the model must not change afterwards. Neural
            caches keep vectors of at most the same size.

    Raises:
        ConfigError: If the dtype is unknown, or not supported on this device.
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
        set_precision(self.model, dtype, self.device)
        self.words = words
        is_transformer = isinstance(self.model.network, TransformerNetwork)
        cache = RowCache if is_transformer else ContextCache
        config = self.model.config
        if config.topics and not config.carried:
            context_cache_bytes = 0  # what it computes of a context depends on the topics of the text before
        self.context_cache: RowCache = cache(context_cache_bytes)
        self._past_cache = RowCache(context_cache_bytes)  # no memory is allocated without a neural cache
        self.topics = TopicReader(self.model.topic_words, config.topic_decay) if config.topics else None
        self._log_shares: Mapping[str, float] = {}
        self._default_log_share = 0.0

    @property
    def start_word(self) -> int:
        """Id of the word that precedes the first word of a sentence, as in training."""
        return self.words.end if self.model.config.carried else self.words.start

    @property
    def backward(self) -> bool:
        """See ``LanguageModel``."""
        return self.model.config.backward

    def vocabulary(self) -> frozenset[str]:
        """See ``LanguageModel``."""
        return frozenset(self.words.words) - SPECIAL_TOKENS

    def share_unknown(self, log_shares: Mapping[str, float], default: float) -> None:
        """See ``LanguageModel``."""
        self._log_shares, self._default_log_share = log_shares, default

    def log_share(self, word: str) -> float:
        """See ``LanguageModel``."""
        if self.words.is_known(word):
            return 0.0
        return self._log_shares.get(word, self._default_log_share)

    @property
    def vector_size(self) -> int:
        """See ``VectorModel``."""
        return self.model.network.output_size

    @torch.inference_mode()
    def score(self, trie: HypothesisTrie, projections: Mapping[str, np.ndarray] | None = None) -> EdgeScores:
        """See ``VectorModel``."""
        with phase(Phase.TEXT):
            trie = trie.in_direction(self.backward)
            whole, histories = trie, trie.contexts  # what topics are inferred from
            trie = trie if self.model.config.carried else trie.within_sentence
            ids = np.append(self.words.encode(trie.words), self.words.end)
            unknown = ids == self.words.unknown
            log_shares = np.zeros(len(ids))
            log_shares[unknown] = [self.log_share(trie.words[i]) for i in np.flatnonzero(unknown)]
        with phase(Phase.NETWORK):
            vectors, row_of_node = self._context_vectors(trie, ids, histories)  # (U, D), (N,)
            cached = self._predict_from_past(whole, vectors, row_of_node)
        with phase(Phase.OUTPUT):
            rows, words = row_of_node[trie.edge_parent], ids[trie.edge_word]
            log_probs = self.model.output.log_probs(vectors, self._to_device(rows), self._to_device(words))
            values = log_probs.double().cpu().numpy() + log_shares[trie.edge_word]
            encodings = {
                name: trie.mean_paths(self._project(vectors, projection)[row_of_node])
                for name, projection in (projections or {}).items()
            }
        return EdgeScores(values, unknown[trie.edge_word], encodings, self.backward, cached)

    def _predict_from_past(
        self, trie: HypothesisTrie, vectors: Tensor, row_of_node: np.ndarray
    ) -> np.ndarray | None:
        """P of each edge in the neural cache, (E,); None if no root of the trie has one, or the model."""
        if not any(trie.flatness) or self.backward or self.topics is not None:
            return None

        def read(past: HypothesisTrie) -> tuple[Tensor, np.ndarray]:
            ids = np.append(self._encode(past.words), self.words.end)
            return self._context_vectors(past, ids, past.contexts)

        past = read_past(trie, self.model.config.carried, self._past_cache, read)
        return predict_from_past(trie, vectors, row_of_node, past)

    def _encode(self, words: Words) -> np.ndarray:
        """Ids of words of a history, which may end sentences."""
        ids = self.words.encode(words)
        ids[[i for i, word in enumerate(words) if word == SENTENCE_END]] = self.words.end
        return ids

    def _project(self, vectors: Tensor, projection: np.ndarray) -> np.ndarray:
        """Multiply context vectors (U, D) by a projection in float64, some rows at a time: (U, K)."""
        matrix = torch.from_numpy(projection).to(self.device)
        parts = [part.double() @ matrix for part in vectors.split(PROJECTED_ROWS)]
        return torch.cat(parts).cpu().numpy()

    def _to_device(self, array: np.ndarray) -> Tensor:
        return to_device(array, self.device)

    def _context_vectors(
        self, trie: HypothesisTrie, ids: np.ndarray, histories: Sequence[np.ndarray]
    ) -> tuple[Tensor, np.ndarray]:
        """Distinct context vectors, (U, D), and the row of each node's vector, (N,).

        Args:
            ids: the model's ids of the trie's words and of ``</s>``.
            histories: all words before the hypotheses of each root, previous sentences included.
        """
        network = self.model.network
        if isinstance(network, TransformerNetwork):
            tree = build_prefix_tree(trie, ids, self._encode, self.start_word)
            return tree_vectors(network, tree, self.context_cache)
        if self.model.tags is not None:
            return self._tagged_vectors(trie, ids, self.model.tags), np.arange(trie.n_nodes)
        if self.topics is None:
            return self._vectors_of_words(trie, ids, None)
        topics = self.topics.features([ids[history] for history in histories]).to(self.device)  # (R, K)
        vectors, row_of_node = self._vectors_of_words(trie, ids, network.topic_inputs(topics))
        root = np.empty(len(vectors), dtype=np.int64)  # of each row
        root[row_of_node] = trie.root_of_node
        return vectors + self.model.topic_output(topics)[self._to_device(root)], row_of_node

    def _tagged_vectors(self, trie: HypothesisTrie, ids: np.ndarray, tags: TagFilter) -> Tensor:
        """Context vectors of a network that reads tags, (N, D); each node has a filter of its own."""
        network = self.model.network
        features, in_contexts = tags.read_trie(trie, ids)  # (N, K)
        if isinstance(network, WindowedNetwork):
            words = self._to_device(np.append(ids, self.start_word))
            windows = self._to_device(node_windows(trie, network.window, start_word=len(ids)))
            vectors = network.context_vectors(words, windows, network.topic_inputs(features))
        else:
            vectors = self._recurrent_vectors(trie, ids, tags=(features, in_contexts))
        return vectors + self.model.topic_output(features)

    def _vectors_of_words(
        self, trie: HypothesisTrie, ids: np.ndarray, added: Tensor | None
    ) -> tuple[Tensor, np.ndarray]:
        """Return what ``_context_vectors`` does, without what topics add to the vectors themselves.

        Args:
            added: (R, I) what the topics of each root add to the inputs of its nodes; None: nothing.
        """
        network = self.model.network
        if not isinstance(network, WindowedNetwork):
            return self._recurrent_vectors(trie, ids, added), np.arange(trie.n_nodes)
        words = self._to_device(np.append(ids, self.start_word))
        windows = node_windows(trie, network.window, start_word=len(ids))
        if added is None:
            distinct, row_of_node = distinct_rows(windows, len(words))
            return network.context_vectors(words, self._to_device(distinct)), row_of_node
        rows = np.append(windows, trie.root_of_node[:, None], axis=1)
        distinct, row_of_node = distinct_rows(rows, max(len(words), trie.n_roots))
        added = added[self._to_device(distinct[:, -1])]
        return network.context_vectors(words, self._to_device(distinct[:, :-1]), added), row_of_node

    def _recurrent_vectors(
        self,
        trie: HypothesisTrie,
        ids: np.ndarray,
        added: Tensor | None = None,
        tags: tuple[Tensor, list[Tensor]] | None = None,
    ) -> Tensor:
        """Context vectors of all nodes, (N, D); each level is one step of the recurrent state.

        Args:
            added: (R, I) what is added to the inputs of the nodes of each root; None: nothing.
            tags: features of each node and of each word of each context; None: the network reads none.
        """
        network: ContextNetwork = self.model.network
        contexts = [ids[context] for context in trie.contexts]
        n_known, after = self._recall(contexts, added)
        unread = [context[n:] for context, n in zip(trie.contexts, n_known, strict=True)]
        read, place = find_read(trie, unread)
        inputs = network.inputs(self._to_device(ids[read]))  # (W, I): one projection per distinct word
        if any(map(len, contexts)):
            assert isinstance(self.context_cache, ContextCache)
            in_contexts = tags and [network.topic_inputs(features) for features in tags[1]]
            add_inputs = self._context_inputs(contexts, n_known, added, in_contexts)
            after = read_sequences(network, inputs, [place[words] for words in unread], after, add_inputs)
            self.context_cache.store(contexts, after)
        vectors = torch.empty(trie.n_nodes, network.output_size, device=self.device)
        vectors[: trie.n_roots], state = after[0], after[1:]
        sizes = np.diff(trie.level_bounds).tolist()
        rows_above = self._to_device(trie.parent_in_level).split(sizes)
        words = self._to_device(place[trie.node_word]).split(sizes)
        root = None if added is None else self._to_device(trie.root_of_node)
        for rows, word, level in zip(rows_above[1:], words[1:], trie.levels(), strict=True):
            gates = inputs.index_select(0, word)  # many times as fast as inputs[...]
            if added is not None and root is not None:
                gates += added.index_select(0, root[level])
            if tags is not None:
                gates += network.topic_inputs(tags[0][level])
            vectors[level], state = network.step(gates, tuple(part.index_select(0, rows) for part in state))
        return vectors

    def _recall(self, contexts: Sequence[np.ndarray], added: Tensor | None) -> tuple[list[int], Rows]:
        """What is known of each root: how many words of its context are, and vectors and states after these.

        Args:
            added: (R, I) what the topics of each root add to inputs; None: nothing.
        """
        if not any(map(len, contexts)):
            return [0] * len(contexts), self._read_start(len(contexts), added)
        assert isinstance(self.context_cache, ContextCache)
        n_known, after = self.context_cache.recall(contexts, lambda: self._read_start(len(contexts), added))
        context_stats.count(sum(map(len, contexts)), sum(n_known))
        return n_known, after

    def _read_start(self, n_roots: int, added: Tensor | None) -> Rows:
        """Vectors and states of the roots after the start word."""
        network: ContextNetwork = self.model.network
        start = network.inputs(torch.tensor([self.start_word], device=self.device)).expand(n_roots, -1)
        if added is not None and not self.model.config.carried:  # else nothing comes before the start word
            start = start + added
        vectors, state = network.step(start, network.initial_state(n_roots))
        return vectors, *state

    def _context_inputs(
        self,
        contexts: list[np.ndarray],
        n_known: Sequence[int],
        added: Tensor | None,
        in_contexts: list[Tensor] | None,
    ) -> AddInputs:
        """Return what adds topics and tags to the inputs of the words of contexts that are not yet read.

        Args:
            added: (R, I) what the topics of each root add to inputs; None: nothing.
            in_contexts: what the tags of each word of each context add to its input; None: nothing.
        """
        blocks = None if added is None else self._block_inputs(contexts, added)

        def add_inputs(gates: Tensor, position: int, roots: list[int]) -> None:
            places = [(root, n_known[root] + position) for root in roots]
            if blocks is not None:
                gates += torch.stack([blocks[root][place // CONTEXT_BLOCK] for root, place in places])
            if in_contexts is not None:
                gates += torch.stack([in_contexts[root][place] for root, place in places])

        return add_inputs

    def _block_inputs(self, contexts: list[np.ndarray], added: Tensor) -> list[Tensor]:
        """What topics add to the inputs of each block of words of each context, (blocks, I).

        A network with carried state reads each block with the topics of the words before it; any other
        network reads the beginning of its sentence with the topics of its root.

        Args:
            added: (R, I) what the topics of each root add to inputs.
        """
        if not self.model.config.carried:
            counts = [-(-len(context) // CONTEXT_BLOCK) for context in contexts]
            return [row.expand(count, -1) for row, count in zip(added, counts, strict=True)]
        assert self.topics is not None
        blocks = self.topics.block_features(contexts)
        inputs = self.model.network.topic_inputs(torch.cat(blocks).to(self.device))
        return list(inputs.split([len(rows) for rows in blocks]))
