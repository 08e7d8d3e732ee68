"""Lists written as HTK and Kaldi lattices: what is read back, what cannot be held, and how it is said."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rescorer.errors import InvalidList
from rescorer.formats.lattices import htk, kaldi_lattice, slf
from rescorer.formats.lattices.slf import escape_value
from rescorer.formats.registry import choose
from rescorer.types import Hypothesis, NBestList
from tests.support.list_strategies import NUMBERS, nbest_lists, several

SILENT = slf.SILENT | kaldi_lattice.SILENT
STREAMS = {"htk": ["acoustic", "lm", "pronunciation"], "kaldi-lattice": ["graph", "acoustic"]}
CENTISECONDS = st.integers(0, 500).map(lambda n: n / 100)


def distinct(nbest: NBestList) -> NBestList:
    """The list without hypotheses whose words another has, or that are no words in a lattice."""
    assume(not any(SILENT & {*each.text.split()} for each in nbest.hypotheses))
    first = {hypothesis.text: index for index, hypothesis in reversed([*enumerate(nbest.hypotheses)])}
    kept = sorted(first.values())
    return replace(
        nbest,
        hypotheses=tuple(nbest.hypotheses[index] for index in kept),
        streams={name: tuple(values[index] for index in kept) for name, values in nbest.streams.items()},
    )


def written(choice: str, lists: list[NBestList], read: str = "") -> list:
    """What is read of the lists once they are written."""
    with tempfile.TemporaryDirectory() as folder:
        with choose(choice).writer(Path(folder) / "out") as put:
            for nbest in lists:
                put(nbest)
        return sorted(choose(read or choice).read(Path(folder) / "out"), key=lambda each: each.id)


def by_text(nbest: NBestList) -> dict[str, tuple]:
    scores = zip(*nbest.streams.values(), strict=True) if nbest.streams else [()] * len(nbest.hypotheses)
    pairs = zip(nbest.hypotheses, scores, strict=True)
    return {each.text: (dict(each.fields), dict(zip(nbest.streams, of, strict=True))) for each, of in pairs}


@st.composite
def timed_lists(draw: st.DrawFn) -> NBestList:
    """Lists some of whose hypotheses have times, which may overlap."""
    nbest = distinct(draw(nbest_lists(STREAMS["htk"][: draw(st.integers(0, 3))])))

    def timed(hypothesis: Hypothesis) -> Hypothesis:
        words = hypothesis.text.split()
        times = [
            {"word": word, "start_s": draw(CENTISECONDS), "duration_s": draw(CENTISECONDS)} for word in words
        ]
        return Hypothesis(hypothesis.text, {"words": times} if words and draw(st.booleans()) else {})

    name = draw(st.just({}) | st.text("aü\"'\\ \n=", max_size=4).map(lambda name: {"utterance": name}))
    return replace(nbest, hypotheses=tuple(map(timed, nbest.hypotheses)), fields=name)


@given(several(timed_lists()))
def test_htk_lattices_hold_words_times_and_scores(lists):
    found = written("htk", lists)
    assert [each.id for each in found] == [each.id for each in lists]
    for one, other in zip(found, lists, strict=True):
        assert by_text(one) == by_text(other)
        assert (one.fields, list(one.streams)) == (other.fields, list(other.streams))


@given(several(nbest_lists(STREAMS["kaldi-lattice"]).map(distinct)))
def test_kaldi_lattices_hold_words_and_scores(lists):
    found = written("kaldi-lattice", lists)
    assert [each.id for each in found] == [each.id for each in lists]
    assert [by_text(each) for each in found] == [by_text(each) for each in lists]


@pytest.mark.parametrize("name", STREAMS)
@given(data=st.data())
def test_the_order_is_kept_where_nothing_says_that_it_is_lost(name, data):
    numbers = st.integers(-3, 3).map(float) | NUMBERS
    nbest = data.draw(nbest_lists(STREAMS[name], numbers=numbers))
    scales = ""
    if name == "htk":
        scales = f":lmscale={data.draw(st.integers(0, 3))},wdpenalty={data.draw(st.integers(-2, 2))}"
    lost = choose(f"{name}{scales}").find_losses(nbest)
    assume(not any(SILENT & {*each.text.split()} for each in nbest.hypotheses))
    (found,) = written(f"{name}{scales}", [nbest], read=name)
    texts = [each.text for each in nbest.hypotheses]
    assert ("hypotheses with the same words as another" in lost) == (len(set(texts)) < len(texts))
    if not lost:
        assert found == nbest


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters=" \t\n\r\f\v\0"), min_size=1))
def test_any_word_can_be_written(word):
    assume(word not in SILENT)
    nbest = NBestList("u1", (Hypothesis(word),), {"graph": (0.0,), "acoustic": (-1.0,)})
    for name in STREAMS:
        (found,) = written(name, [nbest])
        assert found.hypotheses == nbest.hypotheses


@pytest.mark.parametrize(
    ("value", "shown"),
    [("it's", "it's"), ("'em", r"\047em"), ('"ü', r"\042\303\274"), ("a\\1", r"a\1341"), ("über", "über")],
)
def test_what_could_mean_something_else_is_octal(value, shown):
    assert escape_value(value) == shown


def test_prefixes_are_shared(tmp_path):
    times = {"words": [{"word": "a", "start_s": 0.5, "duration_s": 0.25}]}
    texts = (Hypothesis("a b"), Hypothesis("a c"), Hypothesis("a", times))
    nbest = NBestList("u1", texts, {"acoustic": (-1.0, -2.0, -3.0), "x": (0.0, 0.0, 0.0)})
    with choose("htk:lmscale=9.5").writer(tmp_path) as put:
        put(nbest)
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


def test_words_can_be_numbers_of_a_symbol_table(tmp_path):
    table = tmp_path / "words.txt"
    table.write_text("<eps> 0\na 1\nb 2\n")
    nbest = NBestList("u1", (Hypothesis("a b"),), {"graph": (-1.0,), "acoustic": (-2.0,)})
    with choose(f"kaldi-lattice:words={table}").writer(tmp_path / "lat") as put:
        put(nbest)
        with pytest.raises(InvalidList, match="list 'u2', text: 'c' is not in the symbol table"):
            put(replace(nbest, id="u2", hypotheses=(Hypothesis("a c"),)))
    lines = ["u1", "0 1 1 0.0,0.0,", "1 2 2 0.0,0.0,", "2 3 0 1.0,2.0,", "3", "", ""]
    assert (tmp_path / "lat").read_text() == "\n".join(lines)
    assert list(choose(f"kaldi-lattice:words={table}").read(tmp_path / "lat")) == [nbest]


WORDS = [{"word": "b", "start_s": 0, "duration_s": 1}]


@pytest.mark.parametrize(
    ("module", "change", "said"),
    [
        (htk, {"id": "a/b"}, "id: cannot be a file name"),
        (
            htk,
            {"hypotheses": (Hypothesis("!NULL"),)},
            "hypothesis 0, text: '!NULL' is no word in this format",
        ),
        (htk, {"hypotheses": (Hypothesis("a", {"words": WORDS}),)}, "words: are not the words of the text"),
        (htk, {"hypotheses": (Hypothesis("a", {"words": ["a"]}),)}, "words[0].word: expected a word"),
        (htk, {"fields": {"utterance": 3}}, "utterance: expected a string"),
        (kaldi_lattice, {"id": "a b"}, "id: expected a non-empty id without white space"),
        (kaldi_lattice, {"hypotheses": (Hypothesis("<eps>"),)}, "'<eps>' is no word in this format"),
        (kaldi_lattice, {"hypotheses": (Hypothesis("a\nb"),)}, "contains a line break"),
        (kaldi_lattice, {"streams": {"acoustic": (1.0,)}}, "graph: the format needs this stream"),
        (kaldi_lattice, {}, "is there a second time"),
        (htk, {}, "exists already: either the id is a duplicate"),
    ],
)
def test_what_a_lattice_cannot_hold_is_refused_whole(tmp_path, module, change, said):
    good = NBestList("u1", (Hypothesis("a"),), {"graph": (1.0,), "acoustic": (2.0,)})
    with module.writer(tmp_path / "out") as put:
        put(good)
        with pytest.raises(InvalidList) as caught:
            put(replace(good, **({"id": "u2"} if change else {}) | change))
    assert said in str(caught.value)
    assert len(list(module.read_lists(tmp_path / "out"))) == 1


@pytest.mark.data
def test_real_lists_come_back_from_both(data_dir):
    for nbest in islice(choose("htk:depth=5").read(data_dir / "nbest" / "read-speech" / "lattices"), 3):
        (found,) = written("htk", [nbest])
        assert by_text(found) == by_text(nbest)
        (found,) = written("kaldi-lattice:missing=0", [nbest], read="kaldi-lattice")
        assert found.streams["acoustic"] == nbest.streams["acoustic"]
