"""Detection is as wide as the formats: what a writer wrote is still detected, and read as before, when it has
been decorated with what the format allows."""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rescorer.formats.registry import FORMATS, choose, detect
from rescorer.types import Hypothesis, NBestList
from tests.support.format_samples import CHOICES_WITH_OPTIONS

OWN_TESTS = {"mikolov", "kaldi-text", "lines", "paragraphs", "trn", "ctm", "stm"}
"""Formats without detection, and those of NIST, whose tests have more to decorate."""
NAMES = [name for name in FORMATS if name not in OWN_TESTS]
LINES = {"jsonl", "manifest", "request", "alternatives"}
"""Formats with one JSON document per line."""
COLUMNS = {
    "srilm",
    "nbestlist1",
    "nbestlist2",
    "srinterp",
    "kaldi",
    "espnet2",
    "cued",
    "htk",
    "kaldi-lattice",
}
"""Formats with columns, between which any white space may be."""
BLANK_LINES = {*LINES, "srilm", "nbestlist1", "nbestlist2", "srinterp", "kaldi", "espnet2", "cued", "htk"}
DOCUMENTS = {"mlm", "espnet1", "alternatives", "whisper", "request"}
"""Formats with one JSON document per file, with any white space."""
EXTRA_KEYS: Mapping[str, Callable[[tuple[object, ...]], bool]] = {
    "jsonl": lambda path: path[-1:] != ("scores",),
    "manifest": lambda path: True,
    "mlm": lambda path: len(path) > 0,
    "espnet1": lambda path: path != ("utts",),
    "alternatives": lambda path: True,
    "whisper": lambda path: True,
    "request": lambda path: path == (),
}
"""Whether an object at a path in a document of a format may have other keys than those that are read."""
OTHER_FILES = {
    "kaldi": {"ali": b"\x00\x01", "phwt": b"u1-1 a\n"},
    "htk": {"README": b"These are lattices.\n"},
}
"""Files that may lie in the folder of a format, and that its reader leaves alone."""
WORDS = ["the", "sea", "was", "calm", "ünï", "don't", "[NOISE]", "<unk>", "42", "海", "a.", "(so)"]
FIRST_TEXTS = st.sampled_from(["the sea", "", "42"])
EXTRA = st.sampled_from([1, "text", None, [1, 2], {"b": [3.5]}, "x" * 3000, [[0.25] * 200]])


@st.composite
def lists(draw: st.DrawFn, name: str) -> list[NBestList]:
    """Lists that a format can hold, with words at the start of the first text."""
    format_ = FORMATS[name]
    streams = sorted(format_.streams) or ["acoustic", "first_pass"]
    numbers = st.integers(-200, 100).map(lambda number: number / 4)
    found = []
    for index in range(draw(st.integers(1, 3))):
        texts = [
            draw(FIRST_TEXTS) if index and name != "nbestlist2" else "the sea",
            *draw(st.lists(st.lists(st.sampled_from(WORDS), min_size=1).map(" ".join), max_size=2)),
        ]
        texts = [texts[0], texts[-1] + " x"] if name == "nemo" else list(dict.fromkeys(texts))
        times = [
            [
                {"word": word, "start_s": place / 2, "duration_s": 0.25}
                for place, word in enumerate(text.split())
            ]
            for text in texts
        ]
        scores = {stream: tuple(draw(numbers) for _ in texts) for stream in streams}
        hypotheses = [Hypothesis(text, {"words": words}) for text, words in zip(texts, times, strict=True)]
        found.insert(0, NBestList(f"u{9 - index}", tuple(hypotheses), scores))
    return found


def reorder(draw: st.DrawFn, name: str, value: Any, path: tuple[object, ...] = ()) -> Any:
    """Change the order of keys in a document, and add some that nothing reads."""
    if isinstance(value, list):
        return [reorder(draw, name, item, (*path, "[]")) for item in value]
    if not isinstance(value, dict):
        return value
    items = [(key, reorder(draw, name, item, (*path, key))) for key, item in value.items()]
    if name not in ("mlm", "espnet1") or path:  # there, the order of keys is that of lists
        items = draw(st.permutations(items)) if path != ("utts",) else items
    if EXTRA_KEYS[name](path) and draw(st.booleans()):
        items.insert(draw(st.integers(0, len(items))), ("other", draw(EXTRA)))
    return dict(items)


def decorate_json(draw: st.DrawFn, name: str, text: str) -> str:
    documents = (
        [json.loads(line) for line in text.splitlines()] if name == "jsonl" or name == "manifest" else None
    )
    if documents is not None:
        return "".join(
            json.dumps(reorder(draw, name, one), ensure_ascii=draw(st.booleans())) + "\n" for one in documents
        )
    try:
        documents = [json.loads(text)]
    except ValueError:
        documents = [json.loads(line) for line in text.splitlines()]
    indent = draw(st.sampled_from([None, 0, 1, 4])) if len(documents) == 1 else None
    return "".join(json.dumps(reorder(draw, name, one), indent=indent) + "\n" for one in documents)


def decorate(draw: st.DrawFn, name: str, content: bytes) -> bytes:
    """Decorate a file with what its format and all text formats allow."""
    text = content.decode()
    if name in EXTRA_KEYS and draw(st.booleans()):
        text = decorate_json(draw, name, text)
    if name in BLANK_LINES:
        blank = draw(st.sampled_from(["\n", " \n", "\t\n"]))
        begin, end = draw(st.integers(0, 2)), draw(st.integers(0, 2))
        text = (blank * begin if name not in ("nbestlist1", "nbestlist2") else "") + text + blank * end
    if name in COLUMNS:
        text = text.replace(" ", draw(st.sampled_from([" ", "  ", "\t", " \t"])))
    if name == "htk":
        header, nodes = text[: text.index("I=")], text[text.index("I=") :]
        fields = draw(st.permutations(["UTTERANCE=other", *header.split()]))
        text = draw(st.sampled_from([" ", "\n"])).join(fields) + "\n" + nodes
        text = "# made by hand\n" * draw(st.integers(0, 3)) + text
    if draw(st.booleans()):
        text = text.replace("\n", "\r\n")
    if draw(st.booleans()):
        text = "\ufeff" + text
    content = text.encode()
    return gzip.compress(content) if draw(st.booleans()) else content


def parts(nbest: object) -> object:
    """What decorations leave alone: errors and fields differ."""
    assert isinstance(nbest, NBestList), nbest
    return nbest.id, [hypothesis.text for hypothesis in nbest.hypotheses], nbest.streams


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=12)
@given(data=st.data())
def test_detects_and_reads_what_a_format_allows(name, data):
    choice = choose(CHOICES_WITH_OPTIONS.get(name, name))
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "plain"
        with choice.writer(plain) as write:
            for nbest in data.draw(lists(name)):
                write(nbest)
        expected = [parts(nbest) for nbest in choice.read(plain)]
        decorated = Path(folder) / "decorated"
        if name == "parquet":
            decorated.write_bytes(plain.read_bytes())
        elif plain.is_file():
            decorated.write_bytes(decorate(data.draw, name, plain.read_bytes()))
        else:
            for path in sorted(plain.rglob("*")):
                target = decorated / path.relative_to(plain)
                if path.is_file():
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(decorate(data.draw, name, path.read_bytes()))
            for other, content in OTHER_FILES.get(name, {}).items():
                if data.draw(st.booleans()):
                    (decorated / other).write_bytes(content)
        assert detect(decorated)[0] == name
        assert [parts(nbest) for nbest in choice.read(decorated)] == expected
