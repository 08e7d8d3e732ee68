"""Read text files, normalise, count and number their words, and encode them as word ids.

A text has one sentence per line. Lines without words after normalisation are skipped. For backward models,
the words of each sentence are reversed here.

A model must score text that is normalised in the same way as its training text. The normaliser is therefore
recorded with every trained model, and commands that use the model take the recorded normaliser unless the
user gives another one. The direction of an n-gram model, forward or backward, is also recorded in a file next
to the model, because no n-gram format can store it. The direction of a network is in its configuration, and
that of a bundle's model in the manifest.
"""

from __future__ import annotations

import itertools
import json
import logging
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from rescorer.errors import BundleError, ConfigError, FormatError, quote
from rescorer.formats.io import text_io
from rescorer.formats.io.text_io import remove_file, write_text
from rescorer.models.bundle import TEXT, read_normaliser
from rescorer.progress import track
from rescorer.safe_input import Folder
from rescorer.text import Normaliser, NormaliserSettings, SpacingTally
from rescorer_training.pipes import open_text


def choose_normaliser(choice: str | None, models: Iterable[Path] = ()) -> Normaliser:
    """Return the normaliser that the user chose. Warn on stderr if the models were trained with another one.

    Args:
        choice: ``raw`` for a normaliser that only splits at blanks, or the path of a JSON file of normaliser
            settings. None for the normaliser that is recorded with the models, or else the default one.
        models: ARPA files, KenLM binaries, and folders of networks or of their training runs.

    Raises:
        BundleError: a file cannot be read or is not a JSON object.
        ConfigError: a file has unknown or invalid settings, or no choice is given and the models were trained
            with different normalisers.
    """
    recorded = recorded_normalisers(models)
    if choice is None:
        return common_normaliser(recorded) or Normaliser()
    if choice != "raw" and not Path(choice).exists():
        raise ConfigError(
            f"normaliser {choice}: no such file; expected 'raw' for text that is already normalised, or a "
            "JSON file of normaliser settings, such as the text.json of a bundle; leave it out for the "
            "normaliser recorded with the models, or lower case"
        )
    chosen = Normaliser(NormaliserSettings.raw()) if choice == "raw" else read_normaliser(Path(choice))
    for path, normaliser in recorded.items():
        if normaliser.settings != chosen.settings:
            message = f"note: {path} was trained with another normaliser than --normaliser {choice}"
            print(message, file=sys.stderr)
    return chosen


def common_normaliser(recorded: dict[Path, Normaliser]) -> Normaliser | None:
    """Return the normaliser that several models have in common; None if there are no models.

    Args:
        recorded: the normaliser of each model, by the model's path.

    Raises:
        ConfigError: the models were trained with different normalisers.
    """
    first = next(iter(recorded), None)
    for path, normaliser in recorded.items():
        if first and normaliser.settings != recorded[first].settings:
            raise ConfigError(
                f"{first} and {path} were trained with different normalisers; train them with the same "
                "one, or choose one with --normaliser"
            )
    return recorded[first] if first else None


def record_normaliser(model: Path, normaliser: Normaliser) -> None:
    """Write the normaliser of a model's training text next to the model."""
    write_text(record_file(model), normaliser.settings.to_json() + "\n")


UNITS_FOLDER = "units"
"""Folder of a run with its best network as a model in pieces of words."""


def recorded_normalisers(models: Iterable[Path]) -> dict[Path, Normaliser]:
    """Return the recorded normaliser of each model, leaving out models without a record.

    Raises the errors of ``recorded_normaliser``.
    """
    return {path: found for path in models if (found := recorded_normaliser(path)) is not None}


def recorded_normaliser(model: Path) -> Normaliser | None:
    """Return the normaliser recorded with a model; None if none is recorded, as with models of other tools.

    Raises:
        BundleError: the record cannot be read or is not a JSON object.
        ConfigError: the record has unknown or invalid settings.
    """
    files = [record_file(model)]
    if model.name in ("best", UNITS_FOLDER):  # the record of the run counts until the training has ended
        files.append(record_file(model.parent))
    return next((read_normaliser(file) for file in files if file.exists()), None)


def record_file(model: Path) -> Path:
    """Return the file that records a model's normaliser: in a network's folder, or next to an n-gram file."""
    return model / TEXT if model.is_dir() else model.with_name(f"{model.name}.{TEXT}")


SUFFIX = ".direction.json"


def record_direction(model: Path, *, backward: bool) -> None:
    """Record next to an n-gram model that it is backward; remove the record if the model is forward."""
    file = direction_file(model)
    if backward:
        write_text(file, json.dumps({"backward": True}) + "\n")
    else:
        remove_file(file)


def is_backward(model: Path) -> bool:
    """Whether an n-gram model is recorded as backward. A model without a record is forward.

    Raises:
        BundleError: the record cannot be read, or is anything but an object with the key ``backward``.
    """
    file = direction_file(model)
    if not file.exists():
        return False
    values = Folder(file.parent).read_json(file.name)
    if set(values) != {"backward"} or not isinstance(values["backward"], bool):
        raise BundleError(f'{file}: expected {{"backward": true}} or {{"backward": false}}')
    return bool(values["backward"])


def direction_file(model: Path) -> Path:
    """Return the file next to an n-gram model that records its direction."""
    return model.with_name(f"{model.name}{SUFFIX}")


logger = logging.getLogger(__name__)

MAX_BUFFERED_IDS = 4_000_000
"""Number of word ids to hold in memory before writing them to disk, and to process at once (16 MB)."""
SENTENCE_END = 0
"""Number that ``number_words`` writes after every sentence."""
LINES_EXAMINED = 1_000
"""Number of lines of each text that are checked for spaces between words."""
MARK = re.compile(r"(?<!\S)(?:[^\w\s]+|[\[(<]\S*[\])>])(?!\S)")
"""Pattern of marks, which a normaliser may drop: tokens of symbols only, or in brackets like ``[NOISE]``."""
LINES_PER_REPORT = 10_000
"""Number of lines between two progress reports."""


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 text file, gzip or plain. Within ``keep_pipes``, a pipe can be read again.

    Raises:
        FormatError: the file is missing, damaged or not UTF-8; names the file and the line.
    """
    with open_text(path) as source:
        for _, line in text_io.read_lines(source):
            if isinstance(line, FormatError):
                raise line
            yield line


def read_sentences(
    paths: Sequence[Path],
    normaliser: Normaliser,
    progress: str = "",
    *,
    backward: bool = False,
    paragraphs: bool = False,
) -> Iterator[tuple[str, ...]]:
    """Yield the normalised words of each sentence.

    Args:
        backward: reverse the words of each sentence.
        paragraphs: take a paragraph, which empty lines divide from others, for a sentence, instead of a line.

    Raises:
        FormatError: a file cannot be read; see ``read_lines``.
    """
    for _, _, words in _normalise_lines(paths, normaliser, progress, paragraphs=paragraphs):
        if words:
            yield words[::-1] if backward else words


def join_paragraphs(lines: Iterable[str]) -> Iterator[str]:
    """Join the lines of each paragraph; empty lines divide paragraphs."""
    for has_words, group in itertools.groupby(lines, key=lambda line: bool(line.strip())):
        if has_words:
            yield " ".join(group)


def _normalise_lines(
    paths: Sequence[Path], normaliser: Normaliser, progress: str, *, paragraphs: bool = False
) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    """Yield each line: its number in its text, the line itself, and its normalised words."""
    with track(progress, "lines") as task:
        for path in paths:
            lines = join_paragraphs(read_lines(path)) if paragraphs else read_lines(path)
            for number, line in enumerate(lines, start=1):
                if number % LINES_PER_REPORT == 0:
                    task.advance(LINES_PER_REPORT)
                yield number, line, normaliser.normalise(line)


def read_vocabulary(path: Path) -> list[str]:
    """Read a file of words, one per line.

    Raises:
        FormatError: the file cannot be read, has no words, or a line has more than a word, such as its count.
    """
    words = []
    for number, line in enumerate(read_lines(path), start=1):
        match line.split():
            case [word]:
                words.append(word)
            case [_, *_]:
                message = f"expected one word per line, got {quote(line.strip())}"
                advice = "leave out counts and other columns"
                raise FormatError(f"{message}; {advice}", file=str(path), line=number)
    if not words:
        raise FormatError("the file has no words; expected one per line", file=str(path))
    return words


def count_words(
    paths: Sequence[Path], normaliser: Normaliser, progress: str = "counting words"
) -> Counter[str]:
    """Count the occurrences of each normalised word; warn if a text is not divided into words."""
    return count_words_and_marks(paths, normaliser, progress)[0]


def count_words_and_marks(
    paths: Sequence[Path], normaliser: Normaliser, progress: str = "counting words"
) -> tuple[Counter[str], Counter[str]]:
    """Count words like ``count_words``. Also count each mark that the normaliser drops, like ``[NOISE]``."""
    counts, marks, spacing = Counter[str](), Counter[str](), SpacingTally()
    for number, line, words in _normalise_lines(paths, normaliser, progress):
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
    """Encode texts as one flat array of word ids, with ``end_id`` after every sentence.

    Args:
        ids: id of each known word; other words become ``unknown_id``.
        backward: see ``read_sentences``.

    Returns:
        (n_words + n_sentences,) int32.

    Raises:
        FormatError: a file cannot be read, or none of them has a word.
    """
    look_up = ids.get
    sentences = read_sentences(paths, normaliser, "encoding", backward=backward)
    rows = ([*(look_up(word, unknown_id) for word in words), end_id] for words in sentences)
    encoded = np.fromiter(itertools.chain.from_iterable(rows), np.int32)
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
    paragraphs: bool = False,
) -> tuple[list[str], list[int]]:
    """Number words from 1 in order of first occurrence, and write the text to ``output`` as these numbers.

    The file is a flat int32 array in which 0 closes every sentence. With this file, the caller can count
    words, choose a vocabulary and renumber the text (``renumber``) without reading the text again.

    Args:
        backward, paragraphs: see ``read_sentences``.

    Returns:
        The words, where word number n has the index n - 1; and the number of sentences in each file.

    Raises:
        FormatError: a file cannot be read or has no words.
    """
    numbers: defaultdict[str, int] = defaultdict(itertools.count(SENTENCE_END + 1).__next__)
    n_sentences = [0] * len(paths)

    def number_sentences() -> Iterator[Iterable[int]]:
        for index, path in enumerate(paths):
            for words in read_sentences(
                [path], normaliser, progress, backward=backward, paragraphs=paragraphs
            ):
                n_sentences[index] += 1
                yield itertools.chain(map(numbers.__getitem__, words), (SENTENCE_END,))
            if not n_sentences[index]:
                raise FormatError("no words in the text", file=str(path))

    flat = itertools.chain.from_iterable(number_sentences())
    with open(output, "wb") as stream:
        while len(block := np.fromiter(itertools.islice(flat, MAX_BUFFERED_IDS), np.int32)):
            stream.write(block.tobytes())
    return list(numbers), n_sentences


def iterate_blocks(ids: np.ndarray) -> Iterator[np.ndarray]:
    """Yield a long array in parts, as views, so that callers need only short temporary arrays."""
    for begin in range(0, len(ids), MAX_BUFFERED_IDS):
        yield ids[begin : begin + MAX_BUFFERED_IDS]


def count_ids(ids: np.ndarray, n: int) -> np.ndarray:
    """Count how often each of the ids 0 … n-1 occurs: (n,) int64."""
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
