"""Open n-gram models of any kind: our own tables, ARPA files and KenLM binaries; write tables.

A file is checked before anything is built from it: its header is compared with its size on disk, so that the
size bounds memory and time. This needs neither torch nor KenLM. A KenLM binary is scored by the package
``kenlm`` (Heafield 2011), with one call per edge; the package is imported only when such a model is loaded.

A table (docs/reference/ngram-tables.md) has a header and sections, each of which starts at a multiple of
``ALIGNMENT`` bytes: the words, the unigrams, and for every higher order its pilots and its records. If
n-grams are of classes of words, the first section has their names, and the words of the classes are at the
end. The sizes in the header determine where each section is, and how long the file is.
"""

from __future__ import annotations

import math
import mmap
import os
import re
import struct
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from rescorer.errors import BundleError
from rescorer.models.arpa import (
    FIRST_WORDS,
    MAX_ORDER,
    ArpaOrder,
    has_arpa_header,
    read_arpa,
    read_arpa_counts,
)
from rescorer.models.compressed_text import KENLM_MAGIC
from rescorer.models.network_files import END, SPECIAL_TOKENS, UNKNOWN
from rescorer.models.ngrams import (
    LN_10,
    NO_KEY,
    ClassMembers,
    NgramModel,
    NgramTable,
    OrderTable,
    PerfectHash,
    TableContent,
    TableNgram,
    build_perfect_hash,
)
from rescorer.safe_input import Folder, descriptor_path, open_regular
from rescorer.trie import HypothesisTrie, Words

FIXED_OFFSET = 88  # where the numbers of the header begin, after constants that KenLM compares itself
FIXED = struct.Struct("<B3xfIB3xI")
"""Numbers of KenLM's header: order, multiplier of the probing tables, kind, whether words follow, version."""
MAX_PROBING_MULTIPLIER = 100.0


def read_kenlm_header(stream: BinaryIO) -> list[int]:
    """Check the header of a KenLM binary, and return its number of n-grams per order.

    Raises:
        BundleError: the file is not a KenLM binary, or is too small for the n-grams that it declares.
    """
    size = os.fstat(stream.fileno()).st_size
    header = os.pread(stream.fileno(), FIXED_OFFSET + FIXED.size + 8 * MAX_ORDER, 0)
    if not header.startswith(KENLM_MAGIC) or len(header) < FIXED_OFFSET + FIXED.size:
        raise BundleError(f"{stream.name}: expected an ARPA file, or a KenLM binary with a list of its words")
    order, multiplier, *_ = FIXED.unpack_from(header, FIXED_OFFSET)
    counts_end = FIXED_OFFSET + FIXED.size + 8 * order
    if not 1 <= order <= MAX_ORDER or counts_end > len(header):
        raise BundleError(f"{stream.name}: order {order} in its header; expected 1 to {MAX_ORDER}")
    if not (math.isfinite(multiplier) and 1 <= multiplier <= MAX_PROBING_MULTIPLIER):
        raise BundleError(f"{stream.name}: the multiplier of its hash tables is {multiplier:g}; expected 1.5")
    counts = list(struct.unpack_from(f"<{order}Q", header, FIXED_OFFSET + FIXED.size))
    if sum(counts) > size:
        raise BundleError(
            f"{stream.name}: its header says {sum(counts):,} n-grams, but the file has only {size:,} bytes"
        )
    return counts


MAX_BYTES = 1 << 28  # largest word list: 20 million words of 12 bytes


def read_words(folder: Folder, name: str) -> list[str]:
    """Read a word list, one word per line; raise BundleError if it cannot be read."""
    try:
        return folder.read_bytes(name, MAX_BYTES).decode("utf-8").split()
    except UnicodeDecodeError as error:
        raise BundleError(
            f"{folder.path / name}: cannot be read as a word list: not UTF-8 at byte {error.start:,}"
        ) from None


def build_table(orders: Sequence[ArpaOrder], place: str) -> NgramTable:
    """Build a table. Unigrams must be in the order of their ids; longer n-grams may be in any order.

    Some tools prune n-grams w_1 … w_{k-1} but keep longer ones, w_1 … w_k, that begin with them. The missing
    n-gram is then added, with the probability that the model gives it anyway, by backing off, and a back-off
    weight of 1.

    Args:
        place: name of the file, for messages.

    Raises:
        BundleError: an n-gram occurs twice.
    """
    pending = [order.ids.astype(np.int64) for order in orders]
    values = [order.values for order in orders]
    table = NgramTable(values[0], ())
    while table.order < len(orders):
        n = table.order + 1
        contexts = find_places(table, pending[n - 1][:, :-1])
        if (missing := contexts < 0).any():
            added = np.unique(pending[n - 1][missing, :-1], axis=0)
            log10_probs = score_sequences(table, added)
            pending[n - 2] = np.concatenate([pending[n - 2], added])
            values[n - 2] = np.concatenate([values[n - 2], np.stack([log10_probs, 0 * log10_probs], axis=1)])
            table = NgramTable(table.unigrams, table.orders[:-1])  # its last order is built again
            continue
        keys = contexts * table.n_words + pending[n - 1][:, -1]
        try:
            added_order = build_order(keys, values[n - 1])
        except ValueError:
            raise BundleError(f"{place}: one of its {n}-grams occurs twice") from None
        table = NgramTable(table.unigrams, (*table.orders, added_order))
    return table


def build_order(keys: np.ndarray, values: np.ndarray) -> OrderTable:
    """Build the hash table of one order.

    Args:
        keys: (N,) int64, one per n-gram; see ``ngrams`` for keys.
        values: (N, 2) float32, log10 probability and log10 back-off weight.

    Raises:
        ValueError: a key occurs twice.
    """
    perfect, slots = build_perfect_hash(keys)
    filled = np.empty((len(keys), 2), dtype=np.int64)
    filled[:, 0] = keys
    filled.view(np.float32)[:, 2:] = values
    records = np.zeros((perfect.n_slots, 2), dtype=np.int64)
    records[:, 0] = NO_KEY
    # a record at a time: its place is far from the last one's
    records.view("V16")[slots] = filled.view("V16")
    return OrderTable(perfect, records)


def list_ngrams(table: NgramTable, place: str) -> list[ArpaOrder]:
    """Return the n-grams of a table, the inverse of ``build_table``.

    Raises:
        BundleError: the context of an n-gram is not in the table; ``place`` names the file.
    """
    ids_at = np.arange(table.n_words, dtype=np.int32)[:, None]  # the n-gram at each place of an order
    orders = [ArpaOrder(ids_at, np.array(table.unigrams))]
    used = np.ones(table.n_words, dtype=bool)
    for n, order in enumerate(table.orders, 2):
        slots = np.flatnonzero(order.records[:, 0] != NO_KEY)
        contexts, words = np.divmod(order.records[slots, 0], table.n_words)
        if not ((contexts >= 0) & (contexts < len(used))).all() or not used[contexts].all():
            raise BundleError(f"{place}: is damaged: one of its {n}-grams has a context that it lacks")
        ids = np.hstack([ids_at[contexts], words[:, None].astype(np.int32)])
        orders.append(ArpaOrder(ids, order.records.view(np.float32)[slots, 2:]))
        used = order.records[:, 0] != NO_KEY
        ids_at = np.zeros((len(used), n), dtype=np.int32)
        ids_at[slots] = ids
    return orders


def find_places(table: NgramTable, ngrams: np.ndarray) -> np.ndarray:
    """The place of each n-gram in a table, or -1: (N, n) int64 ids → (N,). See ``ngrams`` for places."""
    places = ngrams[:, 0].copy()
    for order, words in zip(table.orders, ngrams.T[1:], strict=False):
        matches = order.match(places, words, table.n_words)
        found = np.full(len(places), -1)
        found[matches.pairs] = matches.places
        places = found
    return places


def score_sequences(table: NgramTable, sequences: np.ndarray) -> np.ndarray:
    """log10 P of the last word of each sequence, given the others: (N, n) int64 ids → (N,) float32."""
    n, length = sequences.shape
    parents = np.tile(np.arange(length), (n, 1)) + length * np.arange(n)[:, None]
    parents[:, 0] = 0
    words = np.concatenate([[0], sequences.ravel()])
    log10_probs = table.score_forest(words, np.concatenate([[0], parents.ravel()]))
    return log10_probs[length::length]


SUFFIX = ".ngram"
MAGIC = b"rescorer n-gram\n"
WORDS_VERSION, UNITS_VERSION = 1, 2
"""Versions of the format: of models of words; and of models with gaps or classes, whose header is longer."""
START = struct.Struct("<16sIIQQ")  # magic, version, order, number of words, bytes of all words
ORDER = struct.Struct("<QQII")
"""In the header, for each order: n-grams, slots, logarithm of the pilots to base 2, seed of the hash."""
UNITS = struct.Struct("<IIQQ")
"""In headers of version 2: length of the gap, whether there are classes, number and bytes of their words."""
ALIGNMENT = 64
MAX_ROWS = (1 << 31) - 1
"""Largest number of words, and of slots per order. A key of two such numbers fits into 63 bits."""
MAX_BUCKET_BITS = 31
MAX_SKIP = 10


class OrderSizes(NamedTuple):
    """The fields of the header for one order above 1."""

    n_ngrams: int
    n_slots: int
    bucket_bits: int
    seed: int


class UnitSizes(NamedTuple):
    """The fields of the header for gaps and classes."""

    skip: int = 0
    has_classes: int = 0
    n_members: int = 0
    member_bytes: int = 0


class TableHeader(NamedTuple):
    """The header of a table's file."""

    n_units: int  # words or classes, including ``<unk>``, ``<s>`` and ``</s>``
    name_bytes: int
    orders: tuple[OrderSizes, ...]
    units: UnitSizes = UnitSizes()

    @property
    def version(self) -> int:
        return WORDS_VERSION if self.units == UnitSizes() else UNITS_VERSION

    @property
    def n_words(self) -> int:
        """Number of words that the model knows."""
        return self.units.n_members if self.units.has_classes else self.n_units - len(FIRST_WORDS)

    @property
    def counts(self) -> list[int]:
        """Number of n-grams per order."""
        return [self.n_units, *(order.n_ngrams for order in self.orders)]

    @property
    def section_bytes(self) -> list[int]:
        """Sizes in bytes of the header and of each section, without padding."""
        tables = ((2 << order.bucket_bits, 16 * order.n_slots) for order in self.orders)
        header = START.size + ORDER.size * len(self.orders)
        header += UNITS.size if self.version == UNITS_VERSION else 0
        units = self.units
        members = [units.member_bytes, 4 * units.n_members, 4 * units.n_members] if units.has_classes else []
        return [header, self.name_bytes, 8 * self.n_units, *chain.from_iterable(tables), *members]

    @property
    def file_bytes(self) -> int:
        *before, last = self.section_bytes
        return sum(map(_align, before)) + last


def is_table_file(stream: BinaryIO) -> bool:
    """Whether an open file starts like an n-gram table."""
    return os.pread(stream.fileno(), len(MAGIC), 0) == MAGIC


def read_table_header(stream: BinaryIO) -> TableHeader:
    """Read and check the header of a file, and nothing else.

    Raises:
        BundleError: the file does not begin with the header of a table, or has another size than the header
            implies.
    """
    size = os.fstat(stream.fileno()).st_size
    data = os.pread(stream.fileno(), START.size + MAX_ORDER * ORDER.size + UNITS.size, 0)
    if len(data) < START.size or not data.startswith(MAGIC):
        raise BundleError(f"{stream.name}: does not start like an n-gram table")
    _, version, order, n_units, name_bytes = START.unpack_from(data)
    if version not in (WORDS_VERSION, UNITS_VERSION):
        raise BundleError(f"{stream.name}: has version {version} of the format; expected 1 or 2")
    end = START.size + (order - 1) * ORDER.size
    if not 1 <= order <= MAX_ORDER or len(data) < end + (UNITS.size if version == UNITS_VERSION else 0):
        raise BundleError(f"{stream.name}: order {order} in its header; expected 1 to {MAX_ORDER}")
    orders = (OrderSizes(*ORDER.unpack_from(data, offset)) for offset in range(START.size, end, ORDER.size))
    units = UnitSizes(*UNITS.unpack_from(data, end)) if version == UNITS_VERSION else UnitSizes()
    header = TableHeader(n_units, name_bytes, tuple(orders), units)
    for name, value, least, most in _list_limits(header):
        if not least <= value <= most:
            raise BundleError(f"{stream.name}: {name} is {value:,}; expected {least:,} to {most:,}")
    if version != header.version:
        raise BundleError(f"{stream.name}: has version 2 of the format, but neither a gap nor classes")
    if size != header.file_bytes:
        raise BundleError(
            f"{stream.name}: has {size:,} bytes; expected {header.file_bytes:,}, as its header says"
        )
    return header


def _list_limits(header: TableHeader) -> Iterator[tuple[str, int, int, int]]:
    """Yield the name, value, minimum and maximum of each number of a header, to check them."""
    yield "the number of words", header.n_units, len(FIRST_WORDS), MAX_ROWS
    for n, order in enumerate(header.orders, 2):
        yield f"the number of slots of order {n}", order.n_slots, 1, MAX_ROWS
        yield f"the number of {n}-grams", order.n_ngrams, 0, order.n_slots
        yield f"the logarithm of the number of pilots of order {n}", order.bucket_bits, 1, MAX_BUCKET_BITS
    yield "the gap", header.units.skip, 0, MAX_SKIP
    yield "the mark of classes", header.units.has_classes, 0, 1
    yield "the number of words in classes", header.units.n_members, 0, MAX_ROWS * header.units.has_classes


def map_table(stream: BinaryIO) -> TableContent:
    """Map a file into memory; all processes that map it share this memory.

    Raises:
        BundleError: the header or a section is invalid.
    """
    header = read_table_header(stream)
    data = mmap.mmap(stream.fileno(), header.file_bytes, access=mmap.ACCESS_READ)
    sections = _slice_sections(memoryview(data), header.section_bytes)
    next(sections)
    names = _read_words(stream, bytes(next(sections)), header.n_units)
    if names[: len(FIRST_WORDS)] != FIRST_WORDS:
        raise BundleError(f"{stream.name}: its first words are not {', '.join(FIRST_WORDS)}")
    unigrams = np.frombuffer(next(sections), np.float32).reshape(-1, 2)
    _check_values(stream, unigrams, 1)
    orders = []
    for n, sizes in enumerate(header.orders, 2):
        pilots = np.frombuffer(next(sections), np.uint16)
        records = np.frombuffer(next(sections), np.int64).reshape(-1, 2)
        _check_values(stream, records.view(np.float32)[:, 2:], n)
        orders.append(OrderTable(PerfectHash(sizes.seed, pilots, sizes.n_slots), records))
    members = _read_members(stream, sections, header) if header.units.has_classes else None
    return TableContent(names, NgramTable(unigrams, tuple(orders)), header.units.skip, members)


def write_table(stream: BinaryIO, content: TableContent) -> None:
    """Write a table; equal tables give equal bytes."""
    table, members = content.table, content.members
    names, words = (
        "\n".join(text).encode() for text in (content.unit_names, members.words if members else ())
    )
    orders = tuple(
        OrderSizes(
            n_ngrams=int((order.records[:, 0] != NO_KEY).sum()),
            n_slots=order.hash.n_slots,
            bucket_bits=(len(order.hash.pilots) - 1).bit_length(),
            seed=order.hash.seed,
        )
        for order in table.orders
    )
    units = UnitSizes(
        content.skip, int(members is not None), len(members.words) if members else 0, len(words)
    )
    header = TableHeader(len(content.unit_names), len(names), orders, units)
    start = START.pack(MAGIC, header.version, table.order, header.n_units, header.name_bytes)
    start += b"".join(ORDER.pack(*order) for order in orders)
    start += UNITS.pack(*units) if header.version == UNITS_VERSION else b""
    tables = chain.from_iterable((order.hash.pilots, order.records) for order in table.orders)
    classes = (words, members.classes, members.log10_probs) if members else ()
    sections = [start, names, table.unigrams, *tables, *classes]
    for number, (section, size) in enumerate(zip(sections, header.section_bytes, strict=True), 1):
        stream.write(section if isinstance(section, bytes) else np.ascontiguousarray(section).data)
        if number < len(sections):
            stream.write(bytes(_align(size) - size))


def _slice_sections(data: memoryview, sizes: Sequence[int]) -> Iterator[memoryview]:
    begin = 0
    for size in sizes:
        yield data[begin : begin + size]
        begin += _align(size)


def _align(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _read_words(stream: BinaryIO, text: bytes, n_words: int) -> tuple[str, ...]:
    try:
        words = tuple(text.decode("utf-8").split("\n")) if n_words else ()
    except UnicodeDecodeError as error:
        raise BundleError(f"{stream.name}: its words are not in UTF-8 at byte {error.start:,}") from None
    if len(words) != n_words:
        raise BundleError(f"{stream.name}: has {len(words):,} words; expected {n_words:,}")
    if len(set(words)) < n_words:
        raise BundleError(f"{stream.name}: a word occurs twice among its {n_words:,} words")
    return words


def _read_members(stream: BinaryIO, sections: Iterator[memoryview], header: TableHeader) -> ClassMembers:
    words = _read_words(stream, bytes(next(sections)), header.n_words)
    if not set(words).isdisjoint(FIRST_WORDS):
        raise BundleError(f"{stream.name}: one of {', '.join(FIRST_WORDS)} is in a class; expected none")
    classes = np.frombuffer(next(sections), np.int32)
    log10_probs = np.frombuffer(next(sections), np.float32)
    if len(classes) and not len(FIRST_WORDS) <= classes.min() <= classes.max() < header.n_units:
        raise BundleError(f"{stream.name}: a word has a class that is not one of the {header.n_units:,}")
    if not (np.isfinite(log10_probs) & (log10_probs <= 0)).all():
        raise BundleError(
            f"{stream.name}: the log-probability of a word in its class is not finite or above 0"
        )
    return ClassMembers(words, classes, log10_probs)


def _check_values(stream: BinaryIO, values: np.ndarray, order: int) -> None:
    """Raise BundleError unless all values are finite, and all log-probabilities are at most 0."""
    extremes = [(column.min(), column.max()) for column in values.T]  # NaN if any value is
    if not np.isfinite(extremes).all() or extremes[0][1] > 0:
        raise BundleError(
            f"{stream.name}: order {order} has a log-probability or a back-off weight that is not finite, or "
            "a log-probability above 0"
        )


class KenlmNgram(NgramModel):
    """A ``kenlm.Model``, with its vocabulary, which a KenLM binary does not contain."""

    def __init__(self, model: Any, words: frozenset[str], name: str = "ngram") -> None:
        from kenlm import State

        super().__init__(name)
        self.kenlm, self._new_state, self._words = model, State, words

    @property
    def order(self) -> int:
        return int(self.kenlm.order)

    def vocabulary(self) -> frozenset[str]:
        return self._words

    def unigram_log_probs(self, words: Sequence[str]) -> np.ndarray:
        no_context = self._new_state()
        self.kenlm.NullContextWrite(no_context)
        return self._log_probs(no_context, [look_up_as(word) for word in words])

    def next_log_probs(self, context: Words, words: Sequence[str]) -> np.ndarray:
        state = self._state_after([look_up_as(word) for word in context])
        return self._log_probs(state, [word if word == END else look_up_as(word) for word in words])

    def edge_log10_probs(self, trie: HypothesisTrie) -> np.ndarray:
        trie = trie.within_sentence
        words = [look_up_as(word) for word in trie.words]
        states = [self._state_after([words[i] for i in context]) for context in trie.contexts]
        states += [self._new_state() for _ in range(trie.n_nodes - trie.n_roots)]
        base_score = self.kenlm.BaseScore
        n_inner = trie.n_nodes - trie.n_roots
        parents, ids = trie.edge_parent.tolist(), trie.edge_word.tolist()
        log10_probs = [
            base_score(states[parent], words[word], state)
            for parent, word, state in zip(parents, ids, states[trie.n_roots :], strict=False)
        ]
        ignored = self._new_state()
        log10_probs += [base_score(states[parent], END, ignored) for parent in parents[n_inner:]]
        return np.array(log10_probs)

    def _log_probs(self, state: Any, words: Sequence[str]) -> np.ndarray:
        """ln P of each word after KenLM's state, (n,) float64."""
        base_score, after = self.kenlm.BaseScore, self._new_state()
        return np.array([base_score(state, word, after) for word in words], dtype=np.float64) * LN_10

    def _state_after(self, words: Sequence[str]) -> Any:
        """The state after ``<s>`` and some words."""
        state, after = self._new_state(), self._new_state()
        self.kenlm.BeginSentenceWrite(state)
        for word in words:
            self.kenlm.BaseScore(state, word, after)
            state, after = after, state
        return state


def look_up_as(word: str) -> str:
    """Return the word to look up in KenLM. A ``<s>`` or ``</s>`` inside a text becomes ``<unk>``."""
    return UNKNOWN if word in SPECIAL_TOKENS else word


def load_kenlm(stream: BinaryIO, words: frozenset[str], name: str = "ngram") -> KenlmNgram:
    """Load an open ARPA file or KenLM binary with KenLM.

    Raises:
        BundleError: KenLM is not installed, or cannot read the file. KenLM's message is left out, because it
            quotes the file.
    """
    try:
        import kenlm
    except ImportError:
        raise BundleError(
            f"{stream.name}: is a KenLM binary, and the package kenlm is not installed; install "
            "'rescorer[kenlm]', with Python below 3.13, or use the ARPA file that the binary was made from"
        ) from None
    config = kenlm.Config()
    config.show_progress = False
    config.arpa_complain = kenlm.ARPALoadComplain.NONE
    try:
        return KenlmNgram(kenlm.Model(descriptor_path(stream), config), words, name)
    except (OSError, RuntimeError, MemoryError) as error:
        position = re.search(r"Byte: (\d+)", str(error))
        at_byte = f" at byte {int(position[1]):,}" if position else ""
        raise BundleError(f"{stream.name}: KenLM cannot read it as an n-gram model{at_byte}") from None


TORCH_DEVICES = frozenset({"cuda"})
"""Types of devices on which torch looks up large tries. On a CPU, NumPy looks them up in the mapped file,
whose pages all processes share."""
MAX_SHARE_OF_FREE_MEMORY = 0.25
"""Largest share of a device's free memory that a table may take. The rest is for networks, their batches, and
other processes."""


def place_ngram(model: NgramModel, device: str) -> None:
    """Let a model look up large tries on a device, if the model is a table and the device has room for it.

    The table is copied to the device for the first large trie. Small tries are looked up in the mapped file.
    Scores are the same to the last bit.

    Args:
        device: torch's name of the device.

    Raises:
        ConfigError: torch does not have the device.
    """
    if device.partition(":")[0] not in TORCH_DEVICES or not isinstance(model, TableNgram):
        return
    from rescorer.models.kernels import (  # imports torch, which takes seconds
        TorchArrays,
        memory_bytes,
        torch_device,
    )

    place, memory = torch_device(device), memory_bytes(device)
    if not memory or model.table.n_bytes <= MAX_SHARE_OF_FREE_MEMORY * (memory["total"] - memory["used"]):
        model.use_for_tries(TorchArrays(place))


def read_ngram(
    source: Path | BinaryIO,
    name: str = "ngram",
    words: frozenset[str] | None = None,
    *,
    backward: bool = False,
) -> NgramModel:
    """Open an n-gram model, whose kind is detected from its content.

    Args:
        words: vocabulary of a KenLM binary, which does not contain its words.
        backward: whether the model was estimated from reversed sentences.

    Raises:
        BundleError: the file cannot be read; or it is a KenLM binary, and its vocabulary is missing or KenLM
            is not installed.
    """
    with open_regular(source) if isinstance(source, Path) else nullcontext(source) as stream:
        if is_table_file(stream):
            model: NgramModel = TableNgram(map_table(stream), name)
        elif words is not None and not has_arpa_header(stream):
            read_kenlm_header(stream)
            model = load_kenlm(stream, words, name)
        else:
            model = read_arpa_model(stream, name)
    model.backward = backward
    return model


def contains_words(path: Path) -> bool:
    """Whether a model file contains its words: ARPA files and our tables do, KenLM binaries do not.

    Raises:
        BundleError: the file cannot be opened, or is not an n-gram model; the message says what it is.
    """
    with open_regular(path) as stream:
        if os.pread(stream.fileno(), len(KENLM_MAGIC), 0) == KENLM_MAGIC:
            return False
        if not is_table_file(stream):
            read_arpa_counts(stream)
        return True


def read_arpa_model(stream: BinaryIO, name: str = "ngram") -> TableNgram:
    """Read an ARPA file and build its table in memory; raise BundleError if the file cannot be read."""
    model = read_arpa(stream)
    return TableNgram(TableContent(model.words, build_table(model.orders, stream.name)), name)
