"""Lists written as HTK and Kaldi lattices: reading back, losses, and lists that cannot be written."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rescorer.errors import InvalidList
from rescorer.formats import kaldi, lattices
from rescorer.formats.lattices import escape_value
from rescorer.formats.registry import FORMATS, choose
from rescorer.types import Hypothesis, NBestList
from tests.support.list_strategies import NUMBERS, nbest_lists, several

SILENT = lattices.SILENT | kaldi.SILENT
STREAMS = {"htk": ["acoustic", "lm", "pronunciation"], "kaldi-lattice": ["graph", "acoustic"]}
CENTISECONDS = st.integers(0, 500).map(lambda n: n / 100)


def drop_duplicates(nbest: NBestList) -> NBestList:
    """Drop hypotheses with the same words as an earlier one; discard lists with silent words."""
    assume(not any(SILENT & {*hypothesis.text.split()} for hypothesis in nbest.hypotheses))
    first = {hypothesis.text: index for index, hypothesis in reversed([*enumerate(nbest.hypotheses)])}
    kept = sorted(first.values())
    return replace(
        nbest,
        hypotheses=tuple(nbest.hypotheses[index] for index in kept),
        streams={name: tuple(values[index] for index in kept) for name, values in nbest.streams.items()},
    )


def write_and_read(choice: str, lists: list[NBestList], read: str = "") -> list:
    """Write lists, read them back and sort them by id."""
    with tempfile.TemporaryDirectory() as folder:
        with choose(choice).writer(Path(folder) / "out") as write:
            for nbest in lists:
                write(nbest)
        return sorted(choose(read or choice).read(Path(folder) / "out"), key=lambda nbest: nbest.id)


def index_by_text(nbest: NBestList) -> dict[str, tuple]:
    scores = zip(*nbest.streams.values(), strict=True) if nbest.streams else [()] * len(nbest.hypotheses)
    pairs = zip(nbest.hypotheses, scores, strict=True)
    return {
        hypothesis.text: (dict(hypothesis.fields), dict(zip(nbest.streams, values, strict=True)))
        for hypothesis, values in pairs
    }


@st.composite
def timed_lists(draw: st.DrawFn) -> NBestList:
    """Lists in which some hypotheses have word times, which may overlap."""
    nbest = drop_duplicates(draw(nbest_lists(STREAMS["htk"][: draw(st.integers(0, 3))])))

    def add_times(hypothesis: Hypothesis) -> Hypothesis:
        words = hypothesis.text.split()
        times = [
            {"word": word, "start_s": draw(CENTISECONDS), "duration_s": draw(CENTISECONDS)} for word in words
        ]
        return Hypothesis(hypothesis.text, {"words": times} if words and draw(st.booleans()) else {})

    name = draw(st.just({}) | st.text("aü\"'\\ \n=", max_size=4).map(lambda name: {"utterance": name}))
    return replace(nbest, hypotheses=tuple(map(add_times, nbest.hypotheses)), fields=name)


@given(several(timed_lists()))
def test_htk_lattices_keep_words_times_and_scores(lists):
    found = write_and_read("htk", lists)
    assert [nbest.id for nbest in found] == [nbest.id for nbest in lists]
    for read_list, nbest in zip(found, lists, strict=True):
        assert index_by_text(read_list) == index_by_text(nbest)
        assert (read_list.fields, list(read_list.streams)) == (nbest.fields, list(nbest.streams))


@given(several(nbest_lists(STREAMS["kaldi-lattice"]).map(drop_duplicates)))
def test_kaldi_lattices_keep_words_and_scores(lists):
    found = write_and_read("kaldi-lattice", lists)
    assert [nbest.id for nbest in found] == [nbest.id for nbest in lists]
    assert [index_by_text(nbest) for nbest in found] == [index_by_text(nbest) for nbest in lists]


def test_totals_that_readers_round_to_the_same_value_are_a_loss_of_order():
    streams = {"acoustic": (0.0, 0.0), "lm": (-1.0, 0.0), "pronunciation": (1e-227, 0.0)}
    nbest = NBestList("u", (Hypothesis("a"), Hypothesis("")), streams)
    (loss,) = choose("htk:lmscale=1,wdpenalty=1").find_losses(nbest)
    assert loss.startswith("order of hypotheses")


@pytest.mark.parametrize("name", STREAMS)
@given(data=st.data())
def test_lists_without_reported_losses_are_read_back_unchanged(name, data):
    numbers = st.integers(-3, 3).map(float) | NUMBERS
    nbest = data.draw(nbest_lists(STREAMS[name], numbers=numbers))
    scales = ""
    if name == "htk":
        scales = f":lmscale={data.draw(st.integers(0, 3))},wdpenalty={data.draw(st.integers(-2, 2))}"
    losses = choose(f"{name}{scales}").find_losses(nbest)
    assume(not any(SILENT & {*hypothesis.text.split()} for hypothesis in nbest.hypotheses))
    (found,) = write_and_read(f"{name}{scales}", [nbest], read=name)
    texts = [hypothesis.text for hypothesis in nbest.hypotheses]
    assert ("hypotheses with the same words as another" in losses) == (len(set(texts)) < len(texts))
    if not losses:
        assert found == nbest


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters=" \t\n\r\f\v\0"), min_size=1))
def test_writes_any_word(word):
    assume(word not in SILENT)
    nbest = NBestList("u1", (Hypothesis(word),), {"graph": (0.0,), "acoustic": (-1.0,)})
    for name in STREAMS:
        (found,) = write_and_read(name, [nbest])
        assert found.hypotheses == nbest.hypotheses


@pytest.mark.parametrize(
    ("value", "escaped"),
    [("it's", "it's"), ("'em", r"\047em"), ('"ü', r"\042\303\274"), ("a\\1", r"a\1341"), ("über", "über")],
)
def test_escapes_special_characters_in_octal(value, escaped):
    assert escape_value(value) == escaped


def test_hypotheses_share_prefixes(tmp_path):
    times = {"words": [{"word": "a", "start_s": 0.5, "duration_s": 0.25}]}
    texts = (Hypothesis("a b"), Hypothesis("a c"), Hypothesis("a", times))
    nbest = NBestList("u1", texts, {"acoustic": (-1.0, -2.0, -3.0), "x": (0.0, 0.0, 0.0)})
    with choose("htk:lmscale=9.5").writer(tmp_path) as write:
        write(nbest)
    assert (tmp_path / "u1.slf").read_text().splitlines() == [
        "VERSION=1.0",
        "base=2.718281828459045 lmscale=9.5",
        "start=0 end=6",
        "N=7 L=8",
        *("I=0 t=0.0", "I=1", "I=2", "I=3", "I=4 t=0.5", "I=5 t=0.75", "I=6 t=0.75"),
        *("J=0 S=0 E=1 W=a", "J=1 S=1 E=2 W=b", "J=2 S=1 E=3 W=c", "J=3 S=0 E=4 W=!NULL"),
        *("J=4 S=4 E=5 W=a", "J=5 S=2 E=6 W=!NULL a=-1.0"),
        *("J=6 S=3 E=6 W=!NULL a=-2.0", "J=7 S=5 E=6 W=!NULL a=-3.0"),
    ]
    assert choose("htk").find_losses(nbest) == {"stream x"}


def test_writes_words_as_numbers_of_a_symbol_table(tmp_path):
    table = tmp_path / "words.txt"
    table.write_text("<eps> 0\na 1\nb 2\n")
    nbest = NBestList("u1", (Hypothesis("a b"),), {"graph": (-1.0,), "acoustic": (-2.0,)})
    with choose(f"kaldi-lattice:words={table}").writer(tmp_path / "lat") as write:
        write(nbest)
        with pytest.raises(InvalidList, match="list 'u2', text: 'c' is not in the symbol table"):
            write(replace(nbest, id="u2", hypotheses=(Hypothesis("a c"),)))
    lines = ["u1", "0 1 1 0.0,0.0,", "1 2 2 0.0,0.0,", "2 3 0 1.0,2.0,", "3", "", ""]
    assert (tmp_path / "lat").read_text() == "\n".join(lines)
    assert list(choose(f"kaldi-lattice:words={table}").read(tmp_path / "lat")) == [nbest]


WORDS = [{"word": "b", "start_s": 0, "duration_s": 1}]


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("htk", {"id": "a/b"}, "id: cannot be a file name"),
        (
            "htk",
            {"hypotheses": (Hypothesis("!NULL"),)},
            "hypothesis 0, text: '!NULL' is not a word in this format",
        ),
        (
            "htk",
            {"hypotheses": (Hypothesis("a", {"words": WORDS}),)},
            "words: differ from the words of the text",
        ),
        ("htk", {"hypotheses": (Hypothesis("a", {"words": ["a"]}),)}, "words[0].word: expected a word"),
        ("htk", {"fields": {"utterance": 3}}, "utterance: expected a string"),
        ("kaldi-lattice", {"id": "a b"}, "id: expected a non-empty id without white space"),
        ("kaldi-lattice", {"hypotheses": (Hypothesis("<eps>"),)}, "'<eps>' is not a word in this format"),
        ("kaldi-lattice", {"hypotheses": (Hypothesis("a\nb"),)}, "contains a line break"),
        ("kaldi-lattice", {"streams": {"acoustic": (1.0,)}}, "graph: the format needs this stream"),
        ("kaldi-lattice", {}, "already written"),
        ("htk", {}, "exists already: either the id is a duplicate"),
    ],
)
def test_rejects_lists_that_a_lattice_cannot_hold(tmp_path, name, change, message):
    valid = NBestList("u1", (Hypothesis("a"),), {"graph": (1.0,), "acoustic": (2.0,)})
    with FORMATS[name].writer(tmp_path / "out") as write:
        write(valid)
        with pytest.raises(InvalidList) as caught:
            write(replace(valid, **({"id": "u2"} if change else {}) | change))
    assert message in str(caught.value)
    assert len(list(FORMATS[name].read(tmp_path / "out"))) == 1


@pytest.mark.data
def test_published_lists_are_read_back_unchanged(data_dir):
    for nbest in islice(choose("htk:depth=5").read(data_dir / "nbest" / "read-speech" / "lattices"), 3):
        (found,) = write_and_read("htk", [nbest])
        assert index_by_text(found) == index_by_text(nbest)
        (found,) = write_and_read("kaldi-lattice:missing=0", [nbest], read="kaldi-lattice")
        assert found.streams["acoustic"] == nbest.streams["acoustic"]
