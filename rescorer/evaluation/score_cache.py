"""Cache the models' scores on disk by content, so that a second tuning runs no language model.

One file holds the scores of one batch of hypotheses, word by word: mixtures are computed from them under any
λ. Its name is a hash of everything that the scores depend on: the canonical words and contexts of the batch,
the files of the models, device and precision. A file that cannot be used is computed again.
"""

from __future__ import annotations

import hashlib
import math
import os
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from rescorer.bundle import PHRASES, WEIGHTS, Bundle, read_bundle
from rescorer.lm.base import EdgeScores, LanguageModel
from rescorer.model_loading import load_bundle_models
from rescorer.pipeline import Rescorer
from rescorer.trie import HypothesisTrie
from rescorer.trie_scorer import Encoders, TrieScorer, find_encoders

SCHEMA = 1
MAX_HEADER_BYTES = 1 << 16
MAX_CACHE_BYTES = 4 << 30
"""Size of the folder above which its oldest files are deleted."""
SUFFIX = ".safetensors"
IRRELEVANT = (f"{WEIGHTS}/", f"{PHRASES}/")
"""What the names of the files of a bundle begin with that scores of models do not depend on."""

Arrays = Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]
"""Type and shape of arrays by name."""


def find_cache_folder() -> Path:
    """Default folder: ``rescorer/scores`` in the user's cache folder (XDG base directory specification)."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "rescorer" / "scores"


def load_cached_rescorer(
    bundle_folder: Path | str, device: str, cache: Path, on_note: Callable[[str], None]
) -> Rescorer:
    """Load a bundle whose scores are cached; its models are loaded when a score is missing.

    Args:
        cache: folder of the cache, which is created.
        on_note: called with a line about each file of the cache that cannot be read or written.

    Raises:
        BundleError: the bundle cannot be used.
    """
    bundle = read_bundle(bundle_folder)
    models = _LazyModels(bundle, device)
    rescorer = Rescorer(bundle, models)
    rescorer.scorer = CachingTrieScorer(models, bundle, device, cache, on_note)
    return rescorer


class _LazyModels(Mapping[str, LanguageModel]):
    """The models of a bundle, all of which are loaded when the first one is needed."""

    def __init__(self, bundle: Bundle, device: str) -> None:
        self._bundle, self._device = bundle, device

    @cached_property
    def _models(self) -> dict[str, LanguageModel]:
        return load_bundle_models(self._bundle, self._device)

    def __getitem__(self, name: str) -> LanguageModel:
        return self._models[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._bundle.model_kinds)

    def __len__(self) -> int:
        return len(self._bundle.model_kinds)


class CachingTrieScorer(TrieScorer):
    """Score tries by the models of a bundle, or read their scores from files.

    Args:
        folder: folder of the files.
        on_note: called with a line about each file that cannot be read or written.
    """

    def __init__(
        self,
        models: Mapping[str, LanguageModel],
        bundle: Bundle,
        device: str,
        folder: Path,
        on_note: Callable[[str], None],
    ) -> None:
        super().__init__(models, bundle.label, find_encoders(bundle))
        self._folder, self._on_note, self._backward = folder, on_note, bundle.backward
        self._remembers = bundle.remembers
        self._identity = hashlib.sha256(_describe_models(bundle, device).encode()).digest()
        self._can_write = True

    def score(
        self, trie: HypothesisTrie, only: Sequence[str] = (), encoders: Encoders | None = None
    ) -> dict[str, EdgeScores]:
        names, encoders = list(only or self.models), encoders or {}
        path = self._folder / f"{self._hash(trie, names, encoders)}{SUFFIX}"
        scores = self._read(
            path, names, describe_arrays(names, trie, encoders, self._backward, self._remembers)
        )
        if scores is None:
            scores = super().score(trie, only, encoders)
            self._write(path, scores)
        return scores

    def _hash(self, trie: HypothesisTrie, names: Sequence[str], encoders: Encoders) -> str:
        digest = hashlib.sha256(self._identity)
        for text in (*names, "", *trie.words):
            digest.update(f"{len(text)} {text}".encode())
        arrays = [trie.parent, trie.node_word, trie.end_nodes, *trie.contexts]
        if encoders:  # scores without encodings keep their names
            digest.update(repr([(name, encoder.model) for name, encoder in encoders.items()]).encode())
            arrays += [trie.hypothesis_node, *(encoder.projection for encoder in encoders.values())]
        if any(trie.flatness):  # likewise
            digest.update(repr([trie.flatness, trie.confidences]).encode())
        for values in arrays:
            digest.update(f"{values.dtype} {values.shape}".encode() + values.tobytes())
        return digest.hexdigest()

    def _read(self, path: Path, names: Sequence[str], arrays: Arrays) -> dict[str, EdgeScores] | None:
        from safetensors import SafetensorError
        from safetensors.numpy import load

        size = sum(dtype.itemsize * math.prod(shape) for dtype, shape in arrays.values())
        try:
            with open(path, "rb", opener=_open_without_blocking) as stream:
                status = os.fstat(stream.fileno())
                if not stat.S_ISREG(status.st_mode) or not size <= status.st_size <= size + MAX_HEADER_BYTES:
                    raise ValueError(f"{status.st_size:,} bytes; expected {size:,} and a header")
                tensors = load(stream.read(size + MAX_HEADER_BYTES))
            with suppress(OSError):  # the cache may be shared and read-only
                os.utime(path)  # recently used files are deleted last
            for key, (dtype, shape) in arrays.items():
                check_array(key, tensors[key], dtype, shape)
            return {name: unpack_scores(tensors, name, name in self._backward) for name in names}
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            self._on_note(f"{path}: cannot be used and is computed again: {error}")
            return None

    def _write(self, path: Path, scores: Mapping[str, EdgeScores]) -> None:
        """Write a file in one step; a folder that cannot be written is mentioned once."""
        from safetensors.numpy import save

        if not self._can_write:
            return
        tensors = {f"log_probs/{name}": part.log_probs for name, part in scores.items()}
        tensors |= {f"unknown/{name}": part.unknown for name, part in scores.items()}
        tensors |= {
            f"encoding/{name}/{key}": values
            for name, part in scores.items()
            for key, values in part.encodings.items()
        }
        tensors |= {f"cached/{n}": part.cached for n, part in scores.items() if part.cached is not None}
        partial = path.with_suffix(f".{os.getpid()}.partial")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            partial.write_bytes(save({name: np.ascontiguousarray(part) for name, part in tensors.items()}))
            os.replace(partial, path)
            delete_oldest(self._folder)
        except OSError as error:
            self._can_write = False
            with suppress(OSError):
                partial.unlink()
            self._on_note(f"{self._folder}: scores cannot be cached: {error.strerror}")


def delete_oldest(folder: Path, max_bytes: int = MAX_CACHE_BYTES) -> None:
    """Delete the files that were not used for longest, until the others fit."""
    files = []
    for path in folder.glob(f"*{SUFFIX}"):
        status = path.lstat()
        files.append((status.st_mtime, status.st_size, path))
    total = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if total <= max_bytes:
            return
        path.unlink(missing_ok=True)
        total -= size


def _describe_models(bundle: Bundle, device: str) -> str:
    """Everything besides the words that scores depend on."""
    hashes = {
        name: digest for name, digest in bundle.manifest["files"].items() if not name.startswith(IRRELEVANT)
    }
    return f"{SCHEMA} {device} {sorted(bundle.manifest['models'].items())} {sorted(hashes.items())}"


def describe_arrays(
    names: Sequence[str],
    trie: HypothesisTrie,
    encoders: Encoders,
    backward: Collection[str] = (),
    remembers: Collection[str] = (),
) -> Arrays:
    """Type and shape of every array of a file, by name; no name of a model contains a slash.

    Args:
        backward: names of the backward models.
        remembers: names of those that can have a neural cache.
    """
    arrays: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
    for name in names:
        n_edges = trie.in_direction(name in backward).n_edges
        arrays[f"log_probs/{name}"] = np.dtype(np.float64), (n_edges,)
        arrays[f"unknown/{name}"] = np.dtype(np.bool_), (n_edges,)
        if any(trie.flatness) and name in remembers:
            arrays[f"cached/{name}"] = np.dtype(np.float64), (n_edges,)
    for key, encoder in encoders.items():
        if encoder.model in names:
            shape = len(trie.hypothesis_node), encoder.projection.shape[1]
            arrays[f"encoding/{encoder.model}/{key}"] = np.dtype(np.float64), shape
    return arrays


def check_array(name: str, values: np.ndarray, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """Raise ValueError unless an array has a type and a shape, and only finite values."""
    if values.dtype != dtype or values.shape != shape:
        raise ValueError(f"{name}: {values.dtype} {values.shape}; expected {dtype} {shape}")
    if not np.isfinite(values).all():
        raise ValueError(f"{name}: a value is not finite")


def unpack_scores(tensors: Mapping[str, np.ndarray], name: str, backward: bool = False) -> EdgeScores:
    """The scores of a model among the arrays of a file."""
    prefix = f"encoding/{name}/"
    encodings = {key.removeprefix(prefix): tensors[key] for key in tensors if key.startswith(prefix)}
    log_probs, unknown = tensors[f"log_probs/{name}"], tensors[f"unknown/{name}"]
    return EdgeScores(log_probs, unknown, encodings, backward, tensors.get(f"cached/{name}"))


def _open_without_blocking(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)
