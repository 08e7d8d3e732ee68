"""ARPA files as other toolkits write them load to the same numbers, with the reader of either package."""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from rescorer.models.arpa import ArpaModel, read_arpa
from rescorer_training.cli import app
from rescorer_training.ngram.backoff_model import read_arpa_arrays
from tests.support.random_ngrams import format_arpa, random_orders
from tests.support.tiny_models import ARPA

COMPRESSIONS: tuple[Callable[[bytes], bytes], ...] = (bytes, gzip.compress, bz2.compress, lzma.compress)
BEFORE = (
    "Copyright: nobody",
    "",
    "Beginning of data mark: \\data\\",
    "ngram 1=nr   # number of 1-grams",
    "\\1-grams:",
    "p_1\twd_1\tbo_wt_1",
    "end of data mark: \\end\\",
    "\\data\\ is the mark",
    "\\data\\\nngram 1=nr\n\\1-grams:",
    "\\end\\",
    "x" * 70_000,
)
AFTER = (
    "",
    "\\end\\",
    "\\data\\\nngram 1=1\n\\1-grams:\n-1 other\n\\end\\",
    "C 0.5 the class",
    "\\9-grams:",
    "\0\xff",
)
BLANK = st.sampled_from(["", "", "", "\n", " \n\n", "\t\n"])
SPACE = st.sampled_from(["\t", " ", "  ", " \t "])
TRAILING = st.sampled_from(["", "", " ", "\t "])


@st.composite
def decorated(draw: st.DrawFn, text: str) -> bytes:
    """Write a model with what SRILM's ngram-format(5) permits, and its readers in practice, around it."""
    lines = []
    for line in text.splitlines():
        if heading := re.fullmatch(r"\\(\d)-grams:", line):
            line = draw(st.sampled_from([line, line, f"\\{heading[1]}-gram:", f"\\{heading[1]}-grams"]))
        elif count := re.fullmatch(r"ngram (\d)=(\d+)", line):
            line = f"ngram{draw(SPACE)}{count[1]}{draw(st.sampled_from(['=', ' = ', '=  ']))}{count[2]}"
        elif line and not line.startswith("\\"):
            line = draw(SPACE).join(re.split(r"[\t ]", line))
        lines.append(draw(BLANK) + line + draw(TRAILING))
    before = draw(st.lists(st.sampled_from(BEFORE), max_size=4))
    after = draw(st.lists(st.sampled_from(AFTER), max_size=3))
    whole = "\n".join([*before, *lines, *after]) + draw(st.sampled_from(["", "\n"]))
    mark = draw(st.sampled_from([b"", b"\xef\xbb\xbf"]))
    line_end = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    return draw(st.sampled_from(COMPRESSIONS))(mark + whole.replace("\n", line_end).encode())


def assert_equal(found: ArpaModel, expected: ArpaModel) -> None:
    assert found.words == expected.words
    for one, other in zip(found.orders, expected.orders, strict=True):
        np.testing.assert_array_equal(one.ids, other.ids)
        np.testing.assert_array_equal(one.values, other.values)


def read_for_scoring(path: Path) -> ArpaModel:
    with path.open("rb") as stream:
        return read_arpa(stream)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), seed=st.integers(0, 99), order=st.integers(1, 4), without_zeros=st.booleans())
def test_decorations_do_not_change_a_number(data, seed, order, without_zeros, tmp_path_factory):
    folder = tmp_path_factory.mktemp("decorated")
    text = format_arpa(random_orders(seed, order), without_zeros)
    (folder / "plain").write_text(text, encoding="utf-8")
    (folder / "decorated").write_bytes(data.draw(decorated(text)))
    for read in (read_for_scoring, read_arpa_arrays):
        assert_equal(read(folder / "decorated"), read(folder / "plain"))


def run(*arguments: object) -> str:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False).stdout


@pytest.mark.slow
def test_every_command_reads_a_model_with_text_around_it(tmp_path):
    plain, odd, text = tmp_path / "plain.arpa", tmp_path / "odd.arpa.bz2", tmp_path / "text.txt"
    plain.write_text(ARPA, encoding="utf-8")
    odd.write_bytes(bz2.compress(("\n".join(BEFORE) + "\n" + ARPA + "\nmore").encode()))
    text.write_text("the cat sat on the mat\nthe mat sat\n", encoding="utf-8")
    written = {}
    for model in (plain, odd):
        folder = tmp_path / model.name[0]
        folder.mkdir()
        run("prune", model, "-o", folder / "pruned.arpa", "--keep", 14, "--normaliser", "raw")
        run(
            "interpolate",
            text,
            "--ngram",
            model,
            "--ngram",
            model,
            "--write",
            folder / "mixed.arpa",
            "--normaliser",
            "raw",
        )
        run(
            "bundle",
            folder / "tiny/1",
            "--ngram",
            model,
            "--validation",
            text,
            "--normaliser",
            "raw",
            "--tables",
        )
        written[model] = [run("perplexity", text, "--ngram", model, "--normaliser", "raw", "--json")] + [
            (folder / name).read_bytes() for name in ("pruned.arpa", "mixed.arpa", "tiny/1/ngram/model.ngram")
        ]
    assert written[plain] == written[odd]
