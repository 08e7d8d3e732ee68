"""Check the starter models: their results on the demo lists and their metadata."""

from __future__ import annotations

from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path

import pytest

from rescorer.evaluation.list_errors import build_report
from rescorer.evaluation.scored_lists import rank_by_first_pass, rerank, score_lists
from rescorer.evaluation.systems import weights_by_system
from rescorer.formats.fields import parse_field_map
from rescorer.formats.jsonlines import read_lists
from rescorer.pipeline import Rescorer
from rescorer_training.recipe.config import read_recipe

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def starter():
    return Rescorer.load(ROOT / "models" / "starter")


def test_word_errors_on_the_demo_lists(starter):
    """If these numbers change, scores have changed, which must be intended."""
    scored_lists, errors_in_lists = score_lists(starter, list(read_lists(ROOT / "demo" / "lists.jsonl.gz")))
    assert not errors_in_lists
    errors = {
        name: build_report(rerank(scored, weights) for scored in scored_lists).total.system.errors
        for name, weights in weights_by_system(starter, starter.bundle.weights["pocketsphinx"]).items()
    }
    assert build_report(rank_by_first_pass(scored) for scored in scored_lists).total.system.errors == 418
    assert errors["ngram"] == pytest.approx(361, abs=2)  # near ties may differ between machines
    assert errors["mixture"] == pytest.approx(281, abs=2)


def test_manifest_describes_the_training(starter):
    manifest = starter.bundle.manifest
    assert {"text", "licence", "neural"} <= set(manifest["training"])
    assert manifest["training"]["recipe"] == "starter.toml"
    recipe = read_recipe("starter")
    training = manifest["training"]["neural"]
    assert training["options"].items() <= asdict(recipe.networks["lstm"].training).items()
    assert training["texts"] == [Path(name).name for name in recipe.text.train]
    for measurement in manifest["measured"].values():
        perplexity = measurement["perplexity"]
        assert perplexity["mixture"] < 0.85 * perplexity["ngram"]
    size_bytes = sum(path.stat().st_size for path in (ROOT / "models").rglob("*") if path.is_file())
    assert size_bytes <= 25_000_000
    assert len(starter.models["neural"].vocabulary()) >= 59_000


@pytest.mark.data
def test_tags_in_texts_do_not_change_scores(starter, data_dir):
    folder = data_dir / "nbest" / "read-speech"
    names = parse_field_map(["hypotheses=hyps,reference=ref"], ["acoustic=am", "lm=lm"])
    weights = starter.bundle.weights["pocketsphinx"]
    files = ("pocketsphinx-100best.jsonl.gz", "pocketsphinx-100best-tagged.jsonl.gz")
    clean, tagged = (
        starter.rescore(list(islice(read_lists(folder / file, names), 10)), weights) for file in files
    )
    for clean_list, tagged_list in zip(clean, tagged, strict=True):
        assert clean_list.id == tagged_list.id
        for expected, hypothesis in zip(clean_list.hypotheses, tagged_list.hypotheses, strict=True):
            assert hypothesis.components == expected.components
            assert replace(hypothesis, text="") == replace(expected, text="")
