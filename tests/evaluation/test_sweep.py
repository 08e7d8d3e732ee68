"""Grids of language model weights and word insertion penalties."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.errors import ConfigError, InvalidList
from rescorer.evaluation.scored_lists import count_lists
from rescorer.evaluation.sweep import Grid, Varied, sweep, vary_models, vary_streams
from rescorer.types import Hypothesis, NBestList, Weights
from tests.support.list_lines import record, write

TEXTS = st.lists(st.sampled_from(["a", "a b", "b", "a b c"]), min_size=1, max_size=4)
SCORES = st.integers(-9, 0).map(float)


@st.composite
def kaldi_lists(draw):
    lists = []
    for number in range(draw(st.integers(1, 4))):
        texts = draw(TEXTS)
        streams = {
            name: tuple(draw(st.lists(SCORES, min_size=len(texts), max_size=len(texts))))
            for name in ("acoustic", "graph")
        }
        lists.append(NBestList(f"u{number}", tuple(map(Hypothesis, texts)), streams, reference="a b"))
    return lists


@given(lists=kaldi_lists())
def test_counts_what_score_sh_would(lists):
    """The best by acoustic + LMWT (graph − penalty · words), the first of equal ones."""
    scored, _ = count_lists(lambda text: tuple(text.split()), lists)
    found = sweep(scored, vary_streams(scored, None), Grid((1.0, 3.0), (0.0, 0.5)))
    for row, scale in enumerate(found.grid.scales):
        for column, penalty in enumerate(found.grid.penalties):
            errors = 0
            for item in scored:
                n_words = np.array([len(words) for words in item.words])
                graph = item.components["graph"] - penalty * n_words
                best = int(np.argmax(item.components["acoustic"] + scale * graph))
                errors += item.evaluated.hypotheses[best].errors
            assert found.errors[row, column] == errors
    scale, penalty = found.best
    assert found.errors[scale, penalty] == found.errors.min()


def test_varies_models_in_proportion():
    varied = vary_models(Weights(lm={"mixture": 2.0, "lodr": -1.0, "off": 0.0}))
    assert varied.names == ("lm:mixture", "lm:lodr")
    assert varied.at(8.0, 0.5).lm == {"mixture": 8.0, "lodr": -4.0, "off": 0.0}
    assert varied.at(8.0, 0.5).word == -4.0
    assert varied.options(8.0, 0.5) == "-w lm:mixture=8 -w lm:lodr=-4 -w word=-4"
    assert vary_models(Weights(lm={"mixture": 0.0})).names == ("lm:mixture",)
    streams = Varied(Weights(streams={"acoustic": 1.0}, lm={}), ("graph",))
    assert streams.options(9.0, 0.0) == "--first-pass acoustic=1,graph=9,word=0"


def test_grids():
    assert Grid.parse("7:17").scales == tuple(map(float, range(7, 18)))
    assert Grid.parse("9x0.5") == Grid((9.0,), (0.5,))
    assert Grid.parse("0:0.3:0.1").scales == (0.0, 0.1, 0.2, 0.3)
    malformed = ("", "7-17", "9:7", "1:2:0", "1:2:3:4", "1:inf", "nan", "7:9x", "x1", "1_0:1_2")
    too_large = ("1e308:1.7e308:1e307", "-1e10", "0:1:1e-7", "1:2x1e10")  # totals would not be finite
    for text in malformed + too_large:
        with pytest.raises(ConfigError, match="expected FROM:TO or FROM:TO:STEP"):
            Grid.parse(text)
    with pytest.raises(ConfigError, match="at most 2,000 cells"):
        Grid.parse("0:1e9:1e-6")


def test_a_list_without_the_stream_is_named():
    lists = [NBestList("u1", (Hypothesis("a"),), {"lm": (-1.0,)}, reference="a")]
    scored, _ = count_lists(lambda text: tuple(text.split()), lists)
    with pytest.raises(InvalidList, match=r"'u1'.*acoustic"):
        sweep(scored, vary_streams(scored, None), Grid((1.0,)))


def test_evaluate_prints_the_grid(run, ngram_bundle, tmp_path):
    source = write(tmp_path / "in.jsonl", record("u1", "the mat", "the cat", reference="the cat", group="s"))
    code, out, _ = run("evaluate", source, "--bundle", ngram_bundle, "--sweep", "1:3")
    assert code == 0
    assert "in.jsonl: WER % by LMWT, the weight of lm:mixture, and word insertion penalty" in out
    assert "optimistic, since these lists chose it" in out
    options = ("--bundle", ngram_bundle, "--sweep", "1:3x0", "--json")
    (found,) = json.loads(run("evaluate", source, *options)[1])["sweeps"]
    assert (found["scales"], found["penalties"], len(found["wer"])) == ([1.0, 2.0, 3.0], [0.0], 3)
    best = found["best"]["options"].split()
    _, out, _ = run("evaluate", source, "--bundle", ngram_bundle, *best, "--json")
    rates = {system["name"]: system["wer"] for system in json.loads(out)["systems"]}
    assert rates["ngram"] == min(min(row) for row in found["wer"])
    code, _, err = run("evaluate", source, "--sweep", "1:3")
    assert (code, "give --bundle, or lists with a score stream graph or lm" in err) == (2, True)
    for option in ("--sweep", "--signature"):  # as of a script whose variable is empty
        code, _, err = run("evaluate", source, option, "")
        assert (code, f"{option} '': expected" in err) == (2, True)


def test_a_sweep_without_reference_words_has_no_rate(run, ngram_bundle, tmp_path):
    source = write(tmp_path / "in.jsonl", record("u1", "", "the cat", reference=""))
    code, out, _ = run("evaluate", source, "--bundle", ngram_bundle, "--sweep", "1")
    assert (code, "best: WER - % at LMWT 1" in out) == (0, True)
