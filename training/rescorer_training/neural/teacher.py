"""Distil a large language model in pieces of words into a network: words that the large model expects, as
further targets.

A large model, the teacher, reads the training text of the network once. At every word, its most probable
words are written to a file with their probabilities q. In training, each epoch draws one word per position
from them (Hinton et al. 2015, "Distilling the Knowledge in a Neural Network", with sampled instead of soft
targets), and the loss is

    (1 - α) · -ln P(word that was said) - α · ln P(drawn word).

Its expectation is the cross entropy with the mixture of both distributions, for any output layer and
objective, at the cost of one more target per word. What q lacks of 1 is the probability that the word that
was said is drawn: that of words that are not in the file, and of ends and punctuation.

Which words the teacher can propose is what it can say without being asked once more for each of them: the
words of the network's vocabulary that are one piece after a space. The first words of sentences, their ends,
and words outside the vocabulary are learnt from the text alone, because many large models were not trained on
single sentences.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rescorer.errors import ConfigError, ScoringError, quote
from rescorer.models.network_files import CONFIG_FILE, Vocabulary
from rescorer.progress import track
from rescorer.safe_input import Folder
from rescorer.trie import Words, build_trie
from rescorer.units.files import load_unit_model
from rescorer.units.model import DecoderScorer, UnitLanguageModel
from rescorer.units.tokens import build_unit_trie
from rescorer_training.corpus import read_sentences
from rescorer_training.neural.checkpoint import ProcessGroup
from rescorer_training.neural.prepare import PreparedText, RunInputs
from rescorer_training.state_files import describe_write_error

LESSONS_FILE = "teacher.lessons"
"""File of what the teacher expects, in the folder of a run unless the options name another."""
HEADER_BYTES = 512
"""Size of the JSON object that begins the file, padded with spaces. It says what the file was made from."""
CHUNK_SENTENCES = 64
"""Number of sentences that are written at once. A run that was stopped continues after the last ones."""
MAX_SCORES = 1 << 22
"""Maximum number of probabilities of the teacher in memory at once (32 MB)."""


def record_type(n_words: int) -> np.dtype:
    """Type of the file's records, one for each position of the text."""
    return np.dtype([("words", "<i4", (n_words,)), ("probs", "<f2", (n_words,))])


@dataclass(frozen=True)
class Lessons:
    """The words that a teacher expects at every position of a text."""

    records: np.ndarray
    """(N,) records of K word ids and their probabilities q. All q are 0 where nothing is taught."""
    weight: float
    """Weight α of the drawn words."""

    def draw(self, positions: np.ndarray, words: Tensor) -> Tensor:
        """Draw a word at each of some positions, by torch's generator for the CPU, whose state is saved.

        Args:
            positions: (n,) positions in the text.
            words: (n,) ids of the words that were said there.

        Returns:
            (n,) ids, on the device of ``words``.
        """
        records = self.records[positions]
        below = records["probs"].astype(np.float64).cumsum(axis=1)  # (n, K)
        drawn = (below <= torch.rand(len(positions), dtype=torch.float64).numpy()[:, None]).sum(axis=1)
        padded = np.concatenate([records["words"], words.cpu().numpy()[:, None]], axis=1)  # (n, K + 1)
        ids = np.take_along_axis(padded, drawn[:, None], axis=1)[:, 0].astype(np.int64)
        return torch.from_numpy(ids).to(words.device)


class Teacher:
    """A large model that says which words it expects.

    Args:
        vocabulary: words of the network to teach.
        n_words: K, number of words to propose.

    Raises:
        ConfigError: fewer than K words of the vocabulary are one piece of the model.
    """

    def __init__(self, model: UnitLanguageModel, vocabulary: Vocabulary, n_words: int) -> None:
        assert isinstance(model.scorer, DecoderScorer)
        self.model, self.scorer, self.n_words = model, model.scorer, n_words
        words = list(filter(vocabulary.is_known, vocabulary.words))
        pieces = model.divider.divide(words, after_space=True)
        n_alike = Counter(units[0] for units in pieces if len(units) == 1)  # the unknown unit has many words
        single = [
            (word, units[0])
            for word, units in zip(words, pieces, strict=True)
            if len(units) == 1 and n_alike[units[0]] == 1
        ]
        if len(single) < n_words:
            raise ConfigError(
                f"--teacher-words is {n_words}, but only {len(single)} words of the vocabulary are one piece "
                "of the teacher; give fewer, or another teacher"
            )
        self.ids = vocabulary.encode(word for word, _ in single)
        self.units = [unit for _, unit in single]

    def expect(self, sentences: Sequence[Words]) -> list[np.ndarray]:
        """Find the most probable words after the first, second … last but one word of each sentence.

        A sentence that has more pieces than the model can read gets no words.

        Returns:
            For each sentence of T words, its (T + 1,) records. Those of the first word and of the end are 0.
        """
        records = [np.zeros(len(words) + 1, dtype=record_type(self.n_words)) for words in sentences]
        places = [
            (number, n)
            for number, words in enumerate(sentences)
            if self._can_read(words)
            for n in range(1, len(words))
        ]
        step = max(1, MAX_SCORES // len(self.units))
        for begin in range(0, len(places), step):
            group = places[begin : begin + step]
            log_probs = self._score([sentences[number][:n] for number, n in group])  # (n, units)
            best = np.argpartition(-log_probs, self.n_words - 1, axis=1)[:, : self.n_words]
            probs = np.exp(np.take_along_axis(log_probs, best, axis=1))
            for (number, n), columns, row in zip(group, best, probs, strict=True):
                records[number][n] = self.ids[columns], row
        return records

    def _can_read(self, words: Words) -> bool:
        n_before = 1 + len(self.model.opening)
        return len(self.model.divider.divide_text(words)) + n_before <= self.scorer.decoder.n_positions

    def _score(self, texts: Sequence[Words]) -> np.ndarray:
        """ln P of each of the pieces after texts, (n, units)."""
        trie = build_unit_trie(build_trie(texts), self.model.divider, self.model.opening).trie
        rows = np.searchsorted(trie.end_nodes, trie.hypothesis_node)
        log_probs: np.ndarray = self.scorer.score_ends(trie, self.units)[rows]
        return log_probs


def write_lessons(inputs: RunInputs, text: PreparedText, device: str = "cpu") -> None:
    """Let the teacher of a run read its training text, unless its file says all of it already.

    Raises:
        ConfigError: the file was made from another text, vocabulary or teacher; or the texts have changed.
        BundleError: the teacher cannot be loaded.
        ScoringError: the file cannot be written.
    """
    options, file, sentences = inputs.teacher, find_file(inputs), text.train
    assert options.teacher is not None
    ends = np.append(sentences.starts[1:], len(sentences.ids))  # of each sentence
    size = record_type(options.teacher_words).itemsize
    header = make_header(inputs, text)
    n_written = (file.stat().st_size - HEADER_BYTES) // size if check_file(file, header) else -1
    n_done = int(np.searchsorted(ends, n_written, side="right")) // CHUNK_SENTENCES * CHUNK_SENTENCES
    if n_written == len(sentences.ids):
        return
    model = load_teacher(options.teacher, device)
    teacher = Teacher(model, text.vocabulary, options.teacher_words)
    position = int(ends[n_done - 1]) if n_done else 0
    try:
        with open(file, "r+b" if n_written >= 0 else "w+b") as stream:
            stream.write(header)
            stream.truncate(HEADER_BYTES + position * size)
            stream.seek(0, os.SEEK_END)
            with track("asking the teacher", "words", len(sentences.ids)) as task:
                task.advance(position)
                for chunk in read_chunks(inputs, n_done):
                    n_words = _write_chunk(stream, teacher, text, chunk, n_done)
                    n_done += len(chunk)
                    task.advance(n_words)
    except OSError as error:
        raise ScoringError(describe_write_error(file, error, f"sentence {n_done}")) from None


def _write_chunk(stream, teacher: Teacher, text: PreparedText, chunk: Sequence[Words], first: int) -> int:  # type: ignore[no-untyped-def]
    """Write the records of some sentences, from number ``first`` on; return the number of records."""
    train = text.train
    numbers = range(first, first + len(chunk))
    if len(train.starts) < numbers.stop:
        raise ConfigError("the training texts have changed since they were encoded; start again")
    cut = [words[: train.lengths[number]] for number, words in zip(numbers, chunk, strict=True)]
    n_written = 0
    for number, words, known in zip(numbers, chunk, teacher.expect(cut), strict=True):
        records = np.zeros(len(words) + 1, dtype=known.dtype)
        records[: len(known) - 1] = known[:-1]
        said = train.ids[train.starts[number] :][: len(words) + 1]
        if len(said) != len(words) + 1 or said[-1] != text.vocabulary.end:
            raise ConfigError("the training texts have changed since they were encoded; start again")
        records["probs"][said == text.vocabulary.unknown] = 0.0
        stream.write(records.tobytes())
        n_written += len(records)
    return n_written


def read_chunks(inputs: RunInputs, n_done: int) -> Iterator[tuple[Words, ...]]:
    """Read the sentences after the first ``n_done`` ones; all words, also those outside the vocabulary."""
    sentences = islice(read_sentences(inputs.texts, inputs.normaliser), n_done, None)
    while chunk := tuple(islice(sentences, CHUNK_SENTENCES)):
        yield chunk


def load_teacher(folder: Path, device: str) -> UnitLanguageModel:
    """Load an imported model in bfloat16, which is twice as fast, if this machine has it."""
    try:
        return load_unit_model(folder, device=device, dtype="bfloat16", context_cache_bytes=0)
    except ConfigError:
        return load_unit_model(folder, device=device, context_cache_bytes=0)


def find_file(inputs: RunInputs) -> Path:
    """Path of the file of what the teacher of a run expects."""
    return inputs.teacher.teacher_file or inputs.folder / LESSONS_FILE


def make_header(inputs: RunInputs, text: PreparedText) -> bytes:
    """The beginning of the file: what it is made from."""
    options, digest = inputs.teacher, hashlib.sha256("\n".join(text.vocabulary.words).encode())
    digest.update(np.ascontiguousarray(text.train.ids).data)
    assert options.teacher is not None
    config = Folder(options.teacher).read_json(CONFIG_FILE)  # with what its import measured
    facts = {
        "teacher": hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest(),
        "words": options.teacher_words,
        "positions": len(text.train.ids),
        "longest": inputs.longest,
        "text": digest.hexdigest(),
    }
    return json.dumps(facts, ensure_ascii=True).encode().ljust(HEADER_BYTES)


def check_file(file: Path, header: bytes) -> bool:
    """Whether the file exists.

    Raises:
        ConfigError: it was made from something else.
    """
    if not file.exists():
        return False
    with open(file, "rb") as stream:
        found = stream.read(HEADER_BYTES)
    if found != header:
        made_from = quote(found.decode(errors="replace"))
        raise ConfigError(
            f"{file} was made from another text, vocabulary or teacher: {made_from}; remove it, or name "
            "another file by --teacher-file"
        )
    return True


def prepare_lessons(
    inputs: RunInputs, text: PreparedText, processes: ProcessGroup, device: torch.device
) -> Lessons | None:
    """Let the first process of a run ask its teacher, and map what it expects into the memory of all.

    Returns:
        None if the run has no teacher.

    Raises the errors of ``write_lessons`` and ``load_lessons``.
    """
    if inputs.teacher.teacher is None:
        return None
    if processes.is_first:
        write_lessons(inputs, text, str(device))
    processes.wait_for(find_file(inputs))
    return load_lessons(inputs, text)


def load_lessons(inputs: RunInputs, text: PreparedText) -> Lessons:
    """Map what the teacher of a run expects into memory.

    Raises:
        ConfigError: the file is missing, incomplete, or was made from something else.
    """
    file, dtype = find_file(inputs), record_type(inputs.teacher.teacher_words)
    expected = HEADER_BYTES + len(text.train.ids) * dtype.itemsize
    if not check_file(file, make_header(inputs, text)) or file.stat().st_size != expected:
        raise ConfigError(f"{file} is missing or incomplete; start the run without --resume to make it")
    records = np.memmap(file, dtype=dtype, mode="r", offset=HEADER_BYTES, shape=(len(text.train.ids),))
    if records["words"].min() < 0 or records["words"].max() >= len(text.vocabulary):
        raise ConfigError(f"{file} is damaged; remove it to make it again")
    return Lessons(records, inputs.teacher.teacher_weight)
