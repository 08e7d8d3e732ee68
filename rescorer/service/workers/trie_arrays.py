"""Convert tries and their scores to flat arrays, which frames carry between processes."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

import numpy as np

from rescorer.lm.base import EdgeScores
from rescorer.service.workers.ipc import Arrays
from rescorer.trie import HypothesisTrie


def pack_trie(trie: HypothesisTrie) -> Arrays:
    """Convert a trie to flat arrays. Words are UTF-8, one per line, because no word contains a line break."""
    words = "".join(f"{word}\n" for word in trie.words).encode("utf-8", "surrogatepass")
    contexts = [np.asarray(context, dtype=np.int64) for context in trie.contexts]
    return {
        "words": np.frombuffer(words, dtype=np.uint8),
        "contexts": np.concatenate([*contexts, np.zeros(0, dtype=np.int64)]),
        "context_lengths": np.array([len(context) for context in contexts], dtype=np.int64),
        "parent": trie.parent,
        "node_word": trie.node_word,
        "level_bounds": np.array(trie.level_bounds, dtype=np.int64),
        "hypothesis_node": trie.hypothesis_node,
        "end_nodes": trie.end_nodes,
        "confidences": np.array([value for values in trie.confidences for value in values], dtype=np.float64),
        "confidence_counts": np.array(list(map(len, trie.confidences)), dtype=np.int64),
        "flatness": np.array(trie.flatness, dtype=np.float64),
    }


def unpack_trie(arrays: Arrays) -> HypothesisTrie:
    """Rebuild the trie that ``pack_trie`` converted."""
    words = arrays["words"].tobytes().decode("utf-8", "surrogatepass").split("\n")[:-1]
    bounds = np.cumsum(arrays["context_lengths"])[:-1]
    return HypothesisTrie(
        words=tuple(words),
        contexts=tuple(np.split(arrays["contexts"], bounds)) if len(arrays["context_lengths"]) else (),
        parent=arrays["parent"],
        node_word=arrays["node_word"],
        level_bounds=tuple(arrays["level_bounds"].tolist()),
        hypothesis_node=arrays["hypothesis_node"],
        end_nodes=arrays["end_nodes"],
        confidences=_split_confidences(arrays),
        flatness=tuple(arrays["flatness"].tolist()),
    )


def _split_confidences(arrays: Arrays) -> tuple[tuple[float, ...], ...]:
    """The confidences of the utterances before each root."""
    values = iter(arrays["confidences"].tolist())
    return tuple(tuple(islice(values, count)) for count in arrays["confidence_counts"].tolist())


def pack_scores(scores: Mapping[str, EdgeScores]) -> Arrays:
    """Convert edge scores by model to flat arrays: three per model, one if it has a neural cache, and
    one per encoding of words by it."""
    arrays = {f"log_probs {name}": edges.log_probs for name, edges in scores.items()}
    arrays |= {f"unknown {name}": edges.unknown for name, edges in scores.items()}
    arrays |= {f"backward {name}": np.array([edges.backward]) for name, edges in scores.items()}
    arrays |= {f"cached {name}": edges.cached for name, edges in scores.items() if edges.cached is not None}
    return arrays | {
        f"encoding {name}/{reranker}": values  # no name contains a slash
        for name, edges in scores.items()
        for reranker, values in edges.encodings.items()
    }


def unpack_scores(arrays: Arrays) -> dict[str, EdgeScores]:
    """Rebuild the edge scores that ``pack_scores`` converted."""
    names = [name.removeprefix("log_probs ") for name in arrays if name.startswith("log_probs ")]
    encodings: dict[str, dict[str, np.ndarray]] = {name: {} for name in names}
    for key, values in arrays.items():
        if key.startswith("encoding "):
            name, _, reranker = key.removeprefix("encoding ").partition("/")
            encodings[name][reranker] = values
    return {
        name: EdgeScores(
            arrays[f"log_probs {name}"],
            arrays[f"unknown {name}"],
            encodings[name],
            bool(arrays[f"backward {name}"][0]),
            arrays.get(f"cached {name}"),
        )
        for name in names
    }
