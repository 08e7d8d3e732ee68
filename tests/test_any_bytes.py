"""Whatever bytes come, every format's reader answers with lists and faults of ours, and nothing else."""

from __future__ import annotations

import gzip
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_registry import FILES, FOLDERS, TOLD

from rescorer.errors import InputError, RescorerError
from rescorer.formats.registry import FORMATS, choose, detect
from rescorer.types import NBestList

PLACES = {
    "kaldi": ["words_text", "acwt"],
    "espnet2": ["1best_recog/text", "1best_recog/score", "2best_recog/text"],
    "htk": ["u1.slf"],
}
"""The files of formats that are folders, or that look at names."""
SEEDS = {name: text.encode() for name, text in FILES.items()} | {
    name: "".join(files.values()).encode() for name, files in FOLDERS.items() if name in ("kaldi", "espnet2")
}


PIECES = (
    *(b"", b"\0", b"\xff", b"\xef\xbb\xbf", b"\n", b"\r", b"\t", b" ", b'"', b"{", b"[", b"-", b"=", b"_"),
    *(b"nan", b"inf", b"1e999", b"tensor(-12.9)", b"null", b"9" * 30, b"9" * 5000),
)


@st.composite
def mutations(draw: st.DrawFn, seed: bytes) -> bytes:
    """A good file with some of its bytes replaced, taken out or doubled, or all of it compressed and cut."""
    data = bytearray(seed * draw(st.integers(1, 3)))
    for _ in range(draw(st.integers(0, 6))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 8)))
        twice = st.just(bytes(data[start:end]) * 2)
        data[start:end] = draw(st.sampled_from(PIECES) | twice | st.binary(max_size=4))
    if draw(st.booleans()):
        return gzip.compress(bytes(data))[: draw(st.none() | st.integers(0, 60))]
    return bytes(data)


def read_all(name: str, folder: Path, parts: list[bytes]) -> None:
    for place, data in zip(PLACES.get(name, ["u1"]), parts, strict=False):
        (folder / place).parent.mkdir(exist_ok=True)
        (folder / place).write_bytes(data)
    try:
        outcomes = list(choose(TOLD.get(name, name)).read(folder if name in PLACES else folder / "u1"))
    except RescorerError:
        outcomes = []
    for each in outcomes:
        assert isinstance(each, NBestList | InputError)
        if isinstance(each, NBestList):
            assert all(len(values) == len(each.hypotheses) > 0 for values in each.streams.values())
            assert each.id


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "mikolov"])
@settings(max_examples=60)
@given(data=st.data())
def test_a_damaged_file_is_read_or_refused(name, data):
    parts = [data.draw(mutations(SEEDS[name]) | st.binary(max_size=40)) for _ in PLACES.get(name, ["u1"])]
    with tempfile.TemporaryDirectory() as folder:
        read_all(name, Path(folder), parts)


@given(st.binary(max_size=200) | st.sampled_from(sorted(SEEDS)).flatmap(lambda name: mutations(SEEDS[name])))
@example(b"[" * 100_000)
@example(b"{" + b'"a":{' * 50_000)
def test_any_file_is_told_or_refused(data):
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "u1").write_bytes(data)
        with suppress(InputError):
            assert detect(Path(folder) / "u1")[0] in FORMATS
