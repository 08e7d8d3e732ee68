"""Neural language models: a network with an output layer, its files, and its scores of a trie.

A model is saved as ``config.json``, ``model.safetensors`` and ``vocabulary.txt``. None of them is a pickle,
so that loading a model never runs code from its files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from rescorer.errors import BundleError
from rescorer.formats.io.text_io import replace_file
from rescorer.models import CONTEXT_CACHE_BYTES
from rescorer.models.contexts import (
    CONTEXT_BLOCK,
    ContextCache,
    RowCache,
    Rows,
    TagFilter,
    TopicReader,
    distinct_rows,
    node_windows,
    predict_from_past,
    read_past,
)
from rescorer.models.kernels import (
    cast_matrices_to_bfloat16,
    check_finite,
    dequantise_tensors,
    multiply_in_int8,
    project_rows,
    quantise_tensors,
    to_device,
)
from rescorer.models.network_files import (
    CONFIG_FILE,
    KINDS,
    SPECIAL_TOKENS,
    VOCABULARY_FILE,
    WEIGHTS_FILE,
    WINDOWED_KINDS,
    NetworkConfig,
    Vocabulary,
    read_config,
    read_vocabulary,
)
from rescorer.models.networks import (
    ContextNetwork,
    RecurrentNetwork,
    State,
    StepNetwork,
    WindowedNetwork,
)
from rescorer.models.outputs import ClassFactoredSoftmax, FullSoftmax, MixtureOfSoftmaxes, OutputLayer
from rescorer.models.precision import check_precision
from rescorer.models.transformer import TransformerNetwork
from rescorer.models.tree_attention import build_prefix_tree, tree_vectors
from rescorer.models.tree_softmax import TreeSoftmax
from rescorer.progress import track
from rescorer.runtime import Phase, count_context_words, pause, phase
from rescorer.safe_input import Folder, descriptor_path
from rescorer.trie import SENTENCE_END, EdgeScores, HypothesisTrie, Words, sort_by_length

NETWORKS: dict[str, Callable[[NetworkConfig], ContextNetwork]] = {
    **dict.fromkeys(KINDS, RecurrentNetwork),
    **dict.fromkeys(WINDOWED_KINDS, WindowedNetwork),
    "transformer": TransformerNetwork,
}


def build_output_layer(config: NetworkConfig, size: int, tied_weight: Tensor | None) -> OutputLayer:
    """Build the configured output layer for context vectors of ``size``.

    Args:
        tied_weight: the input embedding, if the layer shares its weights; None otherwise.
    """
    if config.output == "full":
        return FullSoftmax(size, config.n_words, tied_weight)
    if config.output == "tree":
        return TreeSoftmax(size, config.n_words, config.leaves, tied_weight)
    if config.softmaxes > 1:
        return MixtureOfSoftmaxes(size, config.class_sizes, config.softmaxes, tied_weight)
    return ClassFactoredSoftmax(size, config.class_sizes, tied_weight)


class SequenceConfig(Protocol):
    """The settings of any sequence model that training and saving need."""

    @property
    def carried(self) -> bool:
        """Whether the state is carried across sentences."""

    @property
    def tied(self) -> bool:
        """Whether the output layer shares the weights of the embedding."""

    @property
    def dropout(self) -> float: ...

    @property
    def locked_dropout(self) -> bool: ...

    @property
    def tied_copy(self) -> str | None:
        """Name of the parameter that is the embedding under another name, so is not stored; None without."""

    def to_dict(self) -> dict[str, Any]: ...


class SequenceModel(nn.Module):
    """A network over words with an output layer, in the form that the training loop trains.

    Its subclass ``NeuralModel`` is a language model. Others, such as classifiers, do not predict the next
    word and may read later words.
    """

    config: SequenceConfig
    network: ContextNetwork
    output: OutputLayer
    is_causal = False
    """Whether each vector depends only on the words so far, so that a long text can be read in parts."""

    def context_vectors(
        self,
        inputs: Tensor,
        state: State | None = None,
        topics: Tensor | None = None,
        *,
        bfloat16: bool = False,
    ) -> tuple[Tensor, State]:
        """Compute the vectors from which ``output`` predicts, and the state after the last word.

        Args:
            inputs: (B, T) word ids.
            topics: (B, T, K) or (B, 1, K) topic features; None if the model reads only words.
            bfloat16: whether to multiply the matrices of the network in bfloat16.

        Returns:
            (B, P, D) float32 vectors of P predictions for each row, and the state.
        """
        raise NotImplementedError


class NeuralModel(SequenceModel):
    """A language model: a context network, and an output layer that predicts the next word."""

    config: NetworkConfig
    is_causal = True

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        self.network = NETWORKS[config.kind](config)
        tied_weight = self.network.embedding.weight if config.tied else None
        self.output = build_output_layer(config, self.network.output_size, tied_weight)
        if config.topics:
            # P(topic | word) under even topics, (V, K); see ``rescorer.models.contexts``
            self.topic_words: Tensor
            self.register_buffer("topic_words", torch.zeros(config.vocabulary_size, config.topics))
        self.tags = TagFilter(config.pos_tags, config.vocabulary_size) if config.pos_tags else None
        if config.n_features:
            self.topic_output = nn.Linear(config.n_features, self.network.output_size, bias=False)
            nn.init.zeros_(self.topic_output.weight)

    def context_vectors(
        self,
        inputs: Tensor,
        state: State | None = None,
        topics: Tensor | None = None,
        *,
        bfloat16: bool = False,
    ) -> tuple[Tensor, State]:
        """See ``SequenceModel``; there is one vector per word, (B, T, D).

        If the model reads tags, its state has one more tensor than the state of its network, at the end: the
        probabilities of the next tag.
        """
        expected: State = ()
        if self.tags is not None:
            state, last = (state[:-1], state[-1]) if state else (None, None)
            topics, after = self.tags.read_texts(inputs, last)
            expected = (after,)
        with torch.autocast(inputs.device.type, torch.bfloat16, enabled=bfloat16):
            hidden, state = self.network(inputs, state, topics)
        hidden = hidden.float()
        if topics is not None:
            hidden = hidden + self.topic_output(topics)
        state = (*state, *expected)
        return hidden, tuple(part.float() if part.is_floating_point() else part for part in state)

    def loss(
        self, inputs: Tensor, targets: Tensor, bfloat16: bool = False, topics: Tensor | None = None
    ) -> Tensor:
        """Compute Σ −ln P over the targets. Inputs and targets are (B, T); negative targets are padding."""
        hidden, _ = self.context_vectors(inputs, None, topics, bfloat16=bfloat16)
        is_word = targets >= 0
        return self.output.loss(hidden[is_word], targets[is_word])


PROBABILITIES = ("topic_words", "tags.start", "tags.transitions", "tags.words")
MAX_PROBABILITY = 1.001  # largest stored probability: rounding to fewer bits may exceed 1


def deduplicated_state(model: SequenceModel) -> dict[str, torch.Tensor]:
    """The state dict of a model, in which tied weights appear only once, as the embedding of the network."""
    state = model.state_dict()
    if model.config.tied_copy:
        del state[model.config.tied_copy]
    return state


def save_model(
    model: SequenceModel, vocabulary: Vocabulary, folder: Path, dtype: torch.dtype = torch.float32
) -> None:
    """Write the three files of a model into ``folder``.

    Args:
        dtype: type of the stored weights; int8 matrices are stored with one scale per row.
    """
    folder.mkdir(parents=True, exist_ok=True)
    state = {name: value.detach().contiguous() for name, value in deduplicated_state(model).items()}
    tensors = quantise_tensors(state) if dtype == torch.int8 else _cast_floats(dtype, state)
    (folder / CONFIG_FILE).write_text(json.dumps(model.config.to_dict()) + "\n", encoding="utf-8")
    vocabulary.save(folder / VOCABULARY_FILE)
    with replace_file(folder / WEIGHTS_FILE) as partial:  # last, because it marks a complete model
        save_file(tensors, partial)
        partial.chmod(0o644)  # safetensors makes it private; a server may run as another user


def _cast_floats(dtype: torch.dtype, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Cast weights to ``dtype``; tensors of integers, such as an output layer's tree, keep their type."""
    return {
        name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in tensors.items()
    }


DRAWS = frozenset(
    {Tensor.normal_, Tensor.uniform_, nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_}
)
"""Functions that fill a new tensor with random numbers."""


class _NoDraws(TorchFunctionMode):
    """In the ``with`` block, new networks get zeros for random weights, which would take long to draw."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func not in DRAWS:
            return func(*args, **(kwargs or {}))
        with torch.no_grad():
            return (args[0] if args else (kwargs or {})["tensor"]).zero_()


def load_model(folder: Path | Folder) -> tuple[NeuralModel, Vocabulary]:
    """Load a model in float32 and evaluation mode.

    The sizes of all three files are compared with each other before anything is built.

    Raises:
        BundleError: a file is missing or damaged, or weights, config and vocabulary do not fit together.
    """
    files = folder if isinstance(folder, Folder) else Folder(folder)
    config = read_config(files)
    vocabulary = read_vocabulary(files, config)
    with _NoDraws():
        model = NeuralModel(config)
    load_weights(model, files)
    for name, value in model.named_buffers():
        if name in PROBABILITIES and not 0 <= value.min() <= value.max() <= MAX_PROBABILITY:
            raise BundleError(f"{files.path}: {name} has values outside 0 … 1; expected probabilities")
    return model, vocabulary


def load_weights(model: SequenceModel, files: Folder) -> None:
    """Load weights into a new model, in float32, and put the model into evaluation mode.

    Raises:
        BundleError: the file is missing or damaged, does not fit the model, or has values that are not
            finite.
    """
    config = model.config
    with files.open(WEIGHTS_FILE) as stream:
        try:
            tensors = dequantise_tensors(load_file(descriptor_path(stream)))
        except (OSError, ValueError, SafetensorError):
            raise BundleError(f"{stream.name}: cannot be read as a safetensors file") from None
        if config.tied_copy and "network.embedding.weight" in tensors:
            tensors[config.tied_copy] = tensors["network.embedding.weight"]
        try:
            model.load_state_dict(_cast_floats(torch.float32, tensors))
        except RuntimeError as error:
            raise BundleError(f"{stream.name}: the weights do not fit the network: {error}") from None
    check_finite(str(files.path), model.state_dict())
    model.eval()


@dataclass(frozen=True, slots=True)
class AddedInputs:
    """Vectors of I values that topics or tags add to the inputs of a recurrent network."""

    at_nodes: Callable[[slice], Tensor]
    """Function that returns the vector for each of these nodes of the trie, (n, I)."""
    in_contexts: Sequence[Tensor]
    """For each root, the vector for each block of its context, (blocks, I). A block has ``block`` words."""
    block: int
    at_start: Tensor | None = None
    """(R, I) The vector for the start word before each root; None to add nothing there."""


def read_sequences(
    network: StepNetwork,
    inputs: Tensor,
    sequences: Sequence[np.ndarray],
    before: Rows,
    added: AddedInputs | None,
    n_known: Sequence[int],
) -> Rows:
    """Read the uncached rest of each root's context; return the vectors and states after the contexts.

    Args:
        inputs: (W, I) inputs of distinct words.
        sequences: for each root, the rest of its context, as indices of ``inputs``.
        before: vectors and states after the part of each context that is cached.
        n_known: number of words in that part.
    """
    lengths = np.array(list(map(len, sequences)))
    order, n_reaching = sort_by_length(lengths)  # sequences that have ended are the last rows
    position = np.concatenate([np.arange(lengths[row]) for row in order])
    words = np.concatenate([sequences[row] for row in order])[np.argsort(position, kind="stable")]
    by_position = torch.from_numpy(words).to(inputs.device).split(n_reaching.tolist())
    rows, is_sorted = order.tolist(), bool((order == np.arange(len(order))).all())
    index = None if is_sorted else torch.from_numpy(order).to(inputs.device)
    after = before if index is None else tuple(part.index_select(0, index) for part in before)
    for position_now, found in enumerate(by_position):
        pause()
        n = len(found)
        gates = inputs.index_select(0, found)  # many times as fast as inputs[...]
        if added is not None:
            blocks = ((root, (n_known[root] + position_now) // added.block) for root in rows[:n])
            gates += torch.stack([added.in_contexts[root][block] for root, block in blocks])
        vectors, state = network.step(gates, tuple(part[:n] for part in after[1:]))
        ended = (part[n:] for part in after)
        new = (vectors, *state)
        after = new if n == len(rows) else tuple(map(torch.cat, zip(new, ended, strict=True)))
    return after if index is None else tuple(part.index_copy(0, index, part) for part in after)


def find_read(trie: HypothesisTrie, unread: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Find the distinct words of a trie that a network has to read. Cached parts of contexts are left out.

    Args:
        unread: for each root, the words of its context that are not in the cache.

    Returns:
        Indices of the words to read; and for each word of the trie, and ``</s>``, its place among them.
    """
    is_read = np.zeros(len(trie.words) + 1, dtype=bool)
    is_read[-1] = True
    is_read[trie.node_word[trie.n_roots :]] = True
    for words in unread:
        is_read[words] = True
    return np.flatnonzero(is_read), np.cumsum(is_read) - 1


STEP_WORDS = {"cpu": 1024, "cuda": 65_536}
"""Number of words whose inputs are projected in one step."""
STEP_ROWS = {"cpu": 256, "cuda": 65_536}
"""Number of nodes of a level that a network reads in one step: on a CPU, some 10 ms, in the cache."""


def project_words(network: StepNetwork, ids: Tensor) -> Tensor:
    """The inputs of distinct words, (W, I): one projection per word."""
    size = STEP_WORDS[ids.device.type]
    if len(ids) <= size:
        return network.inputs(ids)
    inputs: Tensor | None = None
    for begin in range(0, len(ids), size):
        pause()
        step = network.inputs(ids[begin : begin + size])
        inputs = step.new_empty(len(ids), step.shape[1]) if inputs is None else inputs
        inputs[begin : begin + size] = step
    assert inputs is not None
    return inputs


def read_recurrently(
    network: StepNetwork,
    trie: HypothesisTrie,
    ids: np.ndarray,
    start_word: int,
    cache: ContextCache,
    added: AddedInputs | None = None,
) -> Tensor:
    """Context vectors of all nodes, (N, D). Each level of the trie is one step of the recurrent state.

    Args:
        ids: the network's ids of the trie's words and of ``</s>``.
        start_word: id of the word before every context.
        cache: vectors and states after contexts.
        added: vectors that topics or tags add to inputs; None: nothing is added.
    """
    contexts = [ids[context] for context in trie.contexts]
    device = network.initial_state(1)[0].device

    def read_start() -> Rows:
        start = network.inputs(torch.tensor([start_word], device=device))
        start = start.expand(trie.n_roots, -1)
        if added is not None and added.at_start is not None:
            start = start + added.at_start
        vectors, state = network.step(start, network.initial_state(trie.n_roots))
        return vectors, *state

    if any(map(len, contexts)):
        n_known, after = cache.recall(contexts, read_start)
        count_context_words(sum(map(len, contexts)), sum(n_known))
    else:
        n_known, after = [0] * len(contexts), read_start()
    unread = [context[n:] for context, n in zip(trie.contexts, n_known, strict=True)]
    read, place = find_read(trie, unread)
    inputs = project_words(network, to_device(ids[read], device))
    if any(map(len, contexts)):
        sequences = [place[words] for words in unread]
        after = read_sequences(network, inputs, sequences, after, added, n_known)
        cache.store(contexts, after)
    vectors = torch.empty(trie.n_nodes, network.output_size, device=device)
    vectors[: trie.n_roots], state = after[0], after[1:]
    sizes = np.diff(trie.level_bounds).tolist()
    rows_above = to_device(trie.parent_in_level, device).split(sizes)
    words = to_device(place[trie.node_word], device).split(sizes)
    with track("reading a batch", "words", trie.n_nodes - trie.n_roots) as task:
        for rows, word, level in zip(rows_above[1:], words[1:], trie.levels(), strict=True):
            blocks, n = [], level.stop - level.start
            for begin in range(0, n, STEP_ROWS[device.type]):
                pause()
                block = slice(begin, min(begin + STEP_ROWS[device.type], n))
                nodes = slice(level.start + block.start, level.start + block.stop)
                gates = inputs.index_select(0, word[block])  # many times as fast as inputs[...]
                if added is not None:
                    gates += added.at_nodes(nodes)
                vectors[nodes], after_block = network.step(
                    gates, tuple(part.index_select(0, rows[block]) for part in state)
                )
                blocks.append(after_block)
                task.advance(block.stop - block.start)
            state = blocks[0] if len(blocks) == 1 else tuple(map(torch.cat, zip(*blocks, strict=True)))
    return vectors


def set_precision(model: NeuralModel, dtype: str, device: torch.device) -> None:
    """Convert the matrices of a model in place; ``NeuralLanguageModel`` explains the names of the precisions.

    Raises:
        ConfigError: the dtype is unknown, or not supported on this device.
    """
    check_precision(dtype, str(device))
    if dtype == "float32":
        return
    network, output = map(model.get_submodule, ("network", "output"))
    if isinstance(network, (RecurrentNetwork, TransformerNetwork)):
        if dtype == "int8":
            bound = network.step_bound if isinstance(network, RecurrentNetwork) else None
            multiply_in_int8(network.step_matrices(), bound)
        cast_matrices_to_bfloat16([*network.parameters(), *network.step_matrices()])
    if not isinstance(output, TreeSoftmax):
        cast_matrices_to_bfloat16(output.parameters())


class NeuralLanguageModel:
    """A trained network as a ``VectorModel``.

    Args:
        dtype: precision of matrix products. With ``bfloat16``, the matrices of a recurrent network or
            transformer and of its output layer are converted in place; this is twice as fast on processors
            that support it. With ``int8``, the products that the network computes for every word are in int8,
            and all others in bfloat16; this is three times as fast, and works only on CPUs.
        context_cache_bytes: size of the cache for contexts that a recurrent network or transformer has read;
            0 disables it. The parameters of the model must not change afterwards. The vectors of neural
            caches have another cache of the same size.

    Raises:
        ConfigError: the dtype is unknown, or not supported on this device.
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
        return self.model.config.backward

    def vocabulary(self) -> frozenset[str]:
        return frozenset(self.words.words) - SPECIAL_TOKENS

    def share_unknown(self, log_shares: Mapping[str, float], default: float) -> None:
        self._log_shares, self._default_log_share = log_shares, default

    def log_share(self, word: str) -> float:
        if self.words.is_known(word):
            return 0.0
        return self._log_shares.get(word, self._default_log_share)

    @property
    def vector_size(self) -> int:
        return self.model.network.output_size

    @torch.inference_mode()
    def score(self, trie: HypothesisTrie, projections: Mapping[str, np.ndarray] | None = None) -> EdgeScores:
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
                name: trie.mean_paths(project_rows(vectors, projection)[row_of_node])
                for name, projection in (projections or {}).items()
            }
        return EdgeScores(values, unknown[trie.edge_word], encodings, self.backward, cached)

    def _predict_from_past(
        self, trie: HypothesisTrie, vectors: Tensor, row_of_node: np.ndarray
    ) -> np.ndarray | None:
        """P_cache of the word on each edge, (E,); None if the model cannot have a cache, or no root has."""
        if not any(trie.flatness) or self.backward or self.topics is not None:
            return None

        def read(past: HypothesisTrie) -> tuple[Tensor, np.ndarray]:
            ids = np.append(self._encode(past.words), self.words.end)
            return self._context_vectors(past, ids, past.contexts)

        past = read_past(trie, self.model.config.carried, self._past_cache, read)
        return predict_from_past(trie, vectors, row_of_node, past)

    def _encode(self, words: Words) -> np.ndarray:
        """Ids of words; ``SENTENCE_END`` gets the id of ``</s>``."""
        ids = self.words.encode(words)
        ids[[i for i, word in enumerate(words) if word == SENTENCE_END]] = self.words.end
        return ids

    def _to_device(self, array: np.ndarray) -> Tensor:
        return to_device(array, self.device)

    def _context_vectors(
        self, trie: HypothesisTrie, ids: np.ndarray, histories: Sequence[np.ndarray]
    ) -> tuple[Tensor, np.ndarray]:
        """Distinct context vectors, (U, D), and the row of each node's vector, (N,).

        Args:
            ids: the model's ids of the trie's words and of ``</s>``.
            histories: for each root, all words before its hypotheses, including previous sentences.
        """
        network = self.model.network
        if isinstance(network, TransformerNetwork):
            tree = build_prefix_tree(trie, ids, self._encode, self.start_word)
            vectors, row_of_node = tree_vectors(network, tree, self.context_cache)
            return vectors, row_of_node[tree.trie_nodes]
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
        """Context vectors of a network that reads tags, (N, D): one per node, since features differ."""
        network = self.model.network
        features, in_contexts = tags.read_trie(trie, ids)  # (N, K)
        if isinstance(network, WindowedNetwork):
            words = self._to_device(np.append(ids, self.start_word))
            windows = self._to_device(node_windows(trie, network.window, start_word=len(ids)))
            vectors = network.context_vectors(words, windows, network.topic_inputs(features))
        else:
            added = [network.topic_inputs(part) for part in in_contexts]
            by_tags = AddedInputs(lambda nodes: network.topic_inputs(features[nodes]), added, block=1)
            vectors = self._recurrent_vectors(trie, ids, by_tags)
        return vectors + self.model.topic_output(features)

    def _vectors_of_words(
        self, trie: HypothesisTrie, ids: np.ndarray, added: Tensor | None
    ) -> tuple[Tensor, np.ndarray]:
        """``_context_vectors`` of networks that are neither transformers nor read tags.

        Topics enter only through the inputs here; the caller also adds them to the vectors.

        Args:
            added: (R, I) vectors that the topics of each root add to inputs; None without topics.
        """
        network = self.model.network
        if not isinstance(network, WindowedNetwork):
            by_topics = None if added is None else self._topic_inputs(trie, ids, added)
            return self._recurrent_vectors(trie, ids, by_topics), np.arange(trie.n_nodes)
        words = self._to_device(np.append(ids, self.start_word))
        windows = node_windows(trie, network.window, start_word=len(ids))
        if added is None:
            distinct, row_of_node = distinct_rows(windows, len(words))
            return network.context_vectors(words, self._to_device(distinct)), row_of_node
        rows = np.append(windows, trie.root_of_node[:, None], axis=1)
        distinct, row_of_node = distinct_rows(rows, max(len(words), trie.n_roots))
        added = added[self._to_device(distinct[:, -1])]
        return network.context_vectors(words, self._to_device(distinct[:, :-1]), added), row_of_node

    def _topic_inputs(self, trie: HypothesisTrie, ids: np.ndarray, added: Tensor) -> AddedInputs:
        """Return the vectors that topics add to the inputs of a recurrent network.

        A network with carried state reads each block of a context with the topics of the words before the
        block. Any other network reads the beginning of its sentence with the topics of the root.

        Args:
            added: (R, I) vectors that the topics of each root add.
        """
        root = self._to_device(trie.root_of_node)
        if self.model.config.carried:  # nothing comes before its start word
            assert self.topics is not None
            blocks = self.topics.block_features([ids[context] for context in trie.contexts])
            inputs = self.model.network.topic_inputs(torch.cat(blocks).to(self.device))
            in_contexts, at_start = list(inputs.split(list(map(len, blocks)))), None
        else:
            counts = [-(-len(context) // CONTEXT_BLOCK) for context in trie.contexts]
            in_contexts = [row.expand(count, -1) for row, count in zip(added, counts, strict=True)]
            at_start = added
        return AddedInputs(
            lambda nodes: added.index_select(0, root[nodes]), in_contexts, CONTEXT_BLOCK, at_start
        )

    def _recurrent_vectors(self, trie: HypothesisTrie, ids: np.ndarray, added: AddedInputs | None) -> Tensor:
        assert isinstance(self.context_cache, ContextCache)
        return read_recurrently(self.model.network, trie, ids, self.start_word, self.context_cache, added)
