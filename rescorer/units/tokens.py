"""Pieces of words: tokenizers of other toolkits, and the trie of units below a trie of words.

A tokenizer divides a text into units. Nearly all divide each word by itself, so that a word is a chain of
units, of which there are two: at the start of a text, and after a space. The trie of units of a batch grows
along its trie of words, level by level; words that begin with the same units share them. An edge of the trie
of words is then the sum of the edges of its chain.

Where a tokenizer divides some words otherwise than in their sentence, chains would be wrong. Import finds
that out on text (``find_inseparable``). The hypotheses of such models are divided whole
(``build_whole_trie``); then only the sums over whole hypotheses have a meaning.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, compress, count
from operator import ne
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from weakref import WeakValueDictionary

import numpy as np

from rescorer.errors import BundleError, ConfigError, InputError, quote
from rescorer.models.network_files import TOKENIZER_FILE, TOKENIZER_FILES, UNKNOWN
from rescorer.safe_input import SURROGATE, Folder, file_identity
from rescorer.trie import SENTENCE_END, HypothesisTrie, Words, build_trie
from rescorer.units.prompts import Prompt, read_before

if TYPE_CHECKING:
    from rescorer.models.bundle import UnitFacts

MAX_TOKENIZER_BYTES = 64 << 20
"""Largest file of a tokenizer; those of 250,000 units have 35 MB."""
MAX_UNITS = 1_000_000
"""Largest vocabulary of a model."""
MAX_STRINGS = 4_000_000
"""Largest number of names of units in the file of a tokenizer: of each once, and twice in each pair of units
that is merged. One of 262,000 units has 1.3 million."""
MAX_CACHED = 4_000_000
"""Largest number of characters and units of the words whose units are kept; a cache that is full starts
afresh. Each takes up to 36 bytes."""
ENTRY_SIZE = 16
"""What each word in the cache counts besides."""
MAX_WORD = 16_384
"""Largest number of characters of a word that is divided. Of a longer one, only the beginning is, and models
do not read its text; see ``UnitCounter``."""
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
    """A tokenizer of Hugging Face's ``tokenizers``, from its JSON file.

    A text cannot contain special units such as ``</s>``: where it is written like one, it is divided like any
    other text. Models of whole words and of SentencePiece have special units in their vocabulary; there, such
    a word is unknown.

    Raises:
        BundleError: the file is damaged, numbers units beyond ``MAX_UNITS``, or cannot divide every text.
    """

    def __init__(self, data: bytes, place: str) -> None:
        library = import_library("tokenizers")
        _check_merges(data, place)
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the caller says how many threads there are
        try:
            self._tokenizer: Any = library.Tokenizer.from_buffer(data)
        except Exception as error:  # the library raises plain exceptions
            raise BundleError(f"{place}: cannot be read as a tokenizer: {str(error)[:200]}") from None
        _check_steps(self._tokenizer, place)
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._tokenizer.encode_special_tokens = True  # like other text
        self.size = 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        if self.size > MAX_UNITS:
            raise BundleError(
                f"{place}: has the unit {self.size - 1:,}; expected numbers below {MAX_UNITS:,}"
            )
        self._hidden = frozenset[int]()
        self._instead: list[int] = []
        try:
            self._hidden = self._find_hidden()
            self.encode([RARE_CHARACTER])
        except Exception as error:
            raise BundleError(
                f"{place}: cannot divide every text: {str(error)[:200]}; expected the tokenizer of a "
                "language model, with a unit for what is unknown"
            ) from None
        if self._hidden:
            self._instead = _unknown_unit(data, self._tokenizer)

    def _find_hidden(self) -> frozenset[int]:
        """Special units that texts would still have."""
        added = self._tokenizer.get_added_tokens_decoder().items()
        if any(len(token.content) > MAX_UNIT_CHARACTERS for _, token in added):
            raise ValueError(f"an added unit has more than {MAX_UNIT_CHARACTERS:,} characters")
        special = {number: token.content for number, token in added if token.special}
        divided = self.encode([*special.values()])
        return frozenset(number for number, units in zip(special, divided, strict=True) if number in units)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """See ``Tokenizer``.

        Raises:
            InputError: a pattern of the tokenizer takes too long on a text.
        """
        try:
            found = self._tokenizer.encode_batch(_replace_surrogates(texts), add_special_tokens=False)
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # what a panic of Rust becomes, no Exception
                raise
            raise InputError(f"a text cannot be divided into pieces of words: {str(error)[:200]}") from None
        divided = [one.ids for one in found]
        if not self._hidden:
            return divided
        return [
            [one for unit in units for one in (self._instead if unit in self._hidden else (unit,))]
            for units in divided
        ]

    def find(self, unit: str) -> int | None:
        """See ``Tokenizer``."""
        number: int | None = self._tokenizer.token_to_id(unit)
        return number

    def name(self, number: int) -> str:
        """See ``Tokenizer``."""
        return self._tokenizer.id_to_token(number) or ""


def _check_merges(data: bytes, place: str) -> None:
    """Raise BundleError if there are too many merges, or one twice; the library takes 10 µs for each.

    What else is wrong with the file, the library says.
    """
    if (n_strings := data.count(b'"') // 2) > MAX_STRINGS:
        raise BundleError(f"{place}: has {n_strings:,} names of units; expected at most {MAX_STRINGS:,}")
    try:
        merges = json.loads(data)["model"]["merges"]
        distinct = {tuple(merge) if isinstance(merge, list) else merge for merge in merges}
    except (KeyError, RecursionError, TypeError, ValueError):
        return
    if len(distinct) < len(merges):
        raise BundleError(
            f"{place}: {len(merges) - len(distinct):,} of {len(merges):,} merges are repetitions of others; "
            "expected each once"
        )


def _check_steps(tokenizer: Any, place: str) -> None:
    """Raise BundleError if what changes and splits a text could take time or memory without bounds.

    Texts may not become more than ``MAX_GROWTH`` times as long, and no pattern may repeat what has repeats or
    alternatives itself: the library tries all ways to match.
    """
    growth = 1
    for step in (tokenizer.normalizer, tokenizer.pre_tokenizer):
        for values in _walk(json.loads(step.__getstate__()) if step is not None else {}):
            growth *= _growth(values)
            pattern = values.get("Regex")
            if isinstance(pattern, str) and NESTED_REPEAT.search(_simplify(pattern)):
                raise BundleError(
                    f"{place}: the pattern {quote(pattern)} repeats what repeats or has alternatives itself, "
                    "and may take for ever; expected a tokenizer with simpler patterns"
                )
    if growth > MAX_GROWTH:
        raise BundleError(
            f"{place}: its normalizer may make texts {growth:,} times as long; expected at most "
            f"{MAX_GROWTH:,} times"
        )


def _growth(step: Mapping[str, Any]) -> int:
    """How many times as long a step may make a text. A regular expression may match between all letters."""
    if "prepend" in step:
        return 1 + len(step["prepend"])
    if "content" not in step:
        return 1
    return len(step["content"]) + ("Regex" in step["pattern"]) or 1


def _walk(values: Any) -> Iterator[Mapping[str, Any]]:
    """All objects in plain data."""
    if isinstance(values, dict):
        yield values
    for value in values.values() if isinstance(values, dict) else values if isinstance(values, list) else ():
        yield from _walk(value)


def _simplify(pattern: str) -> str:
    """A pattern in which escapes and classes are one letter, and innermost groups without repeats and
    alternatives are too."""
    pattern = CLASS.sub("x", ESCAPE.sub("x", pattern))
    while (simpler := PLAIN_GROUP.sub("x", pattern)) != pattern:
        pattern = simpler
    return pattern


ESCAPE = re.compile(r"\\[pPxu]\{[^}]*\}|\\.", re.S)
CLASS = re.compile(r"\[\^?\]?[^\[\]]*\]")
PLAIN_GROUP = re.compile(r"\((?:\?[^()]*?[:=!>])?[^()|*+{]*(?:\{\d+\}[^()|*+{]*)*\)")
NESTED_REPEAT = re.compile(r"\)(?:[*+]|\{\d*,)")
"""In a simplified pattern, the repeat of a group."""
MAX_GROWTH = 10_000
"""Largest factor by which the steps before a text is divided may make it longer."""
MAX_UNIT_CHARACTERS = 1000
"""Largest length of a unit that is added to a vocabulary, such as ``<|endoftext|>``."""


def _replace_surrogates(texts: Sequence[str]) -> list[str]:
    """Replace halves of surrogate pairs, which JSON can contain and tokenizers do not read."""
    return [SURROGATE.sub("\ufffd", text) for text in texts]


RARE_CHARACTER = "\U0010fffd"


def _unknown_unit(data: bytes, tokenizer: Any) -> list[int]:
    """The unit of what a tokenizer does not know, from its JSON; empty if it has none."""
    model = json.loads(data)["model"]
    number = model.get("unk_id")
    if number is None and model.get("unk_token") is not None:
        number = tokenizer.token_to_id(model["unk_token"])
    return [] if number is None else [number]


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
        units: list[list[int]] = self._tokenizer.Encode(_replace_surrogates(texts), out_type=int)
        return units

    def find(self, unit: str) -> int | None:
        """See ``Tokenizer``."""
        number: int = self._tokenizer.PieceToId(unit)
        return number if self._tokenizer.IdToPiece(number) == unit else None

    def name(self, number: int) -> str:
        """See ``Tokenizer``."""
        return str(self._tokenizer.IdToPiece(number))


class RenumberedTokenizer:
    """A tokenizer whose units a model knows by other numbers; those that it does not know are ``<unk>``.

    Args:
        units: names of the units in the order of the model's numbers.

    Raises:
        BundleError: a name occurs twice, ``<unk>`` is missing, or most of the tokenizer's units are.
    """

    def __init__(self, tokenizer: Tokenizer, units: Sequence[str]) -> None:
        self._tokenizer, self._units, self.size = tokenizer, units, len(units)
        self._numbers = {name: number for number, name in enumerate(units)}
        if len(self._numbers) != len(units):
            twice = next(name for number, name in enumerate(units) if self._numbers[name] != number)
            raise BundleError(f"the list of units has {quote(twice)} twice; expected each unit once")
        if UNKNOWN not in self._numbers:
            raise BundleError(f"the list of units has no {UNKNOWN}; expected it for unknown pieces of words")
        names = [tokenizer.name(number) for number in range(tokenizer.size)]
        n_known = sum(name in self._numbers for name in names)
        if 2 * n_known < len(names):
            raise BundleError(
                f"only {n_known:,} of the {len(names):,} units of the tokenizer are among the {len(units):,} "
                "of the model; expected the tokenizer that the model was trained with"
            )
        self._renumbered = [self._numbers.get(name, self._numbers[UNKNOWN]) for name in names]

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """See ``Tokenizer``."""
        return [[self._renumbered[unit] for unit in text] for text in self._tokenizer.encode(texts)]

    def find(self, unit: str) -> int | None:
        """See ``Tokenizer``."""
        return self._numbers.get(unit)

    def name(self, number: int) -> str:
        """See ``Tokenizer``."""
        return self._units[number]


def renumber(tokenizer: Tokenizer, units: Sequence[str]) -> Tokenizer:
    """A tokenizer with the numbers of a model's units; without names of units, the same one.

    Raises:
        BundleError: see ``RenumberedTokenizer``.
    """
    return RenumberedTokenizer(tokenizer, units) if units else tokenizer


def read_divider(
    files: Folder, text: str = "canonical", units: Sequence[str] = (), *, whole: bool = False
) -> WordDivider:
    """Read the tokenizer of a folder. Readers of the same file in a process share what they read.

    Args:
        text: form of texts; see ``change_of``.
        units: names of the model's units, if its numbers are not those of the tokenizer.

    Raises:
        BundleError: there is no tokenizer, its file is damaged, or it does not fit the names of units.
        ConfigError: the library that reads it is not installed.
    """
    name = next((name for name in TOKENIZER_FILES if (files.path / name).exists()), None)
    if name is None:
        raise BundleError(f"{files.path}: no tokenizer; expected {' or '.join(TOKENIZER_FILES)}")
    with files.open(name) as stream:
        key = *file_identity(stream), text, tuple(units), whole
    divider = _DIVIDERS.get(key)
    if divider is None:
        kind = JsonTokenizer if name == TOKENIZER_FILE else SentencePieceTokenizer
        tokenizer = kind(files.read_bytes(name, MAX_TOKENIZER_BYTES), str(files.path / name))
        divider = WordDivider(renumber(tokenizer, units), change_of(text), whole=whole)
        _DIVIDERS[key] = divider
    return divider


_DIVIDERS: WeakValueDictionary[tuple[Any, ...], WordDivider] = WeakValueDictionary()
"""Dividers in use, by the identity of their files."""


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


DEEP = 1024
"""Number of pieces of a text above which reading one takes noticeably longer, since it attends to all before
it."""


class UnitCount(NamedTuple):
    """Pieces of the texts of a list."""

    total: int
    """Pieces to score, and ends of texts; those of a prefix of words that texts share count once. For every
    ``DEEP`` pieces that a text has, its pieces count once more."""
    lengths: Mapping[Words, int]
    """Number of pieces that are read for each text, with those before it; ``UNREADABLE`` if a word of it, or
    before it, is longer than ``MAX_WORD``."""


UNREADABLE = sys.maxsize
"""More pieces than any model reads."""


class UnitCounter:
    """Counts pieces of words for one model, without the model. Any thread may call it.

    Args:
        n_before: number of pieces before every text.
        prompt: how previous utterances are read; None: they are not.
    """

    def __init__(self, divider: WordDivider, n_before: int = 1, prompt: Prompt | None = None) -> None:
        self._divider, self._n_before, self._prompt = divider, n_before, prompt

    @classmethod
    def read(cls, files: Folder, facts: UnitFacts) -> UnitCounter:
        """Read the tokenizer of a model of a bundle.

        Raises:
            BundleError: the tokenizer or the prompt is damaged.
            ConfigError: the library of the tokenizer is not installed.
        """
        folder = files.subfolder(facts.folder)
        divider = read_divider(folder, facts.text, facts.units, whole=facts.is_whole)
        prompt = None if facts.prompt is None else Prompt.from_dict(facts.prompt)
        return cls(divider, facts.n_before, prompt)

    def count(self, texts: Sequence[Words], history: Words = ()) -> UnitCount:
        """Count the pieces of texts that follow a history; see ``read_before``."""
        counted = self._count_whole(texts, history) if self._divider.whole else self._count(texts, history)
        if len(max(chain(history, *counted.lengths), key=len, default="")) <= MAX_WORD:
            return counted
        said = any(len(word) > MAX_WORD for word in history)
        lengths = {
            text: UNREADABLE if said or any(len(word) > MAX_WORD for word in text) else length
            for text, length in counted.lengths.items()
        }
        return UnitCount(counted.total, lengths)

    def _count(self, texts: Sequence[Words], history: Words) -> UnitCount:
        distinct = sorted(set(texts))
        words = [*set[str]().union(*distinct)]
        first = [*{text[0] for text in distinct if text}]
        n_units = dict(zip(words, map(len, self._divider.divide(words, after_space=True)), strict=True))
        n_first = dict(zip(first, map(len, self._divider.divide(first, after_space=False)), strict=True))

        def measure(text: Words) -> list[int]:
            lengths = [*map(n_units.__getitem__, text)]
            lengths[:1] = [max(n_first[word], n_units[word]) for word in text[:1]]
            return lengths

        n_before = self._n_before + len(read_before(self._divider, history, self._prompt).units)
        total, read = _cost(n_before, n_before), dict[Words, int]()
        before: Words = ()
        for text in distinct:
            lengths = measure(text)
            read[text] = n_before + sum(lengths)
            total += _cost(sum(lengths[_count_shared(before, text) :]) + 1, read[text])
            before = text
        return UnitCount(total, read)

    def _count_whole(self, texts: Sequence[Words], history: Words) -> UnitCount:
        distinct, context = [*dict.fromkeys(texts)], within_sentence(history)
        n_before = self._n_before + len(
            read_before(self._divider, history, self._prompt, context=False).units
        )
        said, *divided = self._divider.divide_whole([context, *((*context, *text) for text in distinct)])
        before, n_said = said, n_before + len(said)
        total = _cost(n_said, n_said)
        for units in sorted(divided):
            length = n_before + len(units)
            total += _cost(len(units) - _count_shared(before, units) + 1, length)
            before = units
        lengths = (n_before + len(units) for units in divided)
        return UnitCount(total, dict(zip(distinct, lengths, strict=True)))


def _cost(n_pieces: int, length: int) -> int:
    """What the last pieces of a text of some length count."""
    return n_pieces * (1 + length // DEEP)


def _count_shared(first: Sequence[Any], second: Sequence[Any]) -> int:
    """The number of words, or of units, with which two texts begin alike."""
    return next(compress(count(), map(ne, first, second)), min(len(first), len(second)))


def change_of(text: str) -> Callable[[str], str]:
    """What a form of texts changes in words before they are divided; see ``units.files.TextForm``."""
    return str.upper if text == "upper" else str


NO_WORD_STARTS = "whose tokenizer does not mark where words begin or end, so that it scores no words"
"""The reason why a model is not mixed word by word."""
STARTS, INNER, LAST = ("Ġ", "▁", " "), "##", ("</w>", "@@")


def find_word_starts(tokenizer: Tokenizer) -> np.ndarray | None:
    """Units that begin a word after a space, (n,) int64; None if the tokenizer does not mark them.

    Byte-level tokenizers and SentencePiece mark units that begin a word, and WordPiece those that do not.
    Others mark units that end a word, or those that do not: then units say by themselves where words end, and
    any unit begins a word there. The unit of unknown letters counts if a word can begin with it.
    """
    names = [tokenizer.name(number) for number in range(tokenizer.size)]
    starts = np.array([name.startswith(STARTS) for name in names], dtype=bool)
    if not starts.any():
        starts = np.array([not name.startswith(INNER) for name in names], dtype=bool)
        if starts.all() and not any(name.endswith(LAST) for name in names):
            return None
    n_carrier = len(tokenizer.encode([CARRIER])[0])
    rare = tokenizer.encode([f"{CARRIER} {RARE_CHARACTER}"])[0][n_carrier:]
    starts[rare[:1]] = True
    return np.flatnonzero(starts)


class WordDivider:
    """Divides words into units, and remembers what it has divided. Any thread may call it.

    Args:
        change: applied to words before they are divided, such as ``str.upper``.
        whole: whether texts are divided as a whole, instead of word by word.
    """

    def __init__(
        self, tokenizer: Tokenizer, change: Callable[[str], str] = str, *, whole: bool = False
    ) -> None:
        self.tokenizer, self.change, self.whole = tokenizer, change, whole
        self._carrier = tokenizer.encode([change(CARRIER)])[0]
        self._known: tuple[dict[str, Sequence[int]], dict[str, Sequence[int]]] = {}, {}
        self._sizes = [0, 0]  # of each part of the cache
        self._lock = Lock()

    @cached_property
    def word_starts(self) -> np.ndarray | None:
        """Units that begin a word after a space, (n,) int64, in order.

        None if the tokenizer does not mark them, or texts are divided as a whole.
        """
        return None if self.whole else find_word_starts(self.tokenizer)

    def divide(self, words: Iterable[str], *, after_space: bool) -> list[Sequence[int]]:
        """Units of each word, at the start of a text or after a space."""
        with self._lock:
            return self._divide(list(words), after_space)

    def _divide(self, words: Sequence[str], after_space: bool) -> list[Sequence[int]]:
        known = self._known[after_space]
        new = [word for word in dict.fromkeys(words) if word not in known]
        changed = [self.change(word[:MAX_WORD]) for word in new]
        if after_space:
            n_carrier = len(self._carrier)
            texts = [f"{self.change(CARRIER)} {word}" for word in changed]
            chains = [chain[n_carrier:] for chain in self.tokenizer.encode(texts)]
        else:
            chains = self.tokenizer.encode(changed)
        divided = dict(zip(new, chains, strict=True))
        found = [divided[word] if word in divided else known[word] for word in words]
        self._keep(divided, after_space)
        return found

    def _keep(self, divided: Mapping[str, Sequence[int]], part: int) -> None:
        """Keep the units of words in a part of the cache, if they are not too many."""
        size = sum(len(word) + len(units) + ENTRY_SIZE for word, units in divided.items())
        if self._sizes[part] + size > MAX_CACHED:
            self._known[part].clear()
            self._sizes[part] = 0
        if size <= MAX_CACHED:
            self._known[part].update(divided)
            self._sizes[part] += size

    def divide_whole(self, texts: Sequence[Words]) -> list[list[int]]:
        """Units of each text, divided as a whole."""
        cut = (" ".join(word[:MAX_WORD] for word in words) for words in texts)
        return self.tokenizer.encode([*map(self.change, cut)])

    def divide_text(self, words: Words, *, after_space: bool = False) -> list[int]:
        """Units of a text, at the start or after a space: word by word, unless texts are divided whole."""
        if not words:
            return []
        if self.whole:
            return self.divide_whole([words])[0]
        chains = [*self.divide(words[:1], after_space=after_space), *self.divide(words[1:], after_space=True)]
        return [unit for chain in chains for unit in chain]

    def find_inseparable(self, texts: Iterable[Words]) -> Words | None:
        """The first of some texts that is divided otherwise as a whole than word by word; None if none is."""
        for words in texts:
            if self.divide_text(words) != self.divide_whole([words])[0]:
                return words
        return None


@dataclass(frozen=True, slots=True)
class UnitTrie:
    """The units of a batch, below its trie of words."""

    trie: HypothesisTrie
    """Its words are numbers of units, as text; its roots are those of the trie of words."""
    word_ends: np.ndarray
    """(N,) for each node of the trie of words, the node where the last unit of its word ends."""
    is_start: np.ndarray
    """(N,) bool, whether a node of the trie of words is a root at which texts begin."""

    def fold(self, words: HypothesisTrie, log_probs: np.ndarray) -> np.ndarray:
        """Sum units to words.

        Args:
            words: the trie of words.
            log_probs: ln P of each edge of the trie of units.

        Returns:
            (E,) float64, ln P of each edge of the trie of words.
        """
        trie, n_roots = self.trie, self.trie.n_roots
        sums = np.zeros(trie.n_nodes)
        for level in trie.levels():
            edges = slice(level.start - n_roots, level.stop - n_roots)
            sums[level] = sums[trie.parent[level]] + log_probs[edges]
        below = sums[self.word_ends]
        ends = np.searchsorted(trie.end_nodes, self.word_ends[words.end_nodes])
        after = log_probs[trie.n_nodes - n_roots :][ends]
        return np.concatenate([below[n_roots:] - below[words.parent[n_roots:]], after])

    def complete(self, words: HypothesisTrie, values: np.ndarray, boundaries: np.ndarray) -> np.ndarray:
        """Make ln P of pieces of words to ln P of words (Pimentel & Meister 2024, Oh & Schuler 2024).

        The pieces of a word do not say that it ends: *the* has the pieces with which *theatre* begins. So
        each word is multiplied by the probability B that the next unit begins a word or ends the text. The
        pieces of a word after another one include B after the latter, by which they are divided. Nothing
        stands before the first word of a text. In the product of all words and ``</s>``, all B cancel out.

        Args:
            words: the trie of words.
            values: (E,) ln P of each edge of the trie of words, by its pieces.
            boundaries: (N,) ln B after each node of the trie of words; of no meaning where texts begin.

        Returns:
            (E,) float64, ln P of each edge, which sums to at most 1 over all words and ``</s>`` if the
            model scores ends.
        """
        log_b = np.where(self.is_start, 0.0, boundaries)
        completed = values - log_b[words.edge_parent]
        completed[: words.n_nodes - words.n_roots] += log_b[words.n_roots :]
        return completed

    def rows(self, values: np.ndarray) -> np.ndarray:
        """The rows of values, (H', K), that belong to the hypotheses of the trie of words: (H, K)."""
        return values


@dataclass(frozen=True, slots=True)
class WholeTrie:
    """The units of the whole texts of a batch."""

    trie: HypothesisTrie
    """Its hypotheses are the texts at the end nodes of the trie of words, and then the context of each of
    that trie's roots."""
    text_of: np.ndarray
    """(H,) for each hypothesis of the trie of words, the index of its text."""

    def fold(self, words: HypothesisTrie, log_probs: np.ndarray) -> np.ndarray:
        """Give edges of the trie of words such values that the sums over hypotheses are those of their texts.

        The edge into a node where hypotheses end has what their text has more than the longest text on the
        path to that node. The other edges have 0.

        Args:
            words: the trie of words.
            log_probs: ln P of each edge of the trie of units.

        Returns:
            (E,) float64, values of the edges of the trie of words.
        """
        n_roots, n_texts, inner = words.n_roots, len(words.end_nodes), self.trie.n_nodes - self.trie.n_roots
        every = np.ones(len(self.trie.hypothesis_node), dtype=bool)
        sums = self.trie.sum_paths(log_probs, every)
        after = log_probs[inner:][np.searchsorted(self.trie.end_nodes, self.trie.hypothesis_node[:n_texts])]
        below = np.zeros(words.n_nodes)  # sum of the longest text on the path to each node
        ends = np.zeros(words.n_nodes, dtype=bool)
        ends[words.end_nodes] = True
        below[words.end_nodes] = sums[:n_texts] - sums[n_texts:][words.root_of_node[words.end_nodes]]
        for level in words.levels():
            below[level] = np.where(ends[level], below[level], below[words.parent[level]])
        return np.concatenate([below[n_roots:] - below[words.parent[n_roots:]], after])

    def rows(self, values: np.ndarray) -> np.ndarray:
        """The rows of values, (H', K), that belong to the hypotheses of the trie of words: (H, K)."""
        return values[self.text_of]


def within_sentence(history: Words) -> Words:
    """The words of a history after its last ``SENTENCE_END``: the context of the sentence."""
    ends = [place for place, word in enumerate(history) if word == SENTENCE_END]
    return history[ends[-1] + 1 :] if ends else history


def list_histories(words: HypothesisTrie) -> list[Words]:
    """The words before each root of a trie, with ``SENTENCE_END`` after each previous utterance."""
    names = (*words.words, SENTENCE_END)
    return [tuple(names[i] for i in context) for context in words.contexts]


def build_whole_trie(
    words: HypothesisTrie, divider: WordDivider, opening: Sequence[int] = (), prompt: Prompt | None = None
) -> WholeTrie:
    """Build the trie of units of the whole texts in a trie of words; see ``build_unit_trie``."""
    histories = list_histories(words)
    contexts = [within_sentence(history) for history in histories]
    text_of = np.searchsorted(words.end_nodes, words.hypothesis_node)
    texts, root_of = dict[int, Words](), dict[int, int]()
    for hypothesis, text in enumerate(text_of.tolist()):
        if text not in texts:
            root_of[text] = int(words.root_of_node[words.hypothesis_node[hypothesis]])
            said = contexts[root_of[text]]
            path = words.edge_word[words.path_edges(hypothesis)[:-1]].tolist()
            texts[text] = (*said, *(words.words[i] for i in path))
    divided = divider.divide_whole([*(texts[i] for i in range(len(texts))), *contexts])
    sequences = [tuple(map(str, units)) for units in divided]
    read = [read_before(divider, history, prompt, context=False).units for history in histories]
    before = [tuple(map(str, (*opening, *units))) for units in read]
    of_texts = [before[root_of[i]] for i in range(len(texts))]
    return WholeTrie(build_trie(sequences, [*of_texts, *before]), text_of)


def build_unit_trie(
    words: HypothesisTrie, divider: WordDivider, opening: Sequence[int] = (), prompt: Prompt | None = None
) -> UnitTrie:
    """Build the trie of units of a trie of words.

    Args:
        opening: units before every text, besides the first one that a model reads.
        prompt: how previous utterances are read; None: they are not.
    """
    before = [read_before(divider, history, prompt) for history in list_histories(words)]
    begins = np.array([one.begins for one in before], dtype=bool)  # by root: whether texts begin there
    after = Chains.join(divider.divide(words.words, after_space=True))
    first_words = np.zeros(0, dtype=np.int64)
    if words.levels():
        level = words.levels()[0]
        first_words = np.unique(words.node_word[level][begins[words.parent[level]]])
    first = Chains.join(divider.divide([words.words[i] for i in first_words], after_space=False))
    grower = _Grower(words.n_roots)
    node_of = np.arange(words.n_nodes)
    for depth, level in enumerate(words.levels()):
        above, word = node_of[words.parent[level]], words.node_word[level]
        reached = above.copy()
        is_first = begins[words.parent[level]] if depth == 0 else np.zeros(len(above), dtype=bool)
        rest = np.flatnonzero(~is_first)
        reached[rest] = grower.grow(above[rest], after, word[rest])
        if is_first.any():
            places = np.flatnonzero(is_first)
            reached[places] = grower.grow(above[places], first, np.searchsorted(first_words, word[places]))
        node_of[level] = reached
    said = [[*opening, *one.units] for one in before]
    return grower.finish(said, words, node_of, begins)


class _Grower:
    """Grows the trie of units, word by word."""

    def __init__(self, n_roots: int) -> None:
        self.n_roots = self.n_nodes = n_roots
        self.parents, self.units = [np.arange(n_roots)], [np.zeros(n_roots, dtype=np.int64)]

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
            self.n_nodes += len(distinct)
        return node

    def finish(
        self, said: Sequence[list[int]], words: HypothesisTrie, node_of: np.ndarray, begins: np.ndarray
    ) -> UnitTrie:
        """The trie that has grown, by depth.

        Args:
            said: units before each root.
            node_of: (N,) node where each node of the trie of words ends.
            begins: (n_roots,) whether texts begin at each root.
        """
        parent, unit = np.concatenate(self.parents), np.concatenate(self.units)
        depth = np.zeros(len(parent), dtype=np.int64)
        first = self.n_roots
        for nodes in self.parents[1:]:
            depth[first : first + len(nodes)] = depth[nodes] + 1
            first += len(nodes)
        order = np.argsort(depth, kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        flat = np.array([one for units in said for one in units], dtype=np.int64)
        distinct, index = np.unique(np.concatenate([flat, unit[self.n_roots :]]), return_inverse=True)
        cuts = np.cumsum([len(units) for units in said])
        word_ends = place[node_of]
        hypothesis_node = word_ends[words.hypothesis_node]
        trie = HypothesisTrie(
            words=tuple(map(str, distinct.tolist())),
            contexts=tuple(np.split(index[: len(flat)], cuts[:-1])),
            parent=place[parent[order]],
            node_word=np.concatenate([np.zeros(self.n_roots, dtype=np.int64), index[len(flat) :]])[order],
            level_bounds=(0, *np.cumsum(np.bincount(depth)).tolist()),
            hypothesis_node=hypothesis_node,
            end_nodes=np.unique(hypothesis_node),
            confidences=((),) * self.n_roots,
            flatness=(0.0,) * self.n_roots,
        )
        is_start = np.append(begins, np.zeros(words.n_nodes - words.n_roots, dtype=bool))
        return UnitTrie(trie, word_ends, is_start)
