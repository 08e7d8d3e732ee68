"""Messages between processes: frames of a JSON header and flat arrays, with tries and edge scores in them.

    4 bytes magic, 4 bytes header length, 8 bytes body length, header, body

The header is a JSON object. Its entry ``arrays`` lists the name, type and shape of each array; the body holds
the arrays in the same order, each aligned to 8 bytes. Nothing is pickled. The service and jobs send tries to
the processes that hold models, and get edge scores back.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from traceback import format_exception
from typing import Any, NamedTuple

import numpy as np

from rescorer import errors
from rescorer.errors import RescorerError, ScoringError
from rescorer.runtime import ContextWords
from rescorer.trie import EdgeScores, HypothesisTrie

PREFIX = struct.Struct("<4sIQ")
MAGIC = b"RSF1"
MAX_FRAME_BYTES = 1 << 32
"""Largest frame in bytes, without its prefix."""
SCORE = "score"
"""Operation of a request to score a trie."""
UNEXPECTED_ERROR = "unexpected error in another process; its log has the details"
ARRAY_TYPES = {"<i8", "<f8", "|b1", "|u1"}

Arrays = Mapping[str, np.ndarray]


class Frame(NamedTuple):
    header: dict[str, Any]
    arrays: Arrays


def pack(header: Mapping[str, Any], arrays: Arrays | None = None) -> bytes:
    """Serialise a frame.

    Raises:
        ValueError: an array has a type that frames do not support.
    """
    descriptions, parts = [], []
    for name, array in (arrays or {}).items():
        array = np.ascontiguousarray(array)
        if array.dtype.str not in ARRAY_TYPES:
            raise ValueError(
                f"array {name!r}: expected one of the types {sorted(ARRAY_TYPES)}, got {array.dtype.str}"
            )
        descriptions.append([name, array.dtype.str, list(array.shape)])
        parts += [array.tobytes(), bytes(-array.nbytes % 8)]
    head = json.dumps({**header, "arrays": descriptions}).encode()
    body = b"".join(parts)
    return PREFIX.pack(MAGIC, len(head), len(body)) + head + body


def parse_prefix(prefix: bytes | bytearray) -> tuple[int, int]:
    """Return the lengths in bytes of a frame's header and body.

    Raises:
        ValueError: the magic is wrong, or the frame is larger than ``MAX_FRAME_BYTES``.
    """
    magic, head, body = PREFIX.unpack(prefix)
    if magic != MAGIC or head + body > MAX_FRAME_BYTES:
        raise ValueError(f"invalid frame prefix {prefix!r}")
    return head, body


def unpack(head: bytes | bytearray, body: bytes | bytearray) -> Frame:
    """Deserialise a frame from its header and body.

    Raises:
        ValueError: an array has an unsupported type or shape, or extends beyond the body.
    """
    header = json.loads(head)
    arrays, begin = {}, 0
    for name, kind, shape in header.pop("arrays"):
        if kind not in ARRAY_TYPES or any(size < 0 for size in shape):
            raise ValueError(f"array {name!r} has the invalid type {kind!r} or shape {shape}")
        count = int(np.prod(shape, dtype=np.int64))
        dtype = np.dtype(kind)
        if begin + count * dtype.itemsize > len(body):
            raise ValueError(f"array {name!r} of shape {shape} extends beyond the frame")
        arrays[name] = np.frombuffer(body, dtype, count, begin).reshape(shape)
        begin += count * dtype.itemsize
        begin += -begin % 8
    return Frame(header, arrays)


def error_header(error: Exception) -> dict[str, Any]:
    """Describe an error in the header of a reply.

    An error that is not ours becomes a ScoringError. Its traceback is for the log only. It is not in the
    message, because clients may get the message as the reason why a model was refused.
    """
    if isinstance(error, RescorerError):
        return {"fault": type(error).__name__, "message": str(error)}
    traceback = "".join(format_exception(error))
    return {"fault": ScoringError.__name__, "message": UNEXPECTED_ERROR, "traceback": traceback}


def error_from_header(header: Mapping[str, Any]) -> RescorerError | None:
    """Rebuild the error that the header of a reply describes; None if the header describes none."""
    if "fault" not in header:
        return None
    kind = getattr(errors, header["fault"], ScoringError)
    known = isinstance(kind, type) and issubclass(kind, RescorerError)
    error = (kind if known else ScoringError)(header["message"])
    if "traceback" in header:
        error.add_note(header["traceback"])
    return error


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
    confidences = iter(arrays["confidences"].tolist())
    bounds = np.cumsum(arrays["context_lengths"])[:-1]
    return HypothesisTrie(
        words=tuple(words),
        contexts=tuple(np.split(arrays["contexts"], bounds)) if len(arrays["context_lengths"]) else (),
        parent=arrays["parent"],
        node_word=arrays["node_word"],
        level_bounds=tuple(arrays["level_bounds"].tolist()),
        hypothesis_node=arrays["hypothesis_node"],
        end_nodes=arrays["end_nodes"],
        confidences=tuple(
            tuple(islice(confidences, count)) for count in arrays["confidence_counts"].tolist()
        ),
        flatness=tuple(arrays["flatness"].tolist()),
    )


def pack_scores(scores: Mapping[str, EdgeScores]) -> Arrays:
    """Convert edge scores by model to flat arrays.

    Each model has three arrays, one more each for a neural cache and for probabilities of words if it has
    them, and one for each of its word encodings.
    """
    arrays = {f"log_probs {name}": edges.log_probs for name, edges in scores.items()}
    arrays |= {f"unknown {name}": edges.unknown for name, edges in scores.items()}
    arrays |= {f"backward {name}": np.array([edges.backward]) for name, edges in scores.items()}
    arrays |= {f"cached {name}": edges.cached for name, edges in scores.items() if edges.cached is not None}
    for name, edges in scores.items():
        if edges.word_log_probs is not None:
            arrays[f"words {name}"] = edges.word_log_probs
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
            arrays.get(f"words {name}"),
        )
        for name in names
    }


class ScoreJob(NamedTuple):
    """A trie that a worker has to score with a bundle."""

    label: str
    """The bundle, as ``name/version``."""
    trie: HypothesisTrie
    models: Sequence[str] = ()
    """Names of the models to score with; empty: all models of the bundle."""
    encoders: Sequence[str] = ()
    """Names of rerankers of the bundle, for each of which the words are encoded."""
    surface: bool = False
    """Whether the trie holds texts as they are written; see ``ScoreRequest``."""
    overtakes: bool = False
    """Whether the trie may be scored between two steps of scoring another one."""
    words: Collection[str] = ()
    """Names of the models of which probabilities of words are needed; see ``ScoreRequest``."""

    def pack(self) -> tuple[dict[str, Any], Arrays]:
        """Return the header and the arrays of the request."""
        header = {"do": SCORE, "label": self.label, "models": [*self.models], "encoders": [*self.encoders]}
        flags = {"surface": self.surface, "overtakes": self.overtakes, "words": sorted(self.words)}
        return header | flags, pack_trie(self.trie)

    @classmethod
    def unpack(cls, frame: Frame) -> ScoreJob:
        header = frame.header
        trie, surface = unpack_trie(frame.arrays), header.get("surface", False)
        overtakes, words = header.get("overtakes", False), header.get("words", [])
        return cls(header["label"], trie, header["models"], header["encoders"], surface, overtakes, words)


class WorkerScores(NamedTuple):
    """Edge scores of a trie, with the time and memory that scoring took."""

    scores: Mapping[str, EdgeScores]
    """Edge scores by name of the model."""
    seconds: Mapping[str, float]
    """Seconds by phase. Work of a GPU is counted in the phase that waits for it."""
    context_words: ContextWords
    device_bytes: Mapping[str, int]
    """Memory on a GPU in bytes, by kind; empty on a CPU."""

    def pack(self) -> tuple[dict[str, Any], Arrays]:
        """Return the header and the arrays of the reply to a ``ScoreJob``."""
        header = {
            "seconds": self.seconds,
            "context_words": asdict(self.context_words),
            "device_bytes": self.device_bytes,
        }
        return header, pack_scores(self.scores)

    @classmethod
    def unpack(cls, frame: Frame) -> WorkerScores:
        header, scores = frame.header, unpack_scores(frame.arrays)
        context_words = ContextWords(**header["context_words"])
        return cls(scores, header["seconds"], context_words, header["device_bytes"])
