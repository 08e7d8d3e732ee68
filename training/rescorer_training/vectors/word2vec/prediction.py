"""Probabilities that the vectors of a run give: of words near a word, or of a word among others."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rescorer.errors import BundleError, ConfigError
from rescorer.lm.output.tree_paths import leaf_paths
from rescorer_training.classes.softmax_trees import build_huffman_tree
from rescorer_training.state_files import read_metadata
from rescorer_training.vectors.encoded_text import load_vocabulary
from rescorer_training.vectors.word2vec.options import Word2VecOptions
from rescorer_training.vectors.word2vec.state import STATE_FILE, load_state

if TYPE_CHECKING:
    from scipy.sparse import csr_array


@dataclass(frozen=True, eq=False)
class NeighbourModel:
    """Input and output vectors of CBOW or skip-gram, and the vocabulary in the order of their rows."""

    words: tuple[str, ...]
    counts: np.ndarray
    """(V,) occurrences of each word in the training text."""
    inputs: np.ndarray
    """(V, D) float32, vectors of context words."""
    outputs: np.ndarray
    """(V, D) float32, vectors of predicted words; or (V - 1, D), of the nodes of the Huffman tree."""
    options: Word2VecOptions

    @cached_property
    def index(self) -> dict[str, int]:
        """Row of each word."""
        return {word: row for row, word in enumerate(self.words)}

    def log_probs(self, queries: np.ndarray) -> np.ndarray:
        """ln P(word | query) of all words, (N, D) → (N, V) float64.

        With negative sampling, the score q·v estimates ln P(w | q) / (k P'(w)), where P' is the distribution
        of noise words (Levy & Goldberg 2014). So P(w | q) ∝ P'(w) exp q·v, which is normalised here.
        """
        scores = (queries.astype(np.float32) @ self.outputs.T).astype(np.float64)
        if self.options.output_layer == "hierarchical":
            decisions = np.concatenate([_log_sigmoid(scores), _log_sigmoid(-scores)], axis=1)
            return np.asarray((self._paths @ decisions.T).T)
        scores += self.options.noise_exponent * np.log(self.counts)
        scores -= scores.max(axis=1, keepdims=True)
        return np.asarray(scores - np.log(np.exp(scores).sum(axis=1, keepdims=True)))

    @cached_property
    def _paths(self) -> csr_array:
        """Decisions on the path to each word, (V, 2(V - 1)): nodes left for the first child, then others."""
        from scipy.sparse import csr_array

        n_words = len(self.words)
        starts, nodes, sides = leaf_paths(build_huffman_tree(self.counts), n_words)
        shape = (n_words, 2 * (n_words - 1))
        return csr_array((np.ones(len(nodes)), nodes + sides * (n_words - 1), starts), shape=shape)


def load_neighbour_model(folder: Path) -> NeighbourModel:
    """Load the vectors of a run; they need not be trained to the end.

    Raises:
        ConfigError: the folder has no run of CBOW or skip-gram.
        BundleError: the run's files are damaged.
    """
    if not (folder / STATE_FILE).exists():
        raise ConfigError(f"{folder} has no run of vectors train; expected a folder given to its --run")
    words, counts = load_vocabulary(folder)
    try:
        options = Word2VecOptions(**json.loads(read_metadata(folder / STATE_FILE)["options"]))
    except (KeyError, TypeError, ValueError, ConfigError) as error:
        path = folder / STATE_FILE
        raise BundleError(f"{path} is not the state of a run of word vectors: {error!r}") from None
    state = load_state(folder, len(words), options)
    n_outputs = len(words) - (options.output_layer == "hierarchical")
    inputs, outputs = state.inputs[:-1].numpy(), state.outputs[:n_outputs].numpy()
    return NeighbourModel(words, counts, inputs, outputs, options)


def _log_sigmoid(values: np.ndarray) -> np.ndarray:
    return -np.logaddexp(0, -values)
