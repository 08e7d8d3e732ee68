"""Check the committed demo lists, and the lattice search that made them against an exhaustive search."""

from __future__ import annotations

import importlib
import io
import math
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.evaluation.error_rate import WordErrors
from rescorer.evaluation.list_errors import evaluate_list
from rescorer.formats.jsonlines import read_lists
from rescorer.formats.lattices import Arc, Lattice, read_lattice
from rescorer.text import Normaliser
from rescorer.types import NBestList
from tests.support.kenlm_twin import needs_kenlm

DEMO = Path(__file__).resolve().parents[2] / "demo"
MAX_FILE_BYTES = 1_000_000
ROUNDING_ERROR = 0.01
"""Largest error of a total due to rounding of the scores in the file."""

TINY_ARPA = """\\data\\
ngram 1=6
ngram 2=5
ngram 3=3

\\1-grams:
-2.1	<unk>
0	<s>	-0.4
-0.9	</s>
-0.6	pear	-0.3
-0.7	pair	-0.2
-0.8	tree	-0.5

\\2-grams:
-0.3	<s> pear	-0.1
-0.5	<s> pair	-0.2
-0.2	pear tree	-0.3
-0.9	pair tree
-0.4	tree </s>

\\3-grams:
-0.1	<s> pear tree
-0.6	<s> pair tree
-0.05	pear tree </s>

\\end\\
"""

TINY_LATTICE = """# Lattice as PocketSphinx writes it
VERSION=1.0
start=6
end=0
#
N=7	L=9
I=0	t=0.90	W=!SENT_END	v=1
I=1	t=0.60	W=tree	v=1
I=2	t=0.55	W=!NULL	v=1
I=3	t=0.20	W=pear	v=1
I=4	t=0.20	W=pair	v=2
I=5	t=0.10	W=!SENT_START	v=1
I=6	t=0.00	W=!SENT_START	v=1
J=0	S=1	E=0	a=-20.000000	p=0.9
J=1	S=2	E=1	a=-3.500000	p=0.5
J=2	S=3	E=1	a=-40.250000	p=0.4
J=3	S=3	E=2	a=-35.000000	p=0.4
J=4	S=4	E=1	a=-30.000000	p=0.4
J=5	S=5	E=3	a=-6.000000	p=0.5
J=6	S=5	E=4	a=-6.000000	p=0.5
J=7	S=6	E=5	a=-5.000000	p=1
J=8	S=6	E=3	a=-12.000000	p=1
"""


def import_demo_script(name: str) -> ModuleType:
    """Import a script of the demo, whose folder is not a package."""
    sys.path.insert(0, str(DEMO))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(DEMO))


lattices = import_demo_script("lattices")
make_lists = import_demo_script("make_lists")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    import kenlm

    path = tmp_path_factory.mktemp("lm") / "tiny.arpa"
    path.write_text(TINY_ARPA)
    return kenlm.Model(str(path))


@pytest.fixture(scope="module")
def demo_lists() -> list[NBestList]:
    lists = list(read_lists(DEMO / "lists.jsonl.gz"))
    assert all(isinstance(nbest, NBestList) for nbest in lists)
    return lists


def test_file_has_enough_lists_and_is_small(demo_lists: list[NBestList]) -> None:
    assert len(demo_lists) >= 60
    assert (DEMO / "lists.jsonl.gz").stat().st_size <= MAX_FILE_BYTES


def test_references_and_groups_match_the_sentences(demo_lists: list[NBestList]) -> None:
    sentences = make_lists.read_sentences(DEMO / "sentences.tsv")
    assert [(sentence.id, sentence.group, sentence.text) for sentence in sentences] == [
        (nbest.id, nbest.group, nbest.reference) for nbest in demo_lists
    ]
    assert {sentence.group for sentence in sentences} == set(make_lists.VOICES)
    assert all(6 <= len(sentence.text.split()) <= 20 for sentence in sentences)
    assert len({sentence.text for sentence in sentences}) == len(sentences)


def test_hypotheses_are_distinct_canonical_texts_in_first_pass_order(demo_lists: list[NBestList]) -> None:
    words = Normaliser().normalise
    for nbest in demo_lists:
        texts = [hypothesis.text for hypothesis in nbest.hypotheses]
        assert len(set(texts)) == len(texts)
        assert texts == [" ".join(words(text)) for text in texts]
        assert set(nbest.streams) == {"acoustic", "lm"}
        assert all(math.isfinite(score) for scores in nbest.streams.values() for score in scores)
        totals = [
            acoustic + lattices.LM_SCALE * lm + lattices.WORD_INSERTION_PENALTY * (len(words(text)) + 1)
            for acoustic, lm, text in zip(nbest.streams["acoustic"], nbest.streams["lm"], texts, strict=True)
        ]
        assert all(np.diff(totals) <= ROUNDING_ERROR)


def test_rescoring_can_improve_the_lists(demo_lists: list[NBestList]) -> None:
    evaluated_lists = [evaluate_list(nbest, Normaliser().normalise) for nbest in demo_lists]
    first = sum((evaluated.system for evaluated in evaluated_lists), WordErrors.zero())
    oracle = sum((evaluated.oracle for evaluated in evaluated_lists), WordErrors.zero())
    assert 0.15 < first.rate < 0.45
    assert oracle.rate < 0.75 * first.rate
    assert f"{first.rate:.2%}" in make_lists.format_report(demo_lists).splitlines()[-1]
    readme = (DEMO / "README.md").read_text(encoding="utf-8")
    assert f"| word error rate | {100 * first.rate:.2f} % | {100 * oracle.rate:.2f} % |" in readme


@needs_kenlm
def test_finds_both_sentences_of_a_tiny_lattice(model: Any) -> None:
    pear, pair = lattices.n_best(read_lattice(io.BytesIO(TINY_LATTICE.encode()))[0], model, depth=10)
    assert pear.words == ("pear", "tree", "</s>")
    assert pear.acoustic == -5 - 6 - 35 - 3.5 - 20  # the best of four paths, two of them through the filler
    assert pear.lm == pytest.approx((-0.3 - 0.1 - 0.05) * math.log(10))
    assert pair.words == ("pair", "tree", "</s>")
    assert pair.acoustic == -5 - 6 - 30 - 20
    assert pair.lm == pytest.approx(model.score("pair tree") * math.log(10))


def enumerate_sentences(lattice, model: Any) -> dict[tuple[str, ...], tuple[float, float]]:
    """Compute the total and acoustic score of each word sequence by enumerating all paths."""
    scores: dict[tuple[str, ...], tuple[float, float]] = {}
    paths = [(lattice.start, (), 0.0)]
    while paths:
        node, words, acoustic = paths.pop()
        if node == lattice.end:
            lm = model.score(" ".join(words)) * math.log(10)
            total = acoustic + lattices.LM_SCALE * lm + lattices.WORD_INSERTION_PENALTY * (len(words) + 1)
            scores[words] = max(scores.get(words, (-math.inf, -math.inf)), (total, acoustic))
        for target, word, (score,), _ in lattice.arcs[node]:
            paths.append((target, (*words, word) if word else words, acoustic + score))
    return scores


@st.composite
def random_lattices(draw: st.DrawFn) -> object:
    """Draw a lattice whose arcs lead from higher to lower nodes, as in PocketSphinx.

    The end may be unreachable.
    """
    n = draw(st.integers(2, 7))
    inner = st.lists(st.sampled_from(["", "pear", "pair", "tree", "unheard"]), min_size=n - 2, max_size=n - 2)
    scores = st.one_of(st.none(), st.integers(-40, 5))  # densities can be positive
    words = ("", *draw(inner), "")
    links = []
    for node in range(n):
        drawn = [draw(scores) for _ in range(node)]
        drawn_links = ((target, score) for target, score in enumerate(drawn) if score is not None)
        links.append(tuple(Arc(target, words[target], (float(score),)) for target, score in drawn_links))
    return Lattice(tuple(links), start=n - 1, end=0)


@needs_kenlm
@given(lattice=random_lattices(), depth=st.integers(1, 40))
def test_search_agrees_with_enumeration(lattice, depth: int, model: Any) -> None:
    expected = enumerate_sentences(lattice, model)
    candidates = lattices.n_best(lattice, model, depth)
    assert [candidate.total for candidate in candidates] == pytest.approx(
        sorted((total for total, _ in expected.values()), reverse=True)[:depth], abs=1e-4
    )
    assert len({candidate.words for candidate in candidates}) == len(candidates)
    for candidate in candidates:
        assert candidate.words[-1] == "</s>"
        total, acoustic = expected[candidate.words[:-1]]
        assert candidate.total == pytest.approx(total, abs=1e-4)
        assert candidate.acoustic == pytest.approx(acoustic)


def test_noise_has_the_requested_level_and_follows_the_seed() -> None:
    tone = (8000 * np.sin(np.arange(16_000) * 0.05)).astype(np.int16)
    noisy = make_lists.add_noise(tone, 20.0, np.random.default_rng(3))
    noise = noisy.astype(float) - tone
    measured_db = 10 * np.log10(np.mean(tone.astype(float) ** 2) / np.mean(noise**2))
    assert measured_db == pytest.approx(20.0, abs=0.2)
    assert np.array_equal(noisy, make_lists.add_noise(tone, 20.0, np.random.default_rng(3)))


def test_rejects_unknown_columns(tmp_path: Path) -> None:
    path = tmp_path / "sentences.tsv"
    path.write_text("id\ttext\na\tb\n")
    with pytest.raises(SystemExit, match="expected the columns id, group, text"):
        make_lists.read_sentences(path)
