"""Divide the text of a domain: most of it to learn from, the rest held out, chosen by seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rescorer.errors import MAX_QUOTED_CHARS, ConfigError, shorten
from rescorer.text import Normaliser
from rescorer_training.data.corpus import read_lines
from rescorer_training.progress import track

MIN_TRAINING_SENTENCES = 100
MIN_HELD_OUT_SENTENCES = 20
HELD_OUT_SHARE = 0.1
MAX_HELD_OUT_SENTENCES = 10_000
"""More would make the figures hardly more exact, and cost time and training text."""
MAX_BLOCK_SENTENCES = 50
"""Sentences that follow each other stay together, so that few dialogues or documents are on both sides."""
MAX_UNKNOWN_SHARE = 0.5


@dataclass(frozen=True)
class DomainText:
    """The parts of a text, each written to a file with one sentence per line."""

    name: str
    train: Path
    fitting: Path
    """Held-out half that chooses interpolation weights and when training stops."""
    judging: Path
    """Held-out half that chooses nothing: figures are measured on it."""
    held_out_name: str
    """File that the held-out halves are from."""
    n_sentences: int
    """Number of sentences to learn from."""
    counts: Counter[str]
    """Occurrences of each canonical word in the text to learn from."""

    @property
    def n_words(self) -> int:
        return self.counts.total()

    def count_unknown(self, known: Collection[str]) -> tuple[int, int]:
        """Number of distinct words of the training text that are not in ``known``, and of their uses."""
        unknown = [count for word, count in self.counts.items() if word not in known]
        return len(unknown), sum(unknown)


def divide_text(
    text: Path, validation: Path | None, normaliser: Normaliser, seed: int, folder: Path
) -> DomainText:
    """Read a text, hold out blocks of consecutive sentences, and write the parts into ``folder``.

    Args:
        validation: held-out text; None holds out a tenth of ``text``.

    Raises:
        ConfigError: there are too few sentences, or both texts are the same file.
        FormatError: a file cannot be read.
    """
    if validation is not None and validation.exists() and text.exists() and validation.samefile(text):
        raise ConfigError(
            f"--valid {validation} is the text to learn from; give another text, or leave it out"
        )
    lines, words = _read_sentences(text, normaliser)
    if validation is None:
        purpose = f"{MIN_TRAINING_SENTENCES} to learn from and {MIN_HELD_OUT_SENTENCES} held out"
        _check_count(text, len(lines), MIN_TRAINING_SENTENCES + MIN_HELD_OUT_SENTENCES, purpose)
        fitting, judging = choose_held_out(len(lines), seed)
        held_out = lines
    else:
        held_out, _ = _read_sentences(validation, normaliser)
        _check_count(text, len(lines), MIN_TRAINING_SENTENCES, "to learn from")
        _check_count(validation, len(held_out), MIN_HELD_OUT_SENTENCES, "held out")
        fitting, judging = divide_blocks(cut_into_blocks(len(held_out)))
    excluded = {*fitting, *judging} if validation is None else set()
    train = [i for i in range(len(lines)) if i not in excluded]
    files = [folder / f"{part}.txt" for part in ("train", "fitting", "judging")]
    _write_lines(files[0], [lines[i] for i in train])
    _write_lines(files[1], [held_out[i] for i in fitting])
    _write_lines(files[2], [held_out[i] for i in judging])
    counts = Counter(word for i in train for word in words[i])
    source = text if validation is None else validation
    return DomainText(text.name, files[0], files[1], files[2], source.name, len(train), counts)


def _write_lines(path: Path, lines: Sequence[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def choose_held_out(n_sentences: int, seed: int) -> tuple[list[int], list[int]]:
    """Choose blocks of sentences to hold out, for fitting and for judging; returns the sentences' numbers."""
    wanted = min(max(HELD_OUT_SHARE * n_sentences, MIN_HELD_OUT_SENTENCES), MAX_HELD_OUT_SENTENCES)
    blocks = cut_into_blocks(n_sentences)
    n_blocks = max(2, round(wanted / len(blocks[0])))
    chosen = np.random.default_rng(seed).choice(len(blocks), n_blocks, replace=False)
    return divide_blocks([blocks[number] for number in sorted(chosen.tolist())])


def cut_into_blocks(n_sentences: int) -> list[range]:
    """Cut a text into at least 20 blocks of at most ``MAX_BLOCK_SENTENCES`` consecutive sentences."""
    size = max(1, min(MAX_BLOCK_SENTENCES, n_sentences // 20))
    return [range(begin, min(begin + size, n_sentences)) for begin in range(0, n_sentences, size)]


def divide_blocks(blocks: Sequence[range]) -> tuple[list[int], list[int]]:
    """Return the sentences of every other block, and those of the blocks between them."""
    return [i for block in blocks[0::2] for i in block], [i for block in blocks[1::2] for i in block]


def _check_count(path: Path, n_sentences: int, least: int, purpose: str) -> None:
    if n_sentences < least:
        found = f"{n_sentences:,} sentence{'s' * (n_sentences != 1)} with words"
        raise ConfigError(f"{path} has {found}; expected at least {least} ({purpose})")


def check_known(text: DomainText, known: Collection[str], bundle: str) -> None:
    """Raise ConfigError if most of a text is unknown to a bundle, as if it were in another language."""
    n_unknown, uses = text.count_unknown(known)
    if uses > MAX_UNKNOWN_SHARE * text.n_words:
        examples = ", ".join(repr(word) for word, _ in text.counts.most_common() if word not in known)
        share = 100 * uses / text.n_words
        raise ConfigError(
            f"{text.name}: {share:.0f} % of its words are unknown to {bundle} ({n_unknown:,} distinct ones, "
            f"such as {shorten(examples, MAX_QUOTED_CHARS)}); expected at most "
            f"{100 * MAX_UNKNOWN_SHARE:.0f} %: check language and spelling, and whether lines have ids or "
            "markup; a bundle of another language has to be trained"
        )


def _read_sentences(path: Path, normaliser: Normaliser) -> tuple[list[str], list[Sequence[str]]]:
    """Return the lines that have canonical words, and these words."""
    lines: list[str] = []
    sentences: list[Sequence[str]] = []
    with track(f"reading {path.name}", "lines") as task:
        for line in read_lines(path):
            task.advance()
            if words := normaliser.normalise(line):
                lines.append(line)
                sentences.append(words)
    return lines, sentences
