"""Text that decoders of icefall, fairseq, wenet and aps print: lists, references, and damaged lines."""

from __future__ import annotations

import io
import math

import pytest
from hypothesis import given

from rescorer.errors import ConfigError, InputError
from rescorer.formats import plain_text
from rescorer.formats.registry import detect
from rescorer.types import Hypothesis, NBestList
from tests.formats.test_text_beams import encode_variants, round_trip
from tests.support.list_strategies import lists_match, nbest_lists, several

ICEFALL = """s1-u1-0:\tref=['TO', 'BE', "DON'T"]
s1-u1-0:\thyp=['TWO', 'BE']
s1-u1-0:\ttimestamp_hyp=[0.040, 0.120]
s1-u2-1:\tref=[]
s1-u2-1:\thyp=['a\\\\b', '\\u4f60', 'it\\'s "so"']
u3:\tref=plain text
u3:\thyp=[noise] text
"""
FAIRSEQ = """2020-11-20 10:00:00 | INFO | fairseq_cli.generate | loading model(s) from /m.pt
S-7\tx y
T-7\tto be
H-7\t-0.5\ttwo be@@ e
D-7\t-0.5\ttwo bee
P-7\t-0.2500 -0.7500
H-7\t-1.25\tto be
D-7\t-1.25\tto be
P-7\t-1.0 -1.5
A-7\t0-0 1-1
S-0\tz
T-0\t
H-0\t-2\t\u2581the\u2581sea
P-0\t-2.0
2020-11-20 10:00:01 | INFO | fairseq_cli.generate | NOTE: hypothesis and token scores are output in base 2
Generate test with beam=5: BLEU4 = 1.00
"""
WENET = "wav u1\ncandidate -3.25 to be\ncandidate -4 two be\nwav u2\ncandidate 1e-3 the sea\n"
APS = "2\nu1\n-3.250\t2\tto be\n-4.000\t0\t\n2\nu2\n-1.500\tthe sea\n"


def read(reader, text: str | bytes, **options) -> list:
    return list(reader(io.BytesIO(text.encode() if isinstance(text, str) else text), **options))


def test_icefall_words_are_joined_and_references_kept():
    lists = read(plain_text.read_icefall, ICEFALL)
    assert [(nbest.id, nbest.hypotheses[0].text, nbest.reference) for nbest in lists] == [
        ("s1-u1-0", "TWO BE", "TO BE DON'T"),
        ("s1-u2-1", 'a\\b \u4f60 it\'s "so"', ""),
        ("u3", "[noise] text", "plain text"),
    ]
    assert all(read(plain_text.read_icefall, variant) == lists for variant in encode_variants(ICEFALL))


def test_icefall_references_may_follow_their_hypotheses():
    lists = read(plain_text.read_icefall, "u1:\thyp=['a']\nu1:\tref=['b']\nu2:\thyp=['c']\nu2:\tref=['d']\n")
    assert [(nbest.id, nbest.hypotheses[0].text, nbest.reference) for nbest in lists] == [
        ("u1", "a", "b"),
        ("u2", "c", "d"),
    ]


def test_fairseq_lists_have_text_without_pieces_and_scores_in_nats():
    first, second = lists = read(plain_text.read_fairseq, FAIRSEQ)
    assert (first.id, [hypothesis.text for hypothesis in first.hypotheses]) == ("7", ["two bee", "to be"])
    assert (first.reference, second.reference) == ("to be", "")
    assert first.streams["first_pass"] == pytest.approx((-0.5 * math.log(2), -1.25 * math.log(2)))
    assert first.streams["total"] == pytest.approx((-1.0 * math.log(2), -2.5 * math.log(2)))
    assert second.hypotheses == (Hypothesis("\u2581the\u2581sea"),)
    assert read(plain_text.read_fairseq, FAIRSEQ, base="e")[1].streams["first_pass"] == (-2.0,)
    assert all(read(plain_text.read_fairseq, variant) == lists for variant in encode_variants(FAIRSEQ))
    with pytest.raises(ConfigError, match="expected 2, or e for versions of 2019"):
        read(plain_text.read_fairseq, FAIRSEQ, base="10")


def test_wenet_and_aps_lists():
    first, second = lists = read(plain_text.read_wenet, WENET)
    assert first == NBestList(
        "u1", (Hypothesis("to be"), Hypothesis("two be")), {"first_pass": (-3.25, -4.0)}
    )
    assert second.streams == {"first_pass": (0.001,)}
    assert all(read(plain_text.read_wenet, variant) == lists for variant in encode_variants(WENET))
    first, second = read(plain_text.read_aps, APS)
    assert first.hypotheses == (Hypothesis("to be", {"n_tokens": 2}), Hypothesis("", {"n_tokens": 0}))
    assert (first.id, first.streams) == ("u1", {"first_pass": (-3.25, -4.0)})
    assert (second.id, second.hypotheses, second.streams) == (
        "u2",
        (Hypothesis("the sea"),),
        {"first_pass": (-1.5,)},
    )


@pytest.mark.parametrize(
    ("reader", "text", "message"),
    [
        (plain_text.read_icefall, "u1:\thyp=['a' 'b']\n", "<stream>:1: expected a comma after 'a'"),
        (
            plain_text.read_icefall,
            "u1:\thyp=['a', 7]\n",
            "<stream>:1: expected a list of words in quotation",
        ),
        (plain_text.read_icefall, "u1:\thyp=['a', 'b\n", "<stream>:1: the list of words is cut off"),
        (plain_text.read_icefall, "u1:\thyp=[\n", "<stream>:1: the list of words is cut off"),
        (plain_text.read_icefall, "a b\n", "<stream>:1: expected ID:<TAB>ref="),
        (plain_text.read_icefall, "u1:\tref=['a']\n", "list 'u1': no hypotheses"),
        (plain_text.read_fairseq, "S-1\tx\nT-1\ty\n", "list '1': no hypotheses"),
        (plain_text.read_fairseq, "H-1\t-0.5\n", "<stream>:1: expected H-1<TAB>score<TAB>text"),
        (plain_text.read_fairseq, "H-1\tnan\ta\n", "first_pass: the score is nan"),
        (plain_text.read_wenet, "candidate -1 a\n", "<stream>:1: a candidate before the first line"),
        (plain_text.read_wenet, "wav u1\nsaid -1 a\n", "<stream>:2: expected `wav ID`"),
        (plain_text.read_wenet, "wav u1\n", "list 'u1': no hypotheses"),
        (plain_text.read_aps, "u1\n", "<stream>:1: expected the number of hypotheses per list"),
        (plain_text.read_aps, "2\n-1\t1\ta\n", "<stream>:2: a hypothesis before the first id"),
        (plain_text.read_aps, "2\nu1\nmuch\t1\ta\n", "first_pass: 'much' is not a number"),
    ],
)
def test_damaged_lists_are_errors_and_others_are_read(reader, text, message):
    good = {
        plain_text.read_icefall: "u0:\thyp=['a']\n",
        plain_text.read_fairseq: "H-0\t-1\ta\n",
        plain_text.read_wenet: "wav u0\ncandidate -1 a\n",
    }.get(reader, "")
    *errors, _ = [*read(reader, text + good), None] if not good else read(reader, text + good)
    assert message in str(errors[0])
    assert all(isinstance(error, InputError) for error in errors)


@given(several(nbest_lists(["first_pass"], references=True)))
def test_fairseq_round_trip(lists):
    found = round_trip(lists, plain_text.fairseq_writer, plain_text.read_fairseq)
    assert lists_match(found, lists)


@given(several(nbest_lists(["first_pass"])))
def test_wenet_round_trip(lists):
    assert round_trip(lists, plain_text.wenet_writer, plain_text.read_wenet) == lists


@given(several(nbest_lists(["first_pass"], fields=lambda text: {"n_tokens": len(text)})))
def test_aps_round_trip(lists):
    assert round_trip(lists, plain_text.aps_writer, plain_text.read_aps) == lists


@given(several(nbest_lists(references=True)))
def test_icefall_round_trip_of_first_hypotheses(lists):
    first = [NBestList(nbest.id, nbest.hypotheses[:1], reference=nbest.reference) for nbest in lists]
    assert round_trip(lists, plain_text.icefall_writer, plain_text.read_icefall) == first


@pytest.mark.parametrize(
    ("name", "text"), [("icefall", ICEFALL), ("fairseq", FAIRSEQ), ("wenet", WENET), ("aps", APS)]
)
def test_detects_what_it_reads(tmp_path, name, text):
    for number, variant in enumerate((text.encode(), *encode_variants(text), (text + "\n\n").encode())):
        (tmp_path / str(number)).write_bytes(variant)
        assert detect(tmp_path / str(number))[0] == name
