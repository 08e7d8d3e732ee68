"""Kaldi's compact lattices: expected lists, the search against all paths, and invalid files."""

from __future__ import annotations

import gzip
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.errors import ConfigError, FormatError, InvalidList
from rescorer.formats.kaldi import read_kaldi_lattice
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


def parse_lists(text: str | bytes, **options):
    return list(read_kaldi_lattice(io.BytesIO(text if isinstance(text, bytes) else text.encode()), **options))


def replace_words_by_numbers(text: str) -> str:
    for line in WORDS.splitlines():
        word, number = line.split()
        text = text.replace(f"\t{word}\t", f"\t{number}\t").replace(f" {word} ", f" {number} ")
    return text.replace(" tree\n", " 4\n")


def test_reads_lattices_as_lists_best_first():
    assert parse_lists(GOLDEN) == [
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


def test_scales_depth_and_penalty_select_paths():
    first, _ = parse_lists(GOLDEN, lmscale=10.0, acscale=1.0, depth=2)
    assert [hypothesis.text for hypothesis in first.hypotheses] == ["", "so pair"]
    assert first.streams["graph"] == (-0.75, -3.0)
    first, _ = parse_lists(GOLDEN, wdpenalty=50.0, depth=1)
    assert [hypothesis.text for hypothesis in first.hypotheses] == ["so pear"]


def test_numbers_need_a_symbol_table(tmp_path):
    text = replace_words_by_numbers(GOLDEN)
    (tmp_path / "words.txt").write_text(WORDS)
    (tmp_path / "lat.txt").write_text(text)
    assert list(
        choose(f"kaldi-lattice:words={tmp_path / 'words.txt'}").read(tmp_path / "lat.txt")
    ) == parse_lists(GOLDEN)
    for error in parse_lists(text):
        assert isinstance(error, InvalidList)
        assert "the words are numbers; give their symbol table with words=FILE" in str(error)
    first, second = parse_lists(text.replace("\t2\t2,", "\t99\t2,"), words=str(tmp_path / "words.txt"))
    assert "<stream>:1, list 'spk-u1': word '99' is not in the symbol table" in str(first)
    assert isinstance(second, NBestList)
    for error in parse_lists(GOLDEN, words=str(tmp_path / "words.txt")):
        assert "is not in the symbol table" in str(error)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("a 1\nb 1\n", "words.txt:2: duplicate number 1"),
        ("a\n", "words.txt:1: expected WORD NUMBER, got 'a'"),
        ("a b\n", "words.txt:1: expected WORD NUMBER, got 'a b'"),
        (b"\xff 1\n", "words.txt:1: not UTF-8"),
    ],
)
def test_rejects_invalid_symbol_tables(tmp_path, table, message):
    (tmp_path / "words.txt").write_bytes(table if isinstance(table, bytes) else table.encode())
    with pytest.raises(FormatError) as caught:
        parse_lists(GOLDEN, words=str(tmp_path / "words.txt"))
    assert message in str(caught.value)


def test_ignores_gzip_carriage_returns_and_byte_order_mark():
    changed = ("\ufeff" + GOLDEN.replace("\n", "\r\n")).encode()
    assert parse_lists(gzip.compress(changed)) == parse_lists(changed) == parse_lists(GOLDEN)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("2,40.5,5", "2,nan,5", "<stream>:4: expected two finite costs, got '2,nan,5'"),
        ("2,40.5,5", "Infinity,40.5,5", "<stream>:4: expected two finite costs, got 'Infinity,40.5,5'"),
        ("2,40.5,5", "2,tensor(-12.9),5", "expected two finite costs"),
        ("2,40.5,5", "2,40.5", "<stream>:4: expected GRAPH,ACOUSTIC,TRANSITION-IDS, got '2,40.5'"),
        ("pear\t2", "pear\tpear\t2", "<stream>:4: expected FROM TO WORD GRAPH,ACOUSTIC"),
        ("0\t7\tpear", "0\tx\tpear", "<stream>:4: expected the number of a state, got 'x'"),
        (
            "spk-u1 \n",
            "spk u1\n",
            "<stream>:1: expected the id of a lattice, without white space, got 'spk u1'",
        ),
        ("spk-u1 \n", "spk-u1\n\nu2\n", "<stream>:1, list 'spk-u1': no states"),
        ("7\t0.5,10,7_8\n", "", "list 'spk-u1': no path leads from the start to the end"),
        ("0\t7\tpair", "0\t2\tpair", "list 'spk-u1': node 1 is on a cycle"),
    ],
)
def test_invalid_lattice_does_not_affect_the_next(old, new, message):
    assert old in GOLDEN
    error, *_, valid = parse_lists(GOLDEN.replace(old, new, 1).replace("\nu2\n0 1", "\nu3\n0 1"))
    assert message in str(error)
    assert valid.id == "u3"


def test_line_that_is_not_utf8_affects_only_its_lattice():
    error, valid = parse_lists(GOLDEN.encode().replace(b"pair", b"\xff"))
    assert "<stream>:5: not UTF-8" in str(error)
    assert valid.id == "u2"


def test_rejects_duplicate_ids_and_truncated_files(tmp_path):
    first, _, duplicate = parse_lists(GOLDEN + GOLDEN[: GOLDEN.index("u2")])
    assert first.id == "spk-u1"
    assert "list 'spk-u1': duplicate id" in str(duplicate)
    _, truncated = parse_lists(GOLDEN[:-1])
    assert "<stream>:8: no empty line after the last lattice" in str(truncated)
    write_truncated_gzip(tmp_path / "lat.gz", GOLDEN)
    *_, error = read_kaldi_lattice(tmp_path / "lat.gz")
    assert isinstance(error, FormatError)


def test_rejects_lattices_that_need_too_many_paths():
    arcs = "".join(f"{n} {n + 1} {word} 1,1,\n" for n in range(40) for word in "ab")
    (nbest,) = parse_lists(f"u1\n{arcs}40\n\n", depth=200)
    assert len(nbest.hypotheses) == 200
    (error,) = parse_lists(f"u1\n{arcs}40\n\n", depth=200, max_paths=100)
    assert "list 'u1': more than 100 partial paths for" in str(error)
    with pytest.raises(ConfigError, match="kaldi-lattice: depth='0': expected a positive integer"):
        choose("kaldi-lattice:depth=0").read("lat.txt")


COSTS = st.integers(-8, 8).map(lambda n: n / 4)
ARCS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 3), st.sampled_from(["a", "b", "<eps>"]), COSTS, COSTS),
    min_size=1,
    max_size=9,
).map(lambda arcs: [(s, s + step, *rest) for s, step, *rest in arcs])


@given(ARCS, st.dictionaries(st.integers(0, 6), st.tuples(COSTS, COSTS), min_size=1, max_size=3))
def test_list_agrees_with_enumeration_of_all_paths(arcs, finals):
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
    (found,) = parse_lists("\n".join(["u1", *lines, "", ""]))
    if not best:
        assert "no path leads from the start to the end" in str(found)
        return
    totals = [sum(scores) for scores in zip(*found.streams.values(), strict=True)]
    assert dict(zip((hypothesis.text for hypothesis in found.hypotheses), totals, strict=True)) == best
    assert totals == sorted(totals, reverse=True)
