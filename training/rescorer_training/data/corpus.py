"""Read text files, count and number their words, and encode them as word ids.

A text has one sentence per line. It passes through the same normaliser as n-best lists and references do;
lines without canonical words are skipped. For backward models, the words of each sentence are reversed here.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from rescorer.errors import FormatError
from rescorer.formats.io import text_io
from rescorer.text import Normaliser, SpacingTally
from rescorer_training.data.pipes import open_text
from rescorer_training.progress import track

logger = logging.getLogger(__name__)

MAX_BUFFERED_IDS = 4_000_000
"""Number of word ids to collect in a list before they go to disk or into an array (16 MB)."""
SENTENCE_END = 0
"""Number with which ``number_words`` closes every sentence."""
LINES_EXAMINED = 1_000
"""Number of lines of each text of which it is found out whether they have spaces."""
MARK = re.compile(r"(?<!\S)(?:[^\w\s]+|[\[(<]\S*[\])>])(?!\S)")
"""A token of symbols only, or in brackets, which a normaliser may drop."""
LINES_PER_REPORT = 10_000
"""Number of lines between two progress reports."""


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 text file, gzip or plain; a pipe can be read again within ``keep_pipes``.

    Raises:
        FormatError: the file is missing, damaged or not UTF-8; names the file and the line.
    """
    with open_text(path) as source:
        for _, line in text_io.read_lines(source):
            if isinstance(line, FormatError):
                raise line
            yield line


def read_sentences(
    paths: Sequence[Path], normaliser: Normaliser, progress: str = "", *, backward: bool = False
) -> Iterator[tuple[str, ...]]:
    """Yield the canonical words of each sentence.

    Args:
        progress: description under which progress is reported; empty for no report.
        backward: reverse the words of each sentence.

    Raises:
        FormatError: a file cannot be read; see ``read_lines``.
    """
    with track(progress, "lines") as task:
        for path in paths:
            for number, line in enumerate(read_lines(path), start=1):
                if number % LINES_PER_REPORT == 0:
                    task.advance(LINES_PER_REPORT)
                words = normaliser.normalise(line)
                if words:
                    yield words[::-1] if backward else words


def count_words(
    paths: Sequence[Path], normaliser: Normaliser, progress: str = "counting words"
) -> Counter[str]:
    """Count the occurrences of each canonical word; warn of text that was not divided into words."""
    return count_words_and_marks(paths, normaliser, progress)[0]


def count_words_and_marks(
    paths: Sequence[Path], normaliser: Normaliser, progress: str = "counting words"
) -> tuple[Counter[str], Counter[str]]:
    """Count each canonical word, and each mark of which the normaliser leaves nothing; warn likewise."""
    counts, marks, spacing = Counter[str](), Counter[str](), SpacingTally()
    with track(progress, "lines") as task:
        for path in paths:
            for number, line in enumerate(read_lines(path), start=1):
                if number % LINES_PER_REPORT == 0:
                    task.advance(LINES_PER_REPORT)
                words = normaliser.normalise(line)
                counts.update(words)
                marks.update(MARK.findall(line))
                if number <= LINES_EXAMINED:
                    spacing.add(words)
    if found := spacing.describe():
        logger.warning("%s; divide the text into words, or put spaces between characters", found)
    dropped = {mark: count for mark, count in marks.items() if not normaliser.normalise(mark)}
    return counts, Counter(dropped)


def encode_text(
    paths: Sequence[Path],
    normaliser: Normaliser,
    ids: Mapping[str, int],
    *,
    unknown_id: int,
    end_id: int,
    backward: bool = False,
) -> np.ndarray:
    """Encode texts as one flat array of word ids, every sentence closed by ``end_id``.

    Args:
        ids: id of each known word; other words become ``unknown_id``.
        backward: see ``read_sentences``.

    Returns:
        (n_words + n_sentences,) int32.

    Raises:
        FormatError: a file cannot be read, or none of them has a word.
    """
    chunks: list[np.ndarray] = []
    buffer: list[int] = []
    look_up = ids.get
    for words in read_sentences(paths, normaliser, "encoding", backward=backward):
        buffer.extend([look_up(word, unknown_id) for word in words])
        buffer.append(end_id)
        if len(buffer) >= MAX_BUFFERED_IDS:
            chunks.append(np.array(buffer, dtype=np.int32))
            buffer.clear()
    encoded = np.concatenate([*chunks, np.array(buffer, dtype=np.int32)])
    if not len(encoded):
        raise FormatError("no words in the text", file=", ".join(str(path) for path in paths))
    return encoded


def number_words(
    paths: Sequence[Path],
    normaliser: Normaliser,
    output: Path,
    progress: str = "reading",
    *,
    backward: bool = False,
) -> tuple[list[str], list[int]]:
    """Number words from 1 in order of first occurrence, and write the text to ``output`` as these numbers.

    The file is a flat int32 array in which 0 closes every sentence. From this file, words can be
    counted, a vocabulary chosen and the text renumbered (``renumber``) without reading the text again.

    Args:
        backward: see ``read_sentences``.

    Returns:
        The words, word number n at index n - 1; and the number of sentences in each file.

    Raises:
        FormatError: a file cannot be read or has no words.
    """
    numbers: defaultdict[str, int] = defaultdict(itertools.count(SENTENCE_END + 1).__next__)
    n_sentences = [0] * len(paths)

    def number_sentences() -> Iterator[Iterable[int]]:
        for index, path in enumerate(paths):
            for words in read_sentences([path], normaliser, progress, backward=backward):
                n_sentences[index] += 1
                yield itertools.chain(map(numbers.__getitem__, words), (SENTENCE_END,))
            if not n_sentences[index]:
                raise FormatError("no words in the text", file=str(path))

    with open(output, "wb") as stream:
        buffer: list[int] = []
        for sentence in number_sentences():
            buffer.extend(sentence)
            if len(buffer) >= MAX_BUFFERED_IDS:
                stream.write(np.array(buffer, dtype=np.int32).tobytes())
                buffer.clear()
        stream.write(np.array(buffer, dtype=np.int32).tobytes())
    return list(numbers), n_sentences


def iterate_blocks(ids: np.ndarray) -> Iterator[np.ndarray]:
    """Yield views of consecutive parts of a long array, to bound the size of temporary arrays."""
    for begin in range(0, len(ids), MAX_BUFFERED_IDS):
        yield ids[begin : begin + MAX_BUFFERED_IDS]


def count_ids(ids: np.ndarray, n: int) -> np.ndarray:
    """Count the occurrences of each of the ids 0 … n-1: (n,) int64."""
    counts = np.zeros(n, dtype=np.int64)
    for block in iterate_blocks(ids):
        counts += np.bincount(block, minlength=n)
    return counts


def renumber(path: Path, new_ids: np.ndarray) -> None:
    """Replace each id i of an encoded text on disk by ``new_ids[i]``."""
    ids = np.memmap(path, dtype=np.int32, mode="r+")
    for block in iterate_blocks(ids):
        block[:] = new_ids[block]
    ids.flush()


def read_encoded(path: Path) -> np.ndarray:
    """Map the ids that ``number_words`` wrote into memory, read-only."""
    if path.stat().st_size == 0:
        return np.empty(0, dtype=np.int32)
    return np.memmap(path, dtype=np.int32, mode="r")
