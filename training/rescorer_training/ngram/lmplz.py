"""Owns the calls to KenLM's own tools, where they are on the PATH: lmplz and build_binary.

lmplz sorts on disk, so it estimates from corpora that do not fit in memory; Heafield et al. (2013).
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from rescorer.errors import ConfigError
from rescorer_training.ngram.arpa import open_output
from rescorer_training.ngram.kneser_ney import FALLBACK_DISCOUNTS

STATISTICS = re.compile(r"^\d+ (\d+)(?:/(\d+))? D1=(\S+) D2=(\S+) D3\+=(\S+)$", re.MULTILINE)
"""What lmplz tells about an order: n-grams kept, n-grams counted where cut-offs differ, discounts."""


def tool(name: str) -> str:
    """Where a tool of KenLM is; raises ConfigError where it is not installed."""
    path = shutil.which(name)
    if path is None:
        raise ConfigError(f"{name} is not on the PATH; it is part of KenLM, https://kheafield.com/code/kenlm")
    return path


def estimate(
    sentences: Iterable[Sequence[str]],
    arpa: Path,
    cutoffs: Sequence[int],
    *,
    limit: Sequence[str] | None = None,
    memory: str = "80%",
) -> tuple[list[tuple[int, int, tuple[float, ...]]], int]:
    """Runs lmplz.

    Args:
        arpa: file to write; gzip where its name ends in ``.gz``.
        cutoffs: one an order.
        limit: the only words to predict; None for all.
        memory: as lmplz's ``-S`` says it.

    Returns:
        Each order's numbers of n-grams counted and kept, and its discounts; and the number of sentences.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [tool("lmplz"), "-o", str(len(cutoffs)), "-S", memory, "-T", f"{folder}/"]
        command += ["--discount_fallback", *map(str, FALLBACK_DISCOUNTS)]
        command += ["--prune", *map(str, cutoffs)]
        if limit is not None:
            words = Path(folder) / "vocabulary.txt"
            words.write_text("".join(f"{word}\n" for word in limit), encoding="utf-8")
            command += ["--limit_vocab_file", str(words)]
        said, n_sentences = _pipe(command, sentences, arpa, Path(folder) / "stderr")
    sizes = [
        (int(counted or kept), int(kept), tuple(map(float, discounts)))
        for kept, counted, *discounts in STATISTICS.findall(said)
    ]
    return sizes, n_sentences


def _pipe(
    command: Sequence[str], sentences: Iterable[Sequence[str]], arpa: Path, stderr: Path
) -> tuple[str, int]:
    """Feeds the sentences in and writes what comes out; returns the messages and the number of sentences."""
    n_sentences = 0
    with (
        open(stderr, "wb") as messages,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=messages) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with process.stdin as stdin:
                for words in sentences:
                    stdin.write(f"{' '.join(words)}\n".encode())
                    n_sentences += 1
        except BrokenPipeError:
            pass  # it stopped early; its exit status and messages say why
        with open_output(arpa) as stream:  # lmplz writes nothing before it has read everything
            shutil.copyfileobj(process.stdout, stream)
    said = stderr.read_text(encoding="utf-8", errors="replace")
    _check("lmplz", process.returncode, said)
    return said, n_sentences


def build_binary(arpa: Path, output: Path) -> None:
    """Turns an ARPA file into a KenLM binary, which loads faster."""
    done = subprocess.run([tool("build_binary"), str(arpa), str(output)], capture_output=True, text=True)
    _check("build_binary", done.returncode, done.stderr)


def _check(name: str, status: int, said: str) -> None:
    if status != 0:
        last = said.strip().splitlines()[-1:] or ["no message"]
        raise ConfigError(f"{name} failed with exit status {status}: {last[0]}")
