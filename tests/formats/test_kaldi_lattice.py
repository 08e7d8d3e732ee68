"""Kaldi's compact lattices: golden files, the search against every path, and lattices that are none."""

from __future__ import annotations

import gzip
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.errors import ConfigError, FormatError, InvalidList
from rescorer.formats.lattices.kaldi_lattice import read_lists
from rescorer.formats.registry import choose
from rescorer.types import Hypothesis, NBestList
from tests.support.list_strategies import write_truncated_gzip

GOLDEN = (
    "spk-u1 \n"
    "2\t0\tso\t1.5,100,3_3_4\n"
    "2\t7\t<eps>\t0.25,90,\n"
    "0\t7\tpear\t2,40.5,5\n"
    "0\t7\tpair\t1,42,6_6\n"
    "7\t0.5,10,7_8\n"
    "\n"
    "u2\n"
    "0 1 <s> 0,0,\n"
    "1 2 tree\n"
    "2\n"
    "1 3,1.25,\n"
    "\n"
)
WORDS = "<eps> 0\nso 1\npear 2\npair 3\ntree 4\n<s> 5\n"


def read(text: str | bytes, **options):
    return list(read_lists(io.BytesIO(text if isinstance(text, bytes) else text.encode()), **options))


def numbered(text: str) -> str:
    for line in WORDS.splitlines():
        word, number = line.split()
        text = text.replace(f"\t{word}\t", f"\t{number}\t").replace(f" {word} ", f" {number} ")
    return text.replace(" tree\n", " 4\n")


def test_lattices_become_lists_best_first():
    assert read(GOLDEN) == [
        NBestList(
            "spk-u1",
            (Hypothesis(""), Hypothesis("so pear"), Hypothesis("so pair")),
            {"graph": (-0.75, -4.0, -3.0), "acoustic": (-100.0, -150.5, -152.0)},
        ),
        NBestList(
            "u2",
            (Hypothesis("tree"), Hypothesis("")),
            {"graph": (0.0, -3.0), "acoustic": (0.0, -1.25)},
        ),
    ]


def test_scales_depth_and_penalty_choose_the_paths():
    first, _ = read(GOLDEN, lmscale=10.0, acscale=1.0, depth=2)
    assert [each.text for each in first.hypotheses] == ["", "so pair"]
    assert first.streams["graph"] == (-0.75, -3.0)
    first, _ = read(GOLDEN, wdpenalty=50.0, depth=1)
    assert [each.text for each in first.hypotheses] == ["so pear"]


def test_numbers_need_a_symbol_table(tmp_path):
    text = numbered(GOLDEN)
    (tmp_path / "words.txt").write_text(WORDS)
    (tmp_path / "lat.txt").write_text(text)
    assert list(choose(f"kaldi-lattice:words={tmp_path / 'words.txt'}").read(tmp_path / "lat.txt")) == read(
        GOLDEN
    )
    for fault in read(text):
        assert isinstance(fault, InvalidList)
        assert "its words are numbers: give the symbol table, words=FILE" in str(fault)
    first, second = read(text.replace("\t2\t2,", "\t99\t2,"), words=str(tmp_path / "words.txt"))
    assert "<stream>:1, list 'spk-u1': the word '99' is no number of the symbol table" in str(first)
    assert isinstance(second, NBestList)
    for fault in read(GOLDEN, words=str(tmp_path / "words.txt")):
        assert "is no number of the symbol table" in str(fault)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("a 1\nb 1\n", "words.txt:2: the number 1 is here a second time"),
        ("a\n", "words.txt:1: 'a': expected WORD NUMBER"),
        ("a b\n", "words.txt:1: 'a b': expected WORD NUMBER"),
        (b"\xff 1\n", "words.txt:1: not UTF-8"),
    ],
)
def test_a_bad_symbol_table_is_refused(tmp_path, table, said):
    (tmp_path / "words.txt").write_bytes(table if isinstance(table, bytes) else table.encode())
    with pytest.raises(FormatError) as caught:
        read(GOLDEN, words=str(tmp_path / "words.txt"))
    assert said in str(caught.value)


def test_gzip_carriage_returns_and_a_byte_order_mark_do_no_harm():
    changed = ("\ufeff" + GOLDEN.replace("\n", "\r\n")).encode()
    assert read(gzip.compress(changed)) == read(changed) == read(GOLDEN)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("2,40.5,5", "2,nan,5", "<stream>:4: '2,nan,5': expected two finite costs"),
        ("2,40.5,5", "Infinity,40.5,5", "<stream>:4: 'Infinity,40.5,5': expected two finite costs"),
        ("2,40.5,5", "2,tensor(-12.9),5", "expected two finite costs"),
        ("2,40.5,5", "2,40.5", "<stream>:4: '2,40.5': expected GRAPH,ACOUSTIC,TRANSITION-IDS"),
        ("pear\t2", "pear\tpear\t2", "<stream>:4: 5 columns; expected FROM TO WORD GRAPH,ACOUSTIC"),
        ("0\t7\tpear", "0\tx\tpear", "<stream>:4: 'x' is no state's number"),
        ("spk-u1 \n", "spk u1\n", "<stream>:1: 'spk u1': expected a lattice's id alone"),
        ("spk-u1 \n", "spk-u1\n\nu2\n", "<stream>:1, list 'spk-u1': no states"),
        ("7\t0.5,10,7_8\n", "", "list 'spk-u1': no way leads from the start to the end"),
        ("0\t7\tpair", "0\t2\tpair", "list 'spk-u1': a way leads from node"),
    ],
)
def test_bad_input_says_where_and_the_next_lattice_is_read(old, new, said):
    assert old in GOLDEN
    fault, *_, good = read(GOLDEN.replace(old, new, 1).replace("\nu2\n0 1", "\nu3\n0 1"))
    assert said in str(fault)
    assert good.id == "u3"


def test_a_line_that_is_no_text_is_a_fault_of_its_lattice_alone():
    fault, good = read(GOLDEN.encode().replace(b"pair", b"\xff"))
    assert "<stream>:5: not UTF-8" in str(fault)
    assert good.id == "u2"


def test_an_id_met_before_and_a_file_cut_off_are_told(tmp_path):
    good, _, again = read(GOLDEN + GOLDEN[: GOLDEN.index("u2")])
    assert good.id == "spk-u1"
    assert "list 'spk-u1': is here a second time" in str(again)
    _, cut = read(GOLDEN[:-1])
    assert "<stream>:8: the last lattice has no empty line after it" in str(cut)
    write_truncated_gzip(tmp_path / "lat.gz", GOLDEN)
    *_, fault = read_lists(tmp_path / "lat.gz")
    assert isinstance(fault, FormatError)


def test_a_search_that_needs_too_much_is_refused():
    arcs = "".join(f"{n} {n + 1} {word} 1,1,\n" for n in range(40) for word in "ab")
    (nbest,) = read(f"u1\n{arcs}40\n\n", depth=200)
    assert len(nbest.hypotheses) == 200
    (fault,) = read(f"u1\n{arcs}40\n\n", depth=200, max_paths=100)
    assert "list 'u1': more than 100 partial paths for" in str(fault)
    with pytest.raises(ConfigError, match="kaldi-lattice: depth='0': expected a positive integer"):
        choose("kaldi-lattice:depth=0").read("lat.txt")


COSTS = st.integers(-8, 8).map(lambda n: n / 4)
ARCS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 3), st.sampled_from(["a", "b", "<eps>"]), COSTS, COSTS),
    min_size=1,
    max_size=9,
).map(lambda arcs: [(s, s + step, *rest) for s, step, *rest in arcs])


@given(ARCS, st.dictionaries(st.integers(0, 6), st.tuples(COSTS, COSTS), min_size=1, max_size=3))
def test_the_list_is_that_of_every_path(arcs, finals):
    """The twin goes along all paths, one by one."""
    best: dict[str, float] = {}

    def follow(state: int, words: list[str], total: float) -> None:
        if state in finals:
            text = " ".join(words)
            best[text] = max(best.get(text, -1e9), total - sum(finals[state]))
        for source, target, word, graph, acoustic in arcs:
            if source == state:
                follow(target, words + [word] * (word != "<eps>"), total - graph - acoustic)

    follow(arcs[0][0], [], 0.0)
    lines = [f"{s} {t} {word} {graph},{acoustic},1_2" for s, t, word, graph, acoustic in arcs]
    lines += [f"{state} {graph},{acoustic}," for state, (graph, acoustic) in finals.items()]
    (found,) = read("\n".join(["u1", *lines, "", ""]))
    if not best:
        assert "no way leads from the start to the end" in str(found)
        return
    totals = [sum(both) for both in zip(*found.streams.values(), strict=True)]
    assert dict(zip((each.text for each in found.hypotheses), totals, strict=True)) == best
    assert totals == sorted(totals, reverse=True)
