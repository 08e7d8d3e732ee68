"""HTK lattices: golden files, the search against every path, and lattices that are none."""

from __future__ import annotations

import gzip
import io
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nbest_lists import write_truncated_gzip

from rescorer.errors import FormatError, InvalidList, LimitExceeded
from rescorer.formats.htk import Scales, best_paths, header_scales, read_lists
from rescorer.formats.lattice import Lattice, Link
from rescorer.formats.slf import read_lattice
from rescorer.types import NBestList

ON_NODES = r"""# Words on nodes, fillers, a variant, two start nodes
VERSION=1.0
UTTERANCE="speaker 1/u1"
N=7 L=8
I=0 t=0.0 W=!SENT_START
I=1 t=0.0 W=so v=1
I=2 t=0.2 W=pear v=1
I=3 t=0.2 W=pair v=2
I=4 t=0.4 W=!NULL
I=5 t=0.5 W="tree \"s" v=1
I=6 t=0.9 W=!SENT_END
J=0 S=0 E=2 a=-5
J=1 S=0 E=3 a=-6
J=2 S=1 E=2 a=-4
J=3 S=2 E=5 a=-7
J=4 S=2 E=4 a=-3
J=5 S=4 E=5 a=-2
J=6 S=3 E=5 a=-1
J=7 S=5 E=6 a=-1
"""
ON_LINKS = """VERSION=1.1 base=10 lmscale=2.0
wdpenalty=-0.5 start=2 end=0
N=3	L=4
I=2
I=1 t=0.4
I=0 t=0.9
J=0 S=2 E=1 W=a a=-1 l=-0.5 r=-0.1
J=1 S=2 E=1 W=!NULL a=-1
J=2 S=1 E=0 W='em v=1 a=-2 l=-1
J=3 S=1 E=0 W=\\303\\274ber a=-3 l=-0.25
"""
LN_10 = math.log(10)


def lattice_of(text: str) -> Lattice:
    return read_lattice(io.BytesIO(text.encode()))[0]


def only(path, **options) -> NBestList:
    (nbest,) = read_lists(path, **options)
    assert isinstance(nbest, NBestList), nbest
    return nbest


@pytest.mark.parametrize("name", ["u1.slf.gz", "u1.lat", "u1"])
def test_words_on_nodes(tmp_path, name):
    text = ON_NODES.replace("\n", "\r\n")
    (tmp_path / name).write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    nbest = only(tmp_path / name)
    assert nbest.id == "u1"
    assert nbest.fields == {"utterance": "speaker 1/u1"}
    assert [each.text for each in nbest.hypotheses] == ['pair tree "s', 'so pear tree "s', 'pear tree "s']
    assert nbest.streams == {"acoustic": (-8.0, -10.0, -11.0)}


def test_words_on_links_with_base_and_scales_of_the_header(tmp_path):
    (tmp_path / "u1.slf").write_text(ON_LINKS)
    nbest = only(tmp_path / "u1.slf")
    assert [each.text for each in nbest.hypotheses] == ["über", "'em", "a über", "a 'em"]
    assert nbest.streams["acoustic"] == pytest.approx([-4 * LN_10, -3 * LN_10, -4 * LN_10, -3 * LN_10])
    assert nbest.streams["lm"] == pytest.approx([-0.25 * LN_10, -LN_10, -0.75 * LN_10, -1.5 * LN_10])
    assert nbest.streams["pronunciation"] == pytest.approx([0, 0, -0.1 * LN_10, -0.1 * LN_10])


def test_stated_weights_come_before_the_header(tmp_path):
    (tmp_path / "u1.slf").write_text(ON_LINKS)
    nbest = only(tmp_path / "u1.slf", scales=Scales(lm=0.0, word_penalty=10.0), depth=2)
    assert [each.text for each in nbest.hypotheses] == ["a 'em", "a über"]


def test_base_zero_means_probabilities(tmp_path):
    (tmp_path / "u1.slf").write_text(ON_LINKS.replace("base=10", "base=0"))
    (fault,) = read_lists(tmp_path / "u1.slf")
    assert "u1.slf:7: a: '-1'; expected a probability above 0 (base=0)" in str(fault)
    lattice = lattice_of("VERSION=1.0 base=0\nN=2 L=1\nI=0\nI=1\nJ=0 S=0 E=1 W=a a=0.5\n")
    assert best_paths(lattice, header_scales({}, Scales(), ""), 1)[0].scores == (math.log(0.5),)


@st.composite
def lattices(draw: st.DrawFn) -> Lattice:
    """Any circle-free lattice of up to six nodes; the end may be out of reach."""
    n = draw(st.integers(2, 6))
    pairs = [(i, j) for i in range(n) for j in range(i + 1, n)]
    chosen = draw(st.lists(st.sampled_from(pairs), max_size=12))
    score = st.integers(-20, 5).map(float)
    word = st.sampled_from(["", "a", "b", "c"])
    links: list[list[Link]] = [[] for _ in range(n)]
    for source, target in chosen:
        links[source].append(Link(target, draw(word), (draw(score), draw(score))))
    return Lattice(tuple(map(tuple, links)), 0, n - 1, ("acoustic", "lm"))


def every_path(lattice: Lattice, scales: Scales) -> dict[tuple[str, ...], float]:
    """The best total of each word sequence, from all paths one by one: the twin of ``best_paths``."""
    best: dict[tuple[str, ...], float] = {}
    paths = [(lattice.start, (), 0.0)]
    while paths:
        node, words, total = paths.pop()
        if node == lattice.end:
            best[words] = max(total, best.get(words, -math.inf))
        for target, word, (acoustic, lm) in lattice.links[node]:
            more = scales.acoustic * acoustic + scales.lm * lm + scales.word_penalty * bool(word)
            paths.append((target, (*words, word) if word else words, total + more))
    return best


@given(lattices(), st.integers(1, 12), st.floats(-3, 3), st.floats(-3, 3))
def test_the_search_agrees_with_every_path_one_by_one(lattice, depth, lm, word_penalty):
    scales = Scales(acoustic=0.5, lm=lm, pronunciation=1.0, word_penalty=word_penalty)
    expected = every_path(lattice, scales)
    if not expected:
        with pytest.raises(ValueError, match="no way leads from the start to the end"):
            best_paths(lattice, scales, depth)
        return
    found = best_paths(lattice, scales, depth)
    assert [each.total for each in found] == pytest.approx(sorted(expected.values(), reverse=True)[:depth])
    for each in found:
        assert each.total == pytest.approx(expected[each.words])
        acoustic, lm_sum = each.scores
        parts = 0.5 * acoustic + lm * lm_sum + word_penalty * len(each.words)
        assert each.total == pytest.approx(parts)
    assert len({each.words for each in found}) == len(found)


@given(lattices())
def test_what_is_written_in_slf_is_read_as_the_same_lattice(lattice):
    links = [(source, link) for source, each in enumerate(lattice.links) for link in each]
    lines = ["VERSION=1.0", f"start={lattice.start} end={lattice.end}"]
    lines.append(f"N={len(lattice.links)} L={len(links)}")
    lines += [f"I={node}" for node in range(len(lattice.links))]
    for number, (source, link) in enumerate(links):
        scores = f"a={link.scores[0]!r} l={link.scores[1]!r}"
        lines.append(f"J={number} S={source} E={link.target} W={link.word or '!NULL'} {scores}")
    scales = Scales(1.0, 1.0, 1.0, 0.0)
    found = lattice_of("\n".join(lines))
    if links:  # else there is nothing to say which streams there are
        assert every_path(found, scales) == every_path(lattice, scales)


TINY = "VERSION=1.0\nN=2 L=1\nI=0\nI=1 W=a\nJ=0 S=0 E=1 a=-3\n"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("N=2", "N=3", "u1.slf: N: the header says 3, the file has 2: incomplete?"),
        ("N=2 L=1\n", "", "u1.slf: N: the header says nothing, the file has 2"),
        ("J=0 S=0 E=1 a=-3\n", "", "u1.slf: L: the header says 1, the file has 0: incomplete?"),
        ("E=1", "E=7", "u1.slf: link 0: from 0 to 7; no such node"),
        ("E=1", "E=x", "u1.slf:5: E: 'x' is no node's number"),
        ("E=1 ", "", "u1.slf:5: E: 'nothing' is no node's number"),
        ("I=1", "I=0", "u1.slf:4: I: this node is here a second time"),
        ("I=1", "I=999999999", "u1.slf: I: expected the nodes 0 to 1"),
        ("I=1", "I=1 SUBLAT=x", "u1.slf:4: sub-lattices are not read"),
        ("a=-3", "a=nan", "u1.slf:5: a: 'nan'; expected a finite number"),
        ("a=-3", "a=tensor(-12.9)", "u1.slf:5: a: 'tensor(-12.9)'; expected a finite number"),
        ("a=-3", "noise", "u1.slf:5: 'noise': expected NAME=VALUE"),
        ("N=2", "base=1 N=2", "u1.slf:2: base: '1' is no base"),
        ("a=-3", "a=-3\nbase=10", "u1.slf:6: base: comes after scores"),
        ("N=2", "start=5 N=2", "u1.slf: start: '5': no such node"),
        ("N=2", "lmscale=x N=2", "u1.slf: lmscale: 'x'; expected a finite number"),
        ("N=2", "start=1 end=0 N=2", "u1.slf, list 'u1': no way leads from the start to the end"),
        ("L=1", "L=2", None),
    ],
)
def test_what_is_no_lattice_says_why(tmp_path, old, new, said):
    circle = said is None
    text = TINY.replace(old, new) + ("J=1 S=1 E=0 a=-1\n" if circle else "")
    if circle:
        text, said = text.replace("VERSION=1.0", "VERSION=1.0 start=0 end=1"), "a way leads from node"
    (tmp_path / "u1.slf").write_text(text)
    (fault,) = read_lists(tmp_path / "u1.slf")
    assert isinstance(fault, FormatError | InvalidList)
    assert said in str(fault)


def test_circles_without_an_end_are_told(tmp_path):
    (tmp_path / "u1.slf").write_text(TINY.replace("L=1", "L=2") + "J=1 S=1 E=0 a=-1\n")
    (fault,) = read_lists(tmp_path / "u1.slf")
    assert "no start node; expected one that nothing leads to" in str(fault)


def test_damage_is_told_and_the_next_file_is_read(tmp_path):
    write_truncated_gzip(tmp_path / "a.slf.gz", TINY)
    (tmp_path / "b.slf").write_bytes(b"\xef\xbb\xbf" + TINY.encode().replace(b"W=a", b"W=\xff"))
    (tmp_path / "c d.slf").write_text(TINY)
    damaged, no_text, good = read_lists(tmp_path)
    assert isinstance(damaged, FormatError)
    assert "b.slf:4: not UTF-8" in str(no_text)
    assert good.id == "c d"


def test_a_search_that_needs_too_much_is_refused(tmp_path):
    rungs = 40
    lines = [f"I={node}" for node in range(rungs + 1)]
    for rung in range(rungs):
        lines += [f"J={2 * rung + k} S={rung} E={rung + 1} W={word} a=-1" for k, word in enumerate("ab")]
    (tmp_path / "u1.slf").write_text("\n".join(["VERSION=1.0", f"N={rungs + 1} L={2 * rungs}", *lines]))
    assert len(only(tmp_path / "u1.slf", depth=200).hypotheses) == 200
    (fault,) = read_lists(tmp_path / "u1.slf", depth=200, max_paths=100)
    assert "list 'u1': more than 100 partial paths for" in str(fault)
    with pytest.raises(LimitExceeded):
        best_paths(read_lattice(tmp_path / "u1.slf")[0], Scales(1.0, 1.0, 1.0, 0.0), 200, 100)


def test_a_long_line_without_fields_takes_no_long_time():
    with pytest.raises(FormatError, match="expected NAME=VALUE"):
        lattice_of("x" * 5_000_000)


@pytest.mark.data
def test_real_lattices_give_lists_in_first_pass_order(data_dir):
    lists = list(read_lists(data_dir / "nbest" / "read-speech" / "lattices", depth=20))
    assert len(lists) == 40
    for nbest in lists:
        assert isinstance(nbest, NBestList)
        assert list(nbest.streams) == ["acoustic"]
        assert list(nbest.streams["acoustic"]) == sorted(nbest.streams["acoustic"], reverse=True)
        assert len({each.text for each in nbest.hypotheses}) == len(nbest.hypotheses) == 20
