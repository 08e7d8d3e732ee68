"""Bundles with an imported model in the commands: every way gives the numbers of the plain one."""

from __future__ import annotations

import json
import random

import pytest

from rescorer.jobs.files import RescorerLoader
from rescorer.pipeline import Rescorer
from rescorer.scoring.options import RescoreOptions
from rescorer.text import Normaliser, NormaliserSettings
from rescorer.types import Hypothesis, NBestList, Weights
from rescorer.units.importing import import_model, read_huggingface
from rescorer_training.recipe.bundles import BundleParts, make_bundle
from tests.support.unit_models import write_letter_model

pytest.importorskip("tokenizers")
WORDS = ["the", "old", "man", "sat", "by", "a", "gate"]
WEIGHTS = Weights("default", {"acoustic": 1.0}, {"mixture": 0.1})


def publish(folder, n_positions):
    """A bundle of a model that reads so many letters."""
    source = write_letter_model(folder / "llama")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"max_position_embeddings": n_positions}))
    import_model(read_huggingface(source), folder / "units", [("the", "old", "man")])
    (folder / "valid.txt").write_text("the old man\n")
    parts = {
        "ngrams": {}, "networks": {}, "units": {"llm": folder / "units"}, "tests": {}, "weights": WEIGHTS,
        "validation": folder / "valid.txt", "normaliser": Normaliser(NormaliserSettings.raw()),
    }  # fmt: skip
    make_bundle(BundleParts("toy", 1, **parts), folder / "toy" / "1")
    return folder / "toy" / "1"


def write_lists(path, n_lists, max_words=9):
    """Write lists whose contexts come again and again."""
    draw = random.Random(5)
    contexts = [" ".join(draw.choices(WORDS, k=k)) for k in (3, 5, 8)]
    with path.open("w") as stream:
        for i in range(n_lists):
            texts = [" ".join(draw.choices(WORDS, k=draw.randint(0, max_words))) for _ in range(6)]
            hypotheses = [{"text": text, "scores": {"acoustic": -k}} for k, text in enumerate(texts)]
            record = {"id": f"u{i}", "context": contexts[i % 3], "reference": texts[0]}
            stream.write(json.dumps(record | {"hypotheses": hypotheses}) + "\n")
    return path


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return publish(tmp_path_factory.mktemp("wide"), 512)


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """A bundle of a model that reads 40 letters."""
    return publish(tmp_path_factory.mktemp("short"), 40)


def test_shards_give_the_bytes_of_the_plain_command(run, bundle, tmp_path):
    lists, fixed = write_lists(tmp_path / "in.jsonl", 24), ("--bundle", bundle, "--batch-words", 200, "-q")
    plain, out = tmp_path / "plain.jsonl", tmp_path / "out"
    assert run("rescore", lists, "-o", plain, *fixed)[0] == 0
    code, planned, err = run(
        "rescore", lists, "-o", tmp_path / "none", "--plan", "--plan-lists", 4, "--json", *fixed
    )
    assert (code, json.loads(planned)["lists"]) == (0, 24), err
    assert not (tmp_path / "none").exists()
    assert run("rescore", lists, "-o", out, "--shards", 3, "--plan-only", *fixed)[0] == 0
    for shard in (2, 0, 1):  # each loads the models again, as another process would
        assert run("rescore", lists, "-o", out, "--shard", shard, *fixed)[0] == 0
    assert run("shards", "merge", out, "-o", tmp_path / "merged.jsonl")[0] == 0
    assert (tmp_path / "merged.jsonl").read_bytes() == plain.read_bytes()
    whole = tmp_path / "whole.jsonl"
    assert run("rescore", lists, "-o", whole, "--bundle", bundle, "-q")[0] == 0
    for one, other in zip(read(plain), read(whole), strict=True):
        assert [h["components"] for h in one["hypotheses"]] == [
            pytest.approx(h["components"], abs=1e-3) for h in other["hypotheses"]
        ]


def test_scores_of_files_do_not_depend_on_what_was_scored_before(bundle):
    rescorer = RescorerLoader(bundle, RescoreOptions())().rescorer
    for number in range(3):  # cached vectors differ from others in their last digits
        rescorer.rescore(NBestList(str(number), (Hypothesis("the"),), {"acoustic": (0.0,)}, context="a man"))
    assert len(rescorer.models["llm"].scorer.context_cache) == 0


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_command_says_that_lists_are_too_long(run, short, tmp_path):
    lists = write_lists(tmp_path / "in.jsonl", 12)
    code, _, err = run("rescore", lists, "-o", tmp_path / "out.jsonl", "--bundle", short, "--json")
    summary = json.loads(err.splitlines()[-1])
    n_long = sum(record.get("degradation") == "length" for record in read(tmp_path / "out.jsonl"))
    assert (code, summary["too_long"]) == (0, n_long)
    assert n_long > 0
    message = f"{n_long} of 12 lists are too long for a language model"
    assert message in err
    for command in ("evaluate", "explain"):
        code, _, err = run(command, lists, "--bundle", short)
        assert message in err, err
        assert "llm reads 40 pieces of words" in err


def test_texts_that_are_too_long_have_no_scores_by_the_model(run, short, tmp_path):
    long, other = " ".join(WORDS * 3), "the old man"
    scores = Rescorer.load(short).score_text([long, other])
    assert [list(one.log_probs) for one in scores] == [[], ["llm"]]
    (tmp_path / "text").write_text(f"{other}\n{long}\n")
    code, out, err = run("score", tmp_path / "text", "--bundle", short, "--sentences", "--json")
    first, second, totals = map(json.loads, out.splitlines())
    assert (code, list(first["log_prob"]), second["log_prob"], totals["perplexity"]) == (0, ["llm"], {}, {})
    assert "has sentences that are too long for llm (llm reads 40 pieces of words)" in err
