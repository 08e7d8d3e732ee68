"""Run KenLM's own tools, lmplz and build_binary, if they are on the PATH.

lmplz sorts on disk, so it can estimate models from texts that do not fit in memory (Heafield et al. 2013).
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
from rescorer_training.ngram.smoothing.kneser_ney import FALLBACK_DISCOUNTS

STATISTICS_LINE = re.compile(r"^\d+ (\d+)(?:/(\d+))? D1=(\S+) D2=(\S+) D3\+=(\S+)$", re.MULTILINE)
"""What lmplz prints for each order: n-grams kept, n-grams counted if the number differs, and discounts."""


def find_tool(name: str) -> str:
    """Return the path of one of KenLM's tools.

    Raises:
        ConfigError: the tool is not installed.
    """
    path = shutil.which(name)
    if path is None:
        raise ConfigError(
            f"{name} is not on the PATH; install KenLM, which includes it: https://kheafield.com/code/kenlm"
        )
    return path


def run_lmplz(
    sentences: Iterable[Sequence[str]],
    arpa: Path,
    cutoffs: Sequence[int],
    *,
    vocabulary: Sequence[str] | None = None,
    memory: str = "80%",
) -> tuple[list[tuple[int, int, tuple[float, ...]]], int]:
    """Estimate a model with lmplz.

    Args:
        arpa: file to write; gzip if its name ends in ``.gz``.
        cutoffs: for each order, the maximum raw count of n-grams to prune.
        vocabulary: words to predict; None for all.
        memory: memory for sorting, in the format of lmplz's option ``-S``.

    Returns:
        The number of n-grams counted, the number kept and the discounts, for each order; and the number of
        sentences in the text.

    Raises:
        ConfigError: lmplz is not installed or fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [find_tool("lmplz"), "-o", str(len(cutoffs)), "-S", memory, "-T", f"{folder}/"]
        command += ["--discount_fallback", *map(str, FALLBACK_DISCOUNTS)]
        command += ["--prune", *map(str, cutoffs)]
        if vocabulary is not None:
            words = Path(folder) / "vocabulary.txt"
            words.write_text("".join(f"{word}\n" for word in vocabulary), encoding="utf-8")
            command += ["--limit_vocab_file", str(words)]
        messages, n_sentences = _pipe_sentences(command, sentences, arpa, Path(folder) / "stderr")
    orders = [
        (int(counted or kept), int(kept), tuple(map(float, discounts)))
        for kept, counted, *discounts in STATISTICS_LINE.findall(messages)
    ]
    return orders, n_sentences


def _pipe_sentences(
    command: Sequence[str], sentences: Iterable[Sequence[str]], arpa: Path, stderr: Path
) -> tuple[str, int]:
    """Feed sentences to lmplz and write its output; return its messages and the number of sentences."""
    n_sentences = 0
    with (
        open(stderr, "wb") as error_stream,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=error_stream
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with process.stdin as stdin:
                for words in sentences:
                    stdin.write(f"{' '.join(words)}\n".encode())
                    n_sentences += 1
        except BrokenPipeError:
            pass  # lmplz stopped early; its exit status and messages say why
        with open_output(arpa) as stream:  # lmplz writes nothing before it has read everything
            shutil.copyfileobj(process.stdout, stream)
    messages = stderr.read_text(encoding="utf-8", errors="replace")
    _check_exit_status("lmplz", process.returncode, messages)
    return messages, n_sentences


def build_binary(arpa: Path, output: Path) -> None:
    """Convert an ARPA file to a KenLM binary, which loads faster.

    Raises:
        ConfigError: build_binary is not installed or fails.
    """
    done = subprocess.run([find_tool("build_binary"), str(arpa), str(output)], capture_output=True, text=True)
    _check_exit_status("build_binary", done.returncode, done.stderr)


def _check_exit_status(name: str, status: int, messages: str) -> None:
    if status != 0:
        last = messages.strip().splitlines()[-1:] or ["no message"]
        raise ConfigError(f"{name} failed with exit status {status}: {last[0]}")
