"""Re-rank streams of n-best lists: read, batch, rescore and write, with memory bounded by one batch.

A list that cannot be read, scored or written goes to a file of rejected lists, with the reason; the other
lists are not affected. Lists of one conversation can be rescored in order: models then read the text of
earlier lists before each list. Lists of different conversations share batches.
"""

from __future__ import annotations

import io
import json
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from io import TextIOWrapper
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol, Self, TextIO

from rescorer.errors import FormatError, InputError, InvalidList
from rescorer.formats.io.folders import Lists
from rescorer.formats.io.text_io import (
    explain_write_errors,
    is_stream,
    max_line_bytes,
    open_stream,
    read_byte_chunks,
    remove_file,
)
from rescorer.formats.jsonlines import encode_list, encode_rankings
from rescorer.formats.rescored import Renderer, get_renderer
from rescorer.jobs.shared_models import RemoteScorer
from rescorer.list_checks import CUT_STEP, MAX_PREVIOUS_WORDS
from rescorer.models.bundle import BundleSource, read_bundle
from rescorer.pipeline import MAX_BATCH_WORDS as DEFAULT_BATCH_WORDS
from rescorer.pipeline import Rescorer, TrieScorer
from rescorer.ranking import Ranking, decided_text
from rescorer.runtime import Phase, phase, time_items
from rescorer.scoring.options import RescoreOptions
from rescorer.scoring.ranker import ListRanker
from rescorer.types import LENGTH, NBestList, Utterance
from rescorer.weights import WORDS

MIN_LISTS_TO_JUDGE = 10
"""Smallest number of lists by which a run can be judged to rank in reverse."""
MAX_LOWER_HALF, MAX_CHANGED = 0.5, 0.9
"""A run looks reversed if both shares are exceeded: that of best hypotheses from the lower half of their
list, and that of best hypotheses that were not the first of their list."""


class RejectsFile:
    """A context manager that writes rejected lists to a file, or to stderr without a path.

    The file is created when the first list is rejected. If no list is rejected, a file that an earlier run
    left is removed, so that it is not taken for the rejects of this run.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._stream: TextIO | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self._stream is not None:
            self._stream.close()
        elif self._path is not None and kind is None:
            remove_file(self._path)

    def write(self, text: str) -> None:
        if self._path is None:
            sys.stderr.write(text)
            return
        if self._stream is None:
            with explain_write_errors(self._path):
                stream = open_stream(self._path) if is_stream(self._path) else open(self._path, "wb")  # noqa: SIM115
            self._stream = TextIOWrapper(stream, "utf-8", newline="\n")
        self._stream.write(text)


@dataclass(frozen=True, slots=True)
class FileSummary:
    """Counts of rescored and rejected lists. The counts of two sets of lists are added with ``+``."""

    lists: int = 0
    """Number of lists that were written."""
    hypotheses: int = 0
    words: int = 0
    """Number of words in all hypotheses, after normalisation."""
    changed: int = 0
    """Number of lists whose best hypothesis was not the first of the input list."""
    rejected: int = 0
    """Number of lists that could not be read, scored or written."""
    from_lower_half: int = 0
    """Number of lists whose best hypothesis was in the lower half of the input list."""
    too_long: int = 0
    """Number of lists that are too long for a language model, whose scores are then 0."""

    def __add__(self, other: FileSummary) -> FileSummary:
        return FileSummary.total([self, other])

    def __reduce__(self) -> tuple[type, tuple[int, ...]]:  # faster than what a dataclass does by itself
        return FileSummary, _counts_of(self)

    @classmethod
    def total(cls, parts: Sequence[FileSummary]) -> FileSummary:
        """Add up the counts of any number of sets of lists, at least one."""
        return cls(*map(sum, zip(*map(_counts_of, parts), strict=True)))

    def to_dict(self) -> dict[str, int]:
        return asdict(self)

    @property
    def looks_reversed(self) -> bool:
        """Whether the ranking seems upside down, as it is when costs are read as log-probabilities.

        The best hypothesis is then rarely the first of its list, and mostly from the lower half.
        """
        n = self.lists
        is_odd = self.from_lower_half > MAX_LOWER_HALF * n and self.changed > MAX_CHANGED * n
        return n >= MIN_LISTS_TO_JUDGE and is_odd


_counts_of: Callable[[FileSummary], tuple[int, ...]] = attrgetter(*FileSummary.__slots__)


@dataclass(frozen=True, slots=True)
class RenderedList:
    """A re-ranked list in the form that the writer expects, with the facts that the summary counts."""

    content: Any
    counts: FileSummary
    """The counts of this list alone."""
    text: str
    """The chosen text: that of the best hypothesis, or the consensus."""
    confidence: float = 1.0
    """Confidence in the best hypothesis; 1 if the weights are not calibrated."""

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:  # as in ``FileSummary``
        return RenderedList, (self.content, self.counts, self.text, self.confidence)


Batch = list[NBestList | InputError]
"""Items that a reader yields: lists, and errors in place of unreadable lists."""
BatchResults = list[RenderedList | InputError]
"""One result for each list of a batch, or for each item of a ``LineBlock``, errors included."""


class _NamedBytes(io.BytesIO):
    """Bytes with the name of their file, for the messages of readers."""

    name = ""


@dataclass(frozen=True, slots=True)
class LineBlock:
    """Consecutive lines of a file of JSON lines, to be read in another process. See ``cut_lines``.

    Args:
        name: name of the file.
        content: the lines, decompressed.
        first_line: number of the first of them in the file.
        header: header line of the file; empty if it has none.
        read_lines: see ``rescorer.jobs.plan.ListSource``.
    """

    name: str
    content: bytes
    first_line: int
    header: str
    read_lines: Callable[[BinaryIO, int, str], Lists]

    def read(self) -> Batch:
        """Read the lists of the block."""
        stream = _NamedBytes(self.content)
        stream.name = self.name
        return [*self.read_lines(stream, self.first_line, self.header)]


class BatchRescorer(Protocol):
    """Rescores batches of lists, in this process (``LocalRescorer``) or in others."""

    @property
    def batch_words(self) -> int:
        """Approximate number of words per batch."""

    @property
    def count(self) -> int:
        """Number of batches that are rescored at the same time."""

    def rescore_batches(
        self, batches: Iterable[Batch | LineBlock]
    ) -> Iterator[tuple[Batch | LineBlock, BatchResults]]:
        """Yield each batch with its results, in input order."""


@dataclass(frozen=True, slots=True)
class LocalRescorer:
    """Rescores batches of lists in this process.

    Args:
        render: converts ranked lists to the form that the output's writer expects.
    """

    rescorer: Rescorer
    options: RescoreOptions = field(default_factory=RescoreOptions)
    render: Renderer = encode_rankings

    @property
    def batch_words(self) -> int:
        return self.rescorer.max_batch_words

    @property
    def count(self) -> int:
        return 1

    def rescore_batches(
        self, batches: Iterable[Batch | LineBlock]
    ) -> Iterator[tuple[Batch | LineBlock, BatchResults]]:
        for batch in batches:
            if isinstance(batch, LineBlock):
                yield batch, self.rescore_lines(batch)
            else:
                yield batch, self.rescore(select_lists(batch))

    def rescore_lines(self, block: LineBlock) -> BatchResults:
        """Read, rescore and render the lists of a block; errors stand in place of lists that fail.

        Raises:
            ConfigError: the weights do not fit the bundle.
        """
        with phase(Phase.PARSE):
            batch = block.read()
        return put_in_place(batch, self.rescore(select_lists(batch)))

    def rescore(self, lists: Sequence[NBestList]) -> BatchResults:
        """Rescore and render some lists.

        Raises:
            ConfigError: the weights do not fit the bundle.
        """
        bound = self.rescorer.ranker.bind(self.options)
        results = self.rescorer.rank_each(lists, bound)
        ranked = [result for result in results if isinstance(result, Ranking)]
        with phase(Phase.WRITE):
            contents = iter(self.render(ranked, bound.weights, self.rescorer.bundle.label))
            return [
                result if isinstance(result, InvalidList) else _describe(result, next(contents))
                for result in results
            ]


def _describe(ranking: Ranking, content: Any) -> RenderedList:
    """Join a rendered list with the facts that the summary counts."""
    order = list(ranking.order)
    best = ranking.members[order[0]] or (order[0],)
    is_whole = len(order) == len(ranking.members)  # none was dropped or merged into another
    last = len(order) - 1 if is_whole else max(chain(order, *ranking.members))
    words = ranking.components[WORDS]
    counts = FileSummary(
        lists=1,
        hypotheses=len(order),
        words=int((words if is_whole else words[order]).sum()),
        changed=int(0 not in best),
        from_lower_half=int(2 * min(best) > last),
        too_long=int(ranking.degradation == LENGTH),
    )
    confidence = 1.0 if ranking.confidence is None else ranking.confidence
    return RenderedList(content, counts, decided_text(ranking), confidence)


@dataclass(frozen=True)
class RescorerLoader:
    """A function that loads the models. It can be pickled, to be called in other processes.

    Args:
        bundle: folder of the models, or a bundle with added models.
        options: weights, decision rule and choice of hypotheses.
        device, batch_words, dtype: as for ``Rescorer.load``.
        context_cache_bytes: as for ``Rescorer.load``. Without a cache, scores depend on nothing that the
            process scored before, so that shards and workers write the bytes that one process would.
        apply: sets up the ranker: text rules, phrases and generated hypotheses; None keeps the defaults.
        to: format of the output.
        best_only: whether to write only the best hypothesis of each list.
    """

    bundle: BundleSource
    options: RescoreOptions
    device: str = "cpu"
    batch_words: int = DEFAULT_BATCH_WORDS
    dtype: str = "float32"
    apply: Callable[[ListRanker], None] | None = None
    to: str = "jsonl"
    context_cache_bytes: int = 0
    best_only: bool = False

    def __call__(self) -> LocalRescorer:
        """Load the models; raise BundleError and ConfigError as ``Rescorer.load`` does."""
        return self._prepare(
            Rescorer.load(self.bundle, self.device, self.batch_words, self.dtype, self.context_cache_bytes)
        )

    def load_scorer(self) -> TrieScorer:
        """Load the models alone, for a ``ModelProcess``; raise as ``__call__``."""
        return TrieScorer.load(self.bundle, self.device, self.dtype, self.context_cache_bytes)

    def load_ranker(self, address: str) -> LocalRescorer:
        """Load all but the models, which the process with this address holds."""
        bundle = read_bundle(self.bundle)
        rescorer = Rescorer(bundle, {}, self.batch_words)
        rescorer.scorer = RemoteScorer(bundle, address)
        return self._prepare(rescorer)

    def _prepare(self, rescorer: Rescorer) -> LocalRescorer:
        if self.apply is not None:
            self.apply(rescorer.ranker)
        return LocalRescorer(rescorer, self.options, get_renderer(self.to, best_only=self.best_only))


def rescore_lists(
    rescorer: BatchRescorer,
    lists: Iterable[NBestList | InputError],
    write: Callable[[Any], object],
    reject: Callable[[str], object] = lambda line: None,
    *,
    on_batch: Callable[[int, FileSummary], object] = lambda n_items, summary: None,
) -> FileSummary:
    """Re-rank a stream of lists.

    Args:
        lists: items yielded by a reader: lists, and errors in place of unreadable lists.
        write: writes a rendered list; called in input order. For a list that the format cannot hold,
            ``write`` must raise InvalidList and write nothing.
        reject: writes a line of JSON about a rejected list.
        on_batch: called after each batch with its number of items and the summary so far.

    Raises:
        ConfigError: the weights do not fit the bundle.
    """
    batches = cut_batches(time_items(lists, Phase.PARSE), rescorer.batch_words)
    return rescore_batches(rescorer, batches, write, reject, on_batch=on_batch)


def rescore_batches(
    rescorer: BatchRescorer,
    batches: Iterable[Batch | LineBlock],
    write: Callable[[Any], object],
    reject: Callable[[str], object] = lambda line: None,
    *,
    on_batch: Callable[[int, FileSummary], object] = lambda n_items, summary: None,
) -> FileSummary:
    """Re-rank a stream of lists that is divided into batches; otherwise like ``rescore_lists``."""
    summary = FileSummary()
    for batch, results in rescorer.rescore_batches(batches):
        items = None if isinstance(batch, LineBlock) else batch
        results = results if items is None else put_in_place(items, results)
        counts = [summary]
        for index, result in enumerate(results):
            result = _try_write(result, write)
            if isinstance(result, RenderedList):
                counts.append(result.counts)
                continue
            counts.append(FileSummary(rejected=1))
            if items is None:  # read again, because few lists are rejected
                assert isinstance(batch, LineBlock)
                items = batch.read()
            reject(format_reject(result, items[index]) + "\n")
        summary = FileSummary.total(counts)
        on_batch(len(results), summary)
    return summary


def put_in_place(batch: Batch, results: BatchResults) -> BatchResults:
    """Return one result for each item of a batch: the results of its lists, and its errors."""
    of_lists = iter(results)
    return [item if isinstance(item, InputError) else next(of_lists) for item in batch]


def _try_write(
    result: RenderedList | InputError, write: Callable[[Any], object]
) -> RenderedList | InputError:
    """Write a result unless it is an error. Return the result, or the error if writing failed."""
    if isinstance(result, RenderedList):
        try:
            with phase(Phase.WRITE):
                write(result.content)
        except InvalidList as error:
            return error
    return result


def select_lists(batch: Batch) -> list[NBestList]:
    """Return the lists of a batch without its errors."""
    return [item for item in batch if isinstance(item, NBestList)]


def cut_batches(items: Iterable[NBestList | InputError], max_words: int) -> Iterator[Batch]:
    """Yield the items in batches of about ``max_words`` words, with at least one item each."""
    batch: Batch = []
    words = 0
    for item in items:
        batch.append(item)
        words += count_words(item)
        if words >= max_words or len(batch) >= max_words:
            yield batch
            batch, words = [], 0
    if batch:
        yield batch


LIST_START = b"\n{"
"""The end of a line, and the start of a list on the next one. Files are divided only here, because a list may
take several lines, and because what follows a broken list decides how the error is explained."""


def cut_lines(
    name: str, header: str, read_lines: Callable[[BinaryIO, int, str], Lists], n_bytes: int
) -> Iterator[Batch | LineBlock]:
    """Divide a file of JSON lines, plain or gzip, into blocks of about ``n_bytes`` bytes; read no lists.

    Memory is bounded whatever the file contains: a block has at most ``n_bytes`` and two lines of the largest
    length, and of a longer line, which is an error, the end is left out. If the file is damaged, the lines
    before the damage come first, and then an error. Errors and lists are those of the whole file, unless a
    list that takes several lines comes after a broken one: at the start of a block it is read.

    Args:
        header, read_lines: see ``LineBlock``.

    Raises:
        FormatError: the file cannot be opened.
    """
    content, line, searched, limit = bytearray(), 1, 0, n_bytes + max_line_bytes()

    def take(end: int) -> LineBlock:
        nonlocal line
        block = LineBlock(name, bytes(content[:end]), line, header, read_lines)
        line += content.count(b"\n", 0, end)
        del content[:end]
        return block

    try:
        for chunk in read_byte_chunks(name):
            content += chunk
            while end := _find_end(content, n_bytes, searched, limit):
                yield take(end)
                searched = 0
            if searched > limit:
                del content[searched + 1 :]  # of a single line
            searched = max(len(content) - 1, 0)
    except FormatError as error:
        if not content and line == 1:
            raise
        yield take(content.rfind(b"\n") + 1)
        yield [FormatError(error.message, file=name, line=line)]
    else:
        yield take(len(content))


def _find_end(content: bytearray, n_bytes: int, searched: int, limit: int) -> int:
    """Find where a block can end, in what was not searched before; 0 if nowhere."""
    end = content.find(LIST_START, max(n_bytes - 1, searched)) + 1
    if not end and len(content) > limit:
        end = content.rfind(b"\n", searched if searched > limit else 0) + 1
    return end


def count_words(item: NBestList | InputError) -> int:
    """Estimate the number of words and sentence ends in the hypotheses of a list; 0 for an error."""
    if isinstance(item, InputError):
        return 0
    texts = item.texts
    return " ".join(texts).count(" ") + len(texts) + bool(texts)


def format_reject(error: InputError, item: NBestList | InputError) -> str:
    """Return a line of JSON with the error, its location, and the list; ``null`` for what is not known."""
    place = {name: getattr(error, name, None) for name in ("hypothesis", "field", "file", "line")}
    record = {
        "reason": str(error),
        "id": item.id if isinstance(item, NBestList) else getattr(error, "list_id", None) or None,
        **{name: None if value == "" else value for name, value in place.items()},
    }
    line = json.dumps(record, ensure_ascii=False)
    return f'{line[:-1]}, "list": {encode_list(item) if isinstance(item, NBestList) else "null"}}}'


SessionText = Literal["chosen", "reference"]

GROUP = "group"
"""Value of ``--session`` for which lists of the same group, such as a speaker, are a conversation."""
WINDOW_BATCHES = 16
"""Number of batches that are read at a time, so that lists of several conversations can be rescored
together."""
MAX_SESSIONS = 10_000
"""Largest number of conversations whose text is kept; the least recent one makes room for the next."""


@dataclass(slots=True)
class _Session:
    """The latest utterances of a conversation, as many as models read."""

    utterances: deque[Utterance] = field(default_factory=deque)
    n_words: int = 0

    def add(self, utterance: Utterance) -> None:
        self.utterances.append(utterance)
        self.n_words += _length(utterance)
        # dropped CUT_STEP at a time, as normalise_previous cuts a long past
        while len(self.utterances) > CUT_STEP:
            oldest = sum(_length(self.utterances[i]) for i in range(CUT_STEP))
            if self.n_words - oldest < MAX_PREVIOUS_WORDS:
                return
            for _ in range(CUT_STEP):
                self.utterances.popleft()
            self.n_words -= oldest


class SessionRescorer:
    """Rescores batches of lists, and gives each list the earlier utterances of its conversation.

    A list that comes with previous utterances keeps them. A list that cannot be rescored adds nothing to
    its conversation.

    Args:
        inner: rescores lists that do not depend on each other.
        field: name of the field that holds the id of a list's conversation; or ``group``.
        text: the text of earlier lists that models read: the chosen text, or the reference. The latter shows
            how much would be gained if all earlier decisions were right.
    """

    def __init__(self, inner: BatchRescorer, field: str, text: SessionText = "chosen") -> None:
        self.inner, self.field, self.text = inner, field, text
        self._sessions: OrderedDict[str, _Session] = OrderedDict()  # the most recently used last

    @property
    def batch_words(self) -> int:
        return WINDOW_BATCHES * self.inner.batch_words

    @property
    def count(self) -> int:
        return self.inner.count

    def rescore_batches(
        self, batches: Iterable[Batch | LineBlock]
    ) -> Iterator[tuple[Batch | LineBlock, BatchResults]]:
        for batch in batches:
            assert not isinstance(batch, LineBlock)  # the text of a list follows from lists before it
            yield batch, self._rescore(select_lists(batch))

    def _rescore(self, lists: Sequence[NBestList]) -> BatchResults:
        """Rescore the first list of each conversation, then the second of each, and so on."""
        results: dict[int, RenderedList | InputError] = {}
        waiting: dict[str, deque[int]] = defaultdict(deque)
        for index, nbest in enumerate(lists):
            try:
                waiting[self._name_session(nbest)].append(index)
            except InvalidList as error:
                results[index] = error
        while waiting:
            turn = {name: indices.popleft() for name, indices in waiting.items()}
            waiting = {name: indices for name, indices in waiting.items() if indices}
            results |= self._rescore_turn(lists, turn)
        return [results[index] for index in range(len(lists))]

    def _rescore_turn(
        self, lists: Sequence[NBestList], turn: Mapping[str, int]
    ) -> dict[int, RenderedList | InputError]:
        """Rescore one list of each conversation, and add the texts to the conversations."""
        batch: Batch = [self._add_previous(lists[index], name) for name, index in turn.items()]
        share = -(-sum(map(count_words, batch)) // self.inner.count)  # so that all processes are busy
        batches = cut_batches(batch, min(share, self.inner.batch_words))
        rescored = self.inner.rescore_batches(batches)
        results = dict(zip(turn.values(), (r for _, part in rescored for r in part), strict=True))
        for name, index in turn.items():
            self._remember(name, lists[index], results[index])
        return results

    def _name_session(self, nbest: NBestList) -> str:
        """The name of a list's conversation; raise InvalidList if the name, or a needed reference, is
        missing."""
        name = nbest.group if self.field == GROUP else nbest.fields.get(self.field)
        if not isinstance(name, (str, int)) or isinstance(name, bool) or name == "":
            message = "missing; expected the name of a conversation, a text or an integer (--session)"
            raise InvalidList(message, list_id=nbest.id, field=self.field)
        if self.text == "reference" and nbest.reference is None:
            message = "missing, but later lists are to be read after it (--session-text reference)"
            raise InvalidList(message, list_id=nbest.id, field="reference")
        return str(name)

    def _add_previous(self, nbest: NBestList, name: str) -> NBestList:
        session = self._sessions.get(name)
        if nbest.previous or session is None:
            return nbest
        return replace(nbest, previous=tuple(session.utterances))

    def _remember(self, name: str, nbest: NBestList, result: RenderedList | InputError) -> None:
        """Add the text of a list to its conversation."""
        if isinstance(result, InputError):
            return
        is_certain = self.text == "reference"
        text = nbest.reference if is_certain else result.text
        confidence = 1.0 if is_certain else result.confidence
        self._sessions.setdefault(name, _Session()).add(Utterance(text or "", nbest.group, confidence))
        self._sessions.move_to_end(name)
        if len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)


def _length(utterance: Utterance) -> int:
    return len(utterance.text.split())
