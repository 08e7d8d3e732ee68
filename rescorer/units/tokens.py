"""Pieces of words: tokenizers of other toolkits, and the tree of units below a trie of words.

A tokenizer divides a text into units. Nearly all divide each word by itself, so that a word is a chain of
units, of which there are two: at the start of a text, and after a space. The tree of units of a batch grows
along its trie of words, level by level; words that begin with the same units share them. An edge of the trie
then is the sum of the edges of its chain.

Where a tokenizer divides some words otherwise than in their sentence, chains would be wrong. Import finds
that out on text (``find_inseparable``); the texts of such models are divided whole (``whole_texts``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from rescorer.errors import BundleError, ConfigError
from rescorer.models.tree_attention import PrefixTree, number_in_preorder
from rescorer.safe_input import Folder
from rescorer.trie import HypothesisTrie, Words, grow_trie

TOKENIZER_FILE, SENTENCEPIECE_FILE = "tokenizer.json", "tokenizer.model"
MAX_TOKENIZER_BYTES = 64 << 20
"""Largest file of a tokenizer; those of 250,000 units have 35 MB."""
MAX_CACHED_WORDS = 200_000
"""Number of words whose units are kept; a cache that is full starts afresh."""
CARRIER = "a"
"""Word before another one when the latter's units after a space are asked for."""


class Tokenizer(Protocol):
    """Divides texts into the units of a model; no special units are added."""

    size: int

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Units of each text."""

    def find(self, unit: str) -> int | None:
        """Number of a unit by its name, such as ``<|endoftext|>``; None if there is no such unit."""

    def name(self, number: int) -> str:
        """Name of a unit."""


class JsonTokenizer:
    """A tokenizer of Hugging Face's ``tokenizers``, from its JSON file."""

    def __init__(self, data: bytes, place: str) -> None:
        library = import_library("tokenizers")
        try:
            self._tokenizer: Any = library.Tokenizer.from_buffer(data)
        except Exception as error:  # the library raises plain exceptions
            raise BundleError(f"{place}: cannot be read as a tokenizer: {str(error)[:200]}") from None
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self.size = self._tokenizer.get_vocab_size(with_added_tokens=True)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """See ``Tokenizer``."""
        return [one.ids for one in self._tokenizer.encode_batch(list(texts), add_special_tokens=False)]

    def find(self, unit: str) -> int | None:
        """See ``Tokenizer``."""
        number: int | None = self._tokenizer.token_to_id(unit)
        return number

    def name(self, number: int) -> str:
        """See ``Tokenizer``."""
        return self._tokenizer.id_to_token(number) or ""


class SentencePieceTokenizer:
    """A tokenizer of SentencePiece, from its model file."""

    def __init__(self, data: bytes, place: str) -> None:
        library = import_library("sentencepiece")
        self._tokenizer: Any = library.SentencePieceProcessor()
        try:
            self._tokenizer.LoadFromSerializedProto(data)
        except (RuntimeError, TypeError) as error:
            raise BundleError(
                f"{place}: cannot be read as a SentencePiece model: {str(error)[:200]}"
            ) from None
        self.size = self._tokenizer.GetPieceSize()

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """See ``Tokenizer``."""
        units: list[list[int]] = self._tokenizer.Encode(list(texts), out_type=int)
        return units

    def find(self, unit: str) -> int | None:
        """See ``Tokenizer``."""
        number: int = self._tokenizer.PieceToId(unit)
        return number if self._tokenizer.IdToPiece(number) == unit else None

    def name(self, number: int) -> str:
        """See ``Tokenizer``."""
        return str(self._tokenizer.IdToPiece(number))


def read_tokenizer(files: Folder) -> Tokenizer:
    """Read the tokenizer of a folder.

    Raises:
        BundleError: there is no tokenizer, or its file is damaged.
        ConfigError: the library that reads it is not installed.
    """
    if (files.path / TOKENIZER_FILE).exists():
        data = files.read_bytes(TOKENIZER_FILE, MAX_TOKENIZER_BYTES)
        return JsonTokenizer(data, str(files.path / TOKENIZER_FILE))
    if (files.path / SENTENCEPIECE_FILE).exists():
        data = files.read_bytes(SENTENCEPIECE_FILE, MAX_TOKENIZER_BYTES)
        return SentencePieceTokenizer(data, str(files.path / SENTENCEPIECE_FILE))
    raise BundleError(f"{files.path}: no tokenizer; expected {TOKENIZER_FILE} or {SENTENCEPIECE_FILE}")


def import_library(name: str) -> Any:
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError:
        raise ConfigError(
            f"models in pieces of words need the package {name}: pip install 'rescorer[units]'"
        ) from None


@dataclass(frozen=True, slots=True)
class Chains:
    """The units of some words, one chain after the other."""

    units: np.ndarray  # (T,) int64
    first: np.ndarray  # (W,) int64 index of the first unit of each word
    lengths: np.ndarray  # (W,) int64

    @classmethod
    def join(cls, chains: Sequence[Sequence[int]]) -> Chains:
        """Join the chains of words."""
        lengths = np.fromiter(map(len, chains), dtype=np.int64, count=len(chains))
        units = np.fromiter((unit for chain in chains for unit in chain), dtype=np.int64)
        return cls(units, np.cumsum(lengths) - lengths, lengths)


class WordDivider:
    """Divides words into units, and remembers what it has divided.

    Args:
        change: applied to words before they are divided, such as ``str.upper``.
    """

    def __init__(self, tokenizer: Tokenizer, change: Callable[[str], str] = str) -> None:
        self.tokenizer, self.change = tokenizer, change
        self._carrier = tokenizer.encode([change(CARRIER)])[0]
        self._known: tuple[dict[str, Sequence[int]], dict[str, Sequence[int]]] = {}, {}

    def divide(self, words: Iterable[str], *, after_space: bool) -> list[Sequence[int]]:
        """Units of each word, at the start of a text or after a space.

        Not thread-safe: call it from one thread at a time.
        """
        words = list(words)
        known = self._known[after_space]
        new = [word for word in dict.fromkeys(words) if word not in known]
        if len(known) + len(new) > MAX_CACHED_WORDS:
            known.clear()
            new = list(dict.fromkeys(words))
        changed = [self.change(word) for word in new]
        if after_space:
            n_carrier = len(self._carrier)
            texts = [f"{self.change(CARRIER)} {word}" for word in changed]
            chains = [chain[n_carrier:] for chain in self.tokenizer.encode(texts)]
        else:
            chains = self.tokenizer.encode(changed)
        known.update(zip(new, chains, strict=True))
        return [known[word] for word in words]

    def divide_text(self, words: Words) -> list[int]:
        """Units of a text, word by word."""
        if not words:
            return []
        chains = [*self.divide(words[:1], after_space=False), *self.divide(words[1:], after_space=True)]
        return [unit for chain in chains for unit in chain]

    def find_inseparable(self, texts: Iterable[Words]) -> Words | None:
        """The first of some texts that is divided otherwise as a whole than word by word; None if none is."""
        for words in texts:
            if self.divide_text(words) != self.tokenizer.encode([self.change(" ".join(words))])[0]:
                return words
        return None


@dataclass(frozen=True, slots=True)
class UnitTree:
    """The units of a batch, as a tree below its start symbol."""

    tree: PrefixTree
    word_ends: np.ndarray
    """(N,) for each node of the trie of words, the unit that ends its word."""
    levels: Sequence[slice]
    """Nodes below the contexts; parents are in earlier ones."""

    def fold(self, trie: HypothesisTrie, unit_log_probs: np.ndarray, end_log_probs: np.ndarray) -> np.ndarray:
        """Sum units to words: ln P of each edge of the trie, (E,) float64.

        Args:
            unit_log_probs: (U,) ln P of each node of the tree below the contexts.
            end_log_probs: (M,) ln P of the end after each of the trie's ``end_nodes``.
        """
        tree = self.tree
        sums = np.zeros(len(tree.parent))
        for level in self.levels:
            units = slice(level.start - tree.n_contexts, level.stop - tree.n_contexts)
            sums[level] = sums[tree.parent[level]] + unit_log_probs[units]
        below = sums[self.word_ends]
        inner = slice(trie.n_roots, None)
        return np.concatenate([below[inner] - below[trie.parent[inner]], end_log_probs])


def build_unit_tree(trie: HypothesisTrie, divider: WordDivider, start: Sequence[int]) -> UnitTree:
    """Build the tree of units of a trie of words whose contexts do not go beyond their sentence.

    Args:
        start: units before every text, at least one.
    """
    contexts = [[trie.words[i] for i in context] for context in trie.contexts]
    paths = [[*start[1:], *divider.divide_text(tuple(words))] for words in contexts]
    flat = np.array([unit for path in paths for unit in path], dtype=np.int64)
    distinct, index = np.unique(flat, return_inverse=True)
    lengths = np.fromiter(map(len, paths), dtype=np.int64, count=len(paths))
    above = grow_trie(
        tuple(map(str, distinct)), (np.zeros(0, np.int64),), np.zeros_like(lengths), index, lengths
    )

    begins = np.array([not words for words in contexts], dtype=bool)  # by root: whether texts begin there
    after = Chains.join(divider.divide(trie.words, after_space=True))
    opening = np.zeros(0, dtype=np.int64)
    if trie.levels() and begins.any():
        level = trie.levels()[0]
        opening = np.unique(trie.node_word[level][begins[trie.parent[level]]])
    chains = divider.divide([trie.words[i] for i in opening], after_space=False)
    first = Chains.join([*chains])

    words = (
        np.concatenate([[start[0]], distinct[above.node_word[1:]]]) if len(distinct) else np.array(start[:1])
    )
    grower = _Grower(above.parent, words, above.n_nodes)
    node_of = np.empty(trie.n_nodes, dtype=np.int64)
    node_of[: trie.n_roots] = above.hypothesis_node
    for depth, level in enumerate(trie.levels()):
        node, word = node_of[trie.parent[level]], trie.node_word[level]
        reached = node.copy()
        is_opening = begins[trie.parent[level]] if depth == 0 else np.zeros(len(node), dtype=bool)
        for places, of, number in (
            (np.flatnonzero(~is_opening), after, word),
            (np.flatnonzero(is_opening), first, np.searchsorted(opening, word) if len(opening) else word),
        ):
            if len(places):
                reached[places] = grower.grow(node[places], of, number[places])
        node_of[level] = reached
    return grower.finish(above.levels(), node_of)


class _Grower:
    """Grows the tree of units."""

    def __init__(self, parent: np.ndarray, unit: np.ndarray, n_nodes: int) -> None:
        self.parents, self.units, self.n_nodes, self.n_contexts = [parent], [unit], n_nodes, n_nodes
        self.levels: list[slice] = []

    def grow(self, node: np.ndarray, chains: Chains, word: np.ndarray) -> np.ndarray:
        """Append the chain of a word below each of some nodes, (n,); return the nodes where they end."""
        node, lengths, first = node.copy(), chains.lengths[word], chains.first[word]
        for step in range(lengths.max(initial=0)):
            longer = np.flatnonzero(lengths > step)
            unit = chains.units[first[longer] + step]
            size = int(unit.max()) + 1
            distinct, place = np.unique(node[longer] * size + unit, return_inverse=True)
            node[longer] = self.n_nodes + place
            self.parents.append(distinct // size)
            self.units.append(distinct % size)
            self.levels.append(slice(self.n_nodes, self.n_nodes + len(distinct)))
            self.n_nodes += len(distinct)
        return node

    def finish(self, context_levels: Sequence[slice], node_of: np.ndarray) -> UnitTree:
        """The tree that has grown; ``node_of`` has the unit that ends the word of each node of the trie."""
        parent, unit = np.concatenate(self.parents), np.concatenate(self.units)
        levels = [*context_levels, *self.levels]
        position = np.zeros(len(parent), dtype=np.int64)
        for level in levels:
            position[level] = position[parent[level]] + 1
        first, last = number_in_preorder(parent, levels)
        scored = np.unique(np.concatenate([node_of, np.arange(self.n_contexts, self.n_nodes)]))
        tree = PrefixTree(parent, unit, position, first, last, context_levels, scored)
        return UnitTree(tree, node_of, self.levels)
