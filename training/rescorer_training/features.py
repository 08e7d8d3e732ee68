"""Features that networks read in addition to words: word classes, topics and parts of speech.

``docs/decisions/feature-inputs.md`` says how the input for a word is made of its embedding and its features.
The vectors of a word's classes are added to its embedding. Classes depend on the word alone. So a saved model
has the sums as its embedding, and no classes. Parts of speech (tags) are induced by a hidden Markov model of
the words of sentences (Baum et al. 1970; Merialdo 1994). At the start, each tag is a Brown cluster with a
small share of all other words. Expectation maximisation then gives words several tags, depending on the tags
around them. Tags of a tagged text are counted instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.lib.format import open_memmap
from torch import Tensor, nn
from torch.nn import functional

from rescorer.errors import ConfigError
from rescorer.models.contexts import TopicReader
from rescorer.models.network_files import Vocabulary
from rescorer.models.neural import NeuralModel, SequenceModel
from rescorer.progress import track
from rescorer_training.batches import Sentences, cut_into_batches
from rescorer_training.classes.brown import find_brown_clusters


class ClassEmbedding(nn.Embedding):
    """An embedding whose vectors are sums: the word's own vector and one for each of its classes.

    The vectors of classes start as zeros.

    Args:
        words: embedding with the words' own vectors.
        classes: (V, C) int64 classes of each word, numbered in one sequence for all C kinds.
    """

    classes: Tensor

    def __init__(self, words: nn.Embedding, classes: Tensor) -> None:
        super().__init__(words.num_embeddings, words.embedding_dim, _weight=words.weight)
        self.weight = words.weight  # the parameter itself: an output layer may share it
        self.register_buffer("classes", classes)
        self.class_vectors = nn.Parameter(torch.zeros(int(classes.max()) + 1, words.embedding_dim))

    def forward(self, words: Tensor) -> Tensor:
        return super().forward(words) + self._sum_classes(self.classes[words])

    def folded_weight(self) -> Tensor:
        """Return the sums for all words, (V, E)."""
        return self.weight + self._sum_classes(self.classes)

    def _sum_classes(self, classes: Tensor) -> Tensor:
        """Sum the vectors of the classes of words, (..., C) → (..., E)."""
        return functional.embedding(classes, self.class_vectors).sum(dim=-2)


def add_class_inputs(model: NeuralModel, classes: Tensor) -> None:
    """Let a model also read the classes of words, (V, C). Its predictions stay the same until it is trained.

    Raises:
        ConfigError: the output layer is a tree that is tied to the embedding.
    """
    if model.config.tied and model.config.output == "tree":
        raise ConfigError("class inputs do not work with a tree that is tied to the embedding; add --untied")
    model.network.embedding = ClassEmbedding(model.network.embedding, classes)


@torch.no_grad()
def fold_class_inputs(model: SequenceModel) -> SequenceModel:
    """Return an equal model without class inputs, for scoring.

    A model without class inputs is returned as it is. Otherwise the result is a copy on the CPU. Its output
    layer is not tied to the embedding, because output weights are the words' own vectors without classes.
    """
    embedding = model.network.embedding
    if not isinstance(model, NeuralModel) or not isinstance(embedding, ClassEmbedding):
        return model
    state = {name: value for name, value in model.state_dict().items() if ".embedding." not in name}
    state["network.embedding.weight"] = embedding.folded_weight()
    if model.config.tied:  # the shared parameter has a row for <s>, which is never predicted
        state["output.word_weight"] = state["output.word_weight"][: model.config.n_words]
    with torch.random.fork_rng(devices=[]):  # the initial values are replaced, and must not disturb training
        folded = NeuralModel(replace(model.config, tied=False))
    folded.load_state_dict(state)
    return folded.train(model.training)


BLOCK_WORDS = 256
"""Number of words per document."""
MAX_BLOCK_SHARE = 0.4
"""A word that occurs in more than this share of the documents is not topical: it gets no topics."""
MIN_BLOCKS = 2
"""A word that occurs in fewer documents than this is not topical."""
PASSES = 10
"""Number of passes over the documents."""


def fit_word_topics(ids: np.ndarray, n_words: int, n_topics: int) -> np.ndarray:
    """Fit topics to a text, and compute the probability of each topic given a word.

    The documents are blocks of the text. Words that are very common or very rare are not topical, nor are
    ``</s>`` and ``<unk>``, ids 0 and 1.

    Args:
        ids: (T,) word ids.
        n_words: V, size of the vocabulary.

    Returns:
        (V, K) float32 P(topic | word), if all topics are equally probable; zeros for words that are not
        topical.

    Raises:
        ConfigError: scikit-learn is not installed, or the text has too few documents or topical words.
    """
    try:
        from sklearn.decomposition import LatentDirichletAllocation
    except ImportError:
        raise ConfigError(
            "topics need scikit-learn, which the extra 'vectors' of rescorer installs"
        ) from None
    documents = count_blocks(ids, n_words)
    n_blocks = np.bincount(documents.indices, minlength=n_words)
    topical = (n_blocks >= MIN_BLOCKS) & (n_blocks <= max(MIN_BLOCKS, MAX_BLOCK_SHARE * documents.shape[0]))
    topical[:2] = False
    if documents.shape[0] < n_topics or not topical.any():
        raise ConfigError(
            f"the text has {documents.shape[0]:,} blocks of {BLOCK_WORDS} words and {int(topical.sum()):,} "
            f"topical words; expected at least {n_topics} blocks for {n_topics} topics, and one word"
        )
    model = LatentDirichletAllocation(n_topics, max_iter=PASSES, learning_method="online", random_state=1)
    model.fit(documents[:, topical])
    word_topics = np.zeros((n_words, n_topics), dtype=np.float32)
    by_word = model.exp_dirichlet_component_.T  # exp E[ln P(word | topic)], (topical words, K)
    word_topics[topical] = by_word / by_word.sum(axis=1, keepdims=True)
    return word_topics


def count_blocks(ids: np.ndarray, n_words: int):  # type: ignore[no-untyped-def]
    """Count the words of each block of a text: (blocks, V) scipy CSR matrix."""
    from scipy.sparse import csr_matrix

    blocks = np.arange(len(ids)) // BLOCK_WORDS
    shape = (-(-len(ids) // BLOCK_WORDS), n_words)
    counts = csr_matrix((np.ones(len(ids), dtype=np.float32), (blocks, ids)), shape)
    counts.sum_duplicates()
    return counts


CHUNK_SENTENCES = 64
"""Number of sentences whose topics are inferred together, so few that they fit into the processor's cache."""


def write_sentence_topics(path: Path, reader: TopicReader, text: Sentences, progress: str = "") -> None:
    """Write topic features of the text before each sentence, (S, K) float32, to an npy file."""
    topical_words, n_before = find_topical_words(reader, text)
    last = np.arange(reader.n_read)
    features = open_memmap(path, "w+", np.float32, (len(text.starts), reader.n_topics))
    with track(progress, "sentences", len(text.starts)) as task:
        for begin in range(0, len(text.starts), CHUNK_SENTENCES):
            chunk = slice(begin, begin + CHUNK_SENTENCES)
            positions = np.maximum(n_before[chunk, None] - 1 - last, 0)
            words = topical_words[positions] if len(topical_words) else np.zeros_like(positions)
            features[chunk] = reader.read_last(words, np.minimum(n_before[chunk], reader.n_read)).numpy()
            task.advance(len(positions))
    features.flush()


def find_topical_words(reader: TopicReader, text: Sentences) -> tuple[np.ndarray, np.ndarray]:
    """List the topical words of a text, (n,) int64, and count those that precede each sentence, (S,)."""
    positions = np.flatnonzero(reader.topical(text.ids))
    return text.ids[positions].astype(np.int64), np.searchsorted(positions, text.starts)


ITERATIONS = 10
MAX_TRAINING_WORDS = 2_000_000
"""Number of words, from the beginning of the text, on which tags are trained."""
BATCH_WORDS = 50_000
OWN_SHARE = 0.9
"""At first, the tag of a word's cluster gets this share of its occurrences. All tags share the rest."""
PRIOR_TRANSITIONS, PRIOR_WORDS = 0.1, 1e-3
"""Numbers for smoothing that are added to the count of each pair of tags, and of each tag with a word."""


@dataclass(frozen=True, eq=False)
class TagModel:
    """Probabilities of K tags and of V words, float64."""

    start: np.ndarray
    """(K,) P(tag of the first word)."""
    transitions: np.ndarray
    """(K, K) P(next tag | tag), one row per tag."""
    words: np.ndarray
    """(V, K) P(word | tag), one column per tag; zeros for ``</s>`` and ``<s>``."""

    def tags_of_words(self) -> np.ndarray:
        """Compute P(tag | word) for equally probable tags, (V, K) float32; zeros for words without tags."""
        total = self.words.sum(axis=1, keepdims=True)
        return (self.words / np.where(total > 0, total, 1)).astype(np.float32)


@dataclass(frozen=True, eq=False)
class ExpectedCounts:
    """Expected occurrences of tags in a text."""

    start: np.ndarray
    transitions: np.ndarray
    words: np.ndarray
    log_prob: float
    """ln P(text), in nats."""


def fit_tags(text: Sentences, n_words: int, n_tags: int) -> TagModel:
    """Induce tags from a text.

    Args:
        n_words: V, with ``<s>`` as the last word.

    Raises:
        ConfigError: there are fewer words than tags.
    """
    if n_words - 2 < n_tags:
        raise ConfigError(
            f"pos_tags is {n_tags}; expected at most {n_words - 2:,}, the number of words beside <s> and </s>"
        )
    n_sentences = int(np.searchsorted(np.cumsum(text.lengths), MAX_TRAINING_WORDS, side="right"))
    chosen = np.arange(min(max(n_sentences, 1), len(text.starts)))
    model = start_from_clusters(text, n_words, n_tags)
    batches = make_batches(text, chosen)
    with track("inducing parts of speech", "iterations", ITERATIONS) as task:
        for _ in range(ITERATIONS):
            model = reestimate([count_tags(model, words) for words in batches])
            task.advance(1)
    return model


def count_known_tags(
    sentences: Iterable[Sequence[tuple[str, str]]], names: Sequence[str], vocabulary: Vocabulary
) -> TagModel:
    """Estimate the probabilities of the tags of a tagged text by their counts.

    A word of the vocabulary that the text lacks is taken to have occurred once, with the tags of words that
    did.

    Args:
        sentences: words with tags, as language models read them.
        names: all tags, in the order of their numbers.
    """
    n_tags, n_words = len(names), len(vocabulary)
    numbers = {name: number for number, name in enumerate(names)}
    start, transitions = np.zeros(n_tags), np.zeros((n_tags, n_tags))
    words = np.zeros((n_words, n_tags))
    for sentence in sentences:
        tags = np.array([numbers[tag] for _, tag in sentence], dtype=np.int64)
        np.add.at(start, tags[:1], 1)
        np.add.at(transitions, (tags[:-1], tags[1:]), 1)
        np.add.at(words, (vocabulary.encode(word for word, _ in sentence), tags), 1)
    occurrences = words.sum(axis=1)
    rare = words[occurrences == 1].sum(axis=0) + PRIOR_WORDS
    words[occurrences == 0] = rare / rare.sum()
    return reestimate([ExpectedCounts(start, transitions, words, 0.0)])


def start_from_clusters(text: Sentences, n_words: int, n_tags: int) -> TagModel:
    """Make a model whose tags are Brown clusters, with equally probable transitions."""
    clusters = find_brown_clusters(text.ids, n_words - 1, n_tags + 1) - 1  # without that of </s>
    counts = np.bincount(text.ids, minlength=n_words).astype(np.float64)
    shares = np.full((n_words, n_tags), (1 - OWN_SHARE) / n_tags)
    shares[np.arange(n_words - 1), clusters] += OWN_SHARE
    words = shares * counts[:, None]
    words[[0, -1]] = 0.0  # </s> and <s>
    even = np.full((n_tags, n_tags), 1 / n_tags)
    return TagModel(even[0], even, words / words.sum(axis=0))


def make_batches(text: Sentences, chosen: np.ndarray) -> list[np.ndarray]:
    """Divide sentences into batches of similar length: (B, T) ids without ``</s>``, padded with -1."""
    order = chosen[np.argsort(text.lengths[chosen], kind="stable")]
    padded = (text.pad(text.ids, rows) for rows in cut_into_batches(order, text.lengths, BATCH_WORDS))
    return [np.where(rows == 0, -1, rows) for rows in padded]


def count_tags(model: TagModel, words: np.ndarray) -> ExpectedCounts:
    """Compute how often a model expects each tag in sentences, by the forward-backward algorithm.

    Args:
        words: (B, T) ids, padded with -1 at the ends of rows.

    Returns:
        Expected counts of first tags, (K,), of pairs of tags, (K, K), and of words with tags, (V, K).
    """
    from scipy.sparse import csr_array

    n_rows, n_columns = words.shape
    exists = words >= 0
    emitted = np.where(exists[:, :, None], model.words[words], 1.0)  # (B, T, K)
    filtered, scales = np.empty_like(emitted), np.ones((n_rows, n_columns))
    expected = np.broadcast_to(model.start, (n_rows, len(model.start)))
    for t in range(n_columns):
        joint = expected * emitted[:, t]
        scales[:, t] = joint.sum(axis=1)
        filtered[:, t] = joint / scales[:, t, None]
        expected = filtered[:, t] @ model.transitions
    pairs = np.zeros_like(model.transitions)
    smoothed = np.empty_like(emitted)
    later = np.ones((n_rows, len(model.start)))  # P(words after t | tag at t), relative to its expectation
    for t in range(n_columns - 1, -1, -1):
        smoothed[:, t] = filtered[:, t] * later * exists[:, t, None]
        if t:
            weights = emitted[:, t] * later / scales[:, t, None]
            pairs += (filtered[:, t - 1] * exists[:, t, None]).T @ weights
            later = np.where(exists[:, t, None], weights @ model.transitions.T, later)
    n = int(exists.sum())
    occurrences = csr_array((np.ones(n), (words[exists], np.arange(n))), shape=(len(model.words), n))
    of_words = occurrences @ smoothed[exists]
    log_prob = float(np.log(scales[exists]).sum())
    return ExpectedCounts(smoothed[:, :1].sum(axis=(0, 1)), pairs * model.transitions, of_words, log_prob)


def reestimate(counts: list[ExpectedCounts]) -> TagModel:
    """Compute probabilities from expected counts, after adding a few occurrences of everything."""
    start = np.sum([part.start for part in counts], axis=0) + PRIOR_TRANSITIONS
    transitions = np.sum([part.transitions for part in counts], axis=0) + PRIOR_TRANSITIONS
    words = np.sum([part.words for part in counts], axis=0) + PRIOR_WORDS
    words[[0, -1]] = 0.0  # </s> and <s>
    return TagModel(
        start / start.sum(), transitions / transitions.sum(axis=1, keepdims=True), words / words.sum(axis=0)
    )
