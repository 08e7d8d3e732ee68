"""Importing models: choices by text, checks, folders and bundles, up to rescored lists."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
from dataclasses import replace

import numpy as np
import pytest
from safetensors import SafetensorError
from typer.testing import CliRunner

from rescorer import Hypothesis, NBestList, Phrase, Rescorer, Utterance, Weights
from rescorer.cli.program import app
from rescorer.client import Client
from rescorer.errors import BundleError, ConfigError, InputError
from rescorer.evaluation.scored_lists import load_cached_rescorer
from rescorer.formats.jsonlines import encode_ranking
from rescorer.models.bundle import Composition, read_bundle
from rescorer.safe_input import Folder
from rescorer.scoring.batch import plan
from rescorer.text import Normaliser, NormaliserSettings
from rescorer.trie import WordEncoder, build_trie
from rescorer.types import Calibration, ConfidenceMap
from rescorer.units import importing, tokens
from rescorer.units.cache import use_imported
from rescorer.units.files import UnitConfig, load_unit_model, make_model, read_unit_config
from rescorer.units.importing import check_precisions, import_model, read_huggingface, score_alone
from rescorer.units.prompts import Prompt
from rescorer.units.tokens import JsonTokenizer
from rescorer.weights import weights_to_dict
from rescorer_training.evaluation.perplexity import fit_mixture, load_models, perplexity, score_tokens
from rescorer_training.ngram.estimate import NGramOptions, train_ngram
from rescorer_training.recipe.bundles import BundleParts, make_bundle
from tests.support.list_lines import record, write
from tests.support.servers import run_server
from tests.support.tiny_rerankers import add_reranker, random_reranker
from tests.support.unit_models import PEER_MODELS, write_joining_model, write_letter_model

RAW = Normaliser(NormaliserSettings.raw())
SENTENCES = [("the", "cat", "sat"), ("a", "dog", "ran", "on"), ("the", "dog", "sat", "on", "the", "cat")]
ACOUSTIC = {"acoustic": 1.0}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A folder that transformers saved, with a tokenizer of letters."""
    pytest.importorskip("tokenizers")
    return write_letter_model(tmp_path_factory.mktemp("source") / "llama")


@pytest.fixture(scope="module")
def imported(source, tmp_path_factory):
    folder = tmp_path_factory.mktemp("imported") / "units"
    return folder, import_model(read_huggingface(source), folder, SENTENCES)


def test_chooses_the_start_with_the_lowest_perplexity_and_no_end_that_says_nothing(imported):
    _, found = imported
    assert [one.value for one in found.starts] == sorted(one.value for one in found.starts)
    assert found.config.start == (found.starts[0].unit,)
    assert found.config.end == found.ends[0].unit
    assert {one.name for one in found.starts} >= {"<s>", "</s>"}
    assert found.check.max_difference < 1e-4


def test_the_folder_scores_like_one_text_at_a_time(imported):
    folder, found = imported
    model = load_unit_model(folder)
    trie = build_trie(SENTENCES)
    expected = [score_alone(model, found.config, words) for words in SENTENCES]
    np.testing.assert_allclose(model.score(trie).sum_paths(trie), expected, atol=1e-3)
    bold = load_unit_model(folder, dtype="bfloat16").score(trie).sum_paths(trie)
    np.testing.assert_allclose(bold, expected, rtol=0.02)


def test_the_network_is_made_once_for_all_candidates(source, tmp_path, monkeypatch):
    made = []

    def make(*args, **options):
        made.append(make_model(*args, **options))
        return made[-1]

    monkeypatch.setattr(importing, "make_model", make)
    found = import_model(read_huggingface(source), tmp_path / "units", SENTENCES)
    assert len(found.starts) > 1
    assert len(made) == 2  # again with scaled channels


def test_a_process_reads_a_tokenizer_once(imported, bundle, monkeypatch):
    read = []
    monkeypatch.setattr(tokens, "JsonTokenizer", lambda *args: read.append(args[1]) or JsonTokenizer(*args))
    rescorer = Rescorer.load(bundle)
    assert read == [str(bundle / "llm" / "tokenizer.json")]
    rescorer.rescore(LIST)
    read.clear()
    check_precisions(imported[0], SENTENCES)
    assert len(read) == 1


def test_lower_precisions_are_compared_with_float32(imported):
    folder, _ = imported
    found = check_precisions(folder, SENTENCES)
    assert set(found) <= {"bfloat16", "int8"}
    assert "bfloat16" in found
    for one in found.values():
        assert 0 < one.mean_difference <= one.max_difference < 0.2
        assert (one.n_sentences, one.changed <= 3) == (3, True)


def test_takes_named_units_and_refuses_unknown_ones(source, tmp_path):
    foreign = read_huggingface(source)
    found = import_model(foreign, tmp_path / "named", SENTENCES, start="<s>", end="</s>")
    assert (found.config.start, found.config.end) == ((0,), 1)
    bare = import_model(foreign, tmp_path / "bare", SENTENCES, start="none", end="none")
    assert (bare.config.start, bare.config.end) == ((), None)
    with pytest.raises(ConfigError, match="--end is '<end>', which is not a unit of the tokenizer"):
        import_model(foreign, tmp_path / "other", SENTENCES, end="<end>")
    with pytest.raises(ConfigError, match="no sentences"):
        import_model(foreign, tmp_path / "none", [])
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("failing", ["save_file", "json"])
def test_a_failed_import_leaves_nothing_and_can_be_repeated(source, tmp_path, monkeypatch, failing):
    def fail(*args, **options):
        if failing == "json":
            raise OSError(errno.ENOSPC, "No space left on device")
        args[1].write_bytes(b"half")
        raise SafetensorError("I/O error: No space left on device")

    target = "rescorer.units.importing.save_file" if failing == "save_file" else "pathlib.Path.write_text"
    foreign = read_huggingface(source)
    with monkeypatch.context() as patched:
        patched.setattr(target, fail)
        with pytest.raises(OSError, match="No space left on device"):
            import_model(foreign, tmp_path / "units", SENTENCES)
    assert not list(tmp_path.iterdir())
    import_model(foreign, tmp_path / "units", SENTENCES)
    load_unit_model(tmp_path / "units")


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("config.json", {"start": [999]}, "start is .*; expected units below 61"),
        ("config.json", {"text": "lower"}, "text is 'lower'"),
        ("config.json", {"new": 1}, "unknown 'new'"),
        ("config.json", {"source": [1]}, "source is not an object"),
        ("config.json", {"decoder": None}, "'decoder' or 'start' is missing"),
        ("tokenizer.json", None, "no tokenizer"),
        ("model.safetensors", None, "model.safetensors"),
    ],
)
def test_refuses_damaged_folders(imported, tmp_path, file, change, message):
    folder = tmp_path / "units"
    shutil.copytree(imported[0], folder)
    if change is None:
        (folder / file).unlink()
    else:
        (folder / file).write_text(json.dumps(json.loads((folder / file).read_text()) | change))
    with pytest.raises(BundleError, match=message):
        load_unit_model(folder)


def load_config(folder):
    """The configuration of an imported model."""
    return UnitConfig.from_dict(json.loads((folder / "config.json").read_text()), str(folder))


def publish(folder, model, **parts):
    """Publish a bundle ``toy/1`` with an imported model, ``llm``."""
    folder.mkdir(exist_ok=True)
    text = folder / "text"
    text.write_text("".join(f"{' '.join(words)}\n" for words in SENTENCES) * 4)
    parts = {
        "ngrams": {}, "networks": {}, "units": {"llm": model}, "tests": {}, "validation": text,
        "normaliser": RAW, "weights": Weights("w", ACOUSTIC), **parts,
    }  # fmt: skip
    make_bundle(BundleParts("toy", 1, **parts), folder / "toy" / "1")
    return folder / "toy" / "1"


@pytest.fixture(scope="module")
def arpa(tmp_path_factory):
    """An n-gram of the sentences."""
    folder = tmp_path_factory.mktemp("ngram")
    (folder / "text").write_text("".join(f"{' '.join(words)}\n" for words in SENTENCES) * 4)
    train_ngram([folder / "text"], RAW, folder / "m.arpa", NGramOptions(2))
    return folder / "m.arpa"


@pytest.fixture(scope="module")
def bundle(imported, arpa, tmp_path_factory):
    """A bundle with an n-gram and an imported model."""
    return publish(tmp_path_factory.mktemp("bundle"), imported[0], ngrams={"ngram": arpa})


LLM_ONLY = Weights("w", ACOUSTIC, {"llm": 1.0})
LIST = NBestList("l", (Hypothesis("the cat sat"), Hypothesis("a zebra sat")), {"acoustic": (-5.0, -4.0)})


def test_lists_are_rescored_with_a_weight_of_its_own(bundle):
    rescorer = Rescorer.load(bundle)
    assert rescorer.bundle.manifest["schema"] == 4
    assert rescorer.bundle.open_vocabulary == {"llm"}
    assert rescorer.bundle.weights["default"].lm == {"mixture": 1.0, "llm": 0.0}
    (answer,) = rescorer.rescore(LIST, Weights("w", {"acoustic": 1.0}, {"mixture": 1.0, "llm": 0.5}))
    for hypothesis in answer.hypotheses:
        parts = hypothesis.components
        total = parts["acoustic"] + parts["mixture"] + 0.5 * parts["llm"]
        assert hypothesis.total == pytest.approx(total, abs=1e-5)
    assert {one.text: one.components["oov"] for one in answer.hypotheses}["a zebra sat"] == 1.0
    (text,) = rescorer.score_text("a zebra sat")
    assert len(text.log_probs["llm"]) == 4
    assert text.unknown == (False, True, False)


MIXED = Weights("w", ACOUSTIC, {"mixture": 1.0, "llm": 0.5}, mixture={"ngram": 0.4, "llm": 0.6})
SPOKEN = (Utterance("a zebra ran"), Utterance("the cat"))
TALK = replace(LIST, context="the dog and", previous=SPOKEN)


def mix_alone(rescorer, text, context=""):
    """ln P of each word by the mixture, computed from the models' own."""
    (found,) = rescorer.score_text(text, context, MIXED)
    parts = (math.log(share) + np.array(found.log_probs[name]) for name, share in MIXED.mixture.items())
    return np.logaddexp(*parts), np.array(found.log_probs["mixture"])


def test_it_is_mixed_word_by_word(bundle):
    rescorer = Rescorer.load(bundle)
    (alone,), (answer,) = rescorer.rescore(LIST, LLM_ONLY), rescorer.rescore(LIST, MIXED)
    totals = {one.text: one.components["llm"] for one in alone.hypotheses}
    for one in answer.hypotheses:
        expected, found = mix_alone(rescorer, one.text)
        np.testing.assert_allclose(found, expected, atol=1e-9)
        assert one.components["mixture"] == pytest.approx(expected.sum(), abs=1e-6)
        assert one.components["llm"] == pytest.approx(totals[one.text], abs=1e-5)  # as without the mixture
        assert one.components["oov"] == one.text.count("zebra")
    shares = [{"ngram": 1.0, "llm": 0.0}, {"ngram": 0.4, "llm": 0.6}]
    mixed = rescorer.mixture_log_probs([LIST], shares)
    columns = [[one.components[name] for one in answer.hypotheses] for name in ("ngram", "mixture")]
    ranked = [[one.text for one in answer.hypotheses].index(each.text) for each in LIST.hypotheses]
    np.testing.assert_allclose(mixed, np.array(columns)[:, ranked], atol=1e-5)


def test_a_partial_hypothesis_has_no_end(bundle):
    rescorer = Rescorer.load(bundle)
    partial = replace(LIST, hypotheses=tuple(replace(one, partial=True) for one in LIST.hypotheses))
    (answer,) = rescorer.rescore(partial, MIXED)
    for one in answer.hypotheses:
        assert one.components["mixture"] == pytest.approx(
            mix_alone(rescorer, one.text)[0][:-1].sum(), abs=1e-6
        )


def test_caches_and_phrases_work_on_a_mixture_with_it(bundle):
    rescorer = Rescorer.load(bundle)
    cached = replace(MIXED, cache=0.3)
    (plain,), (answer,) = rescorer.rescore(TALK, MIXED), rescorer.rescore(TALK, cached)
    before = {one.text: one.components for one in plain.hypotheses}
    for one in answer.hypotheses:
        change = one.components["mixture"] - before[one.text]["mixture"]
        assert one.components["cache"] == pytest.approx(change, abs=1e-6)
        assert change != 0.0
    expected = mix_alone(rescorer, "the cat sat", "the dog and")[0].sum()
    assert before["the cat sat"]["mixture"] == pytest.approx(expected, abs=1e-5)
    named = replace(TALK, hypotheses=(Hypothesis("the cat sat"), Hypothesis("a zebra kudu sat")))
    found = [rescorer.rescore(named, cached, phrases=names)[0] for names in ((), (Phrase("zebra kudu"),))]
    known, raised = (
        next(one.components for one in ranked.hypotheses if "zebra" in one.text) for ranked in found
    )
    assert raised["mixture"] > known["mixture"]  # the n-gram does not know the name
    assert raised["llm"] == pytest.approx(known["llm"], abs=1e-5)
    assert (raised["oov"], known["oov"]) == (0.0, 2.0)


def test_slots_work_on_a_mixture_with_it(imported, tmp_path):
    (tmp_path / "names").write_text("call $name now\nthe $name sat\n" * 4)
    train_ngram([tmp_path / "names"], RAW, tmp_path / "m.arpa", NGramOptions(2))
    rescorer = Rescorer.load(publish(tmp_path, imported[0], ngrams={"ngram": tmp_path / "m.arpa"}))
    phrases = (Phrase("zebra", slot="$name"),)
    (plain,), (answer,) = rescorer.rescore(LIST, MIXED), rescorer.rescore(LIST, MIXED, phrases=phrases)
    before, after = ({one.text: one.components for one in ranked.hypotheses} for ranked in (plain, answer))
    name, other = "a zebra sat", "the cat sat"
    assert after[name]["ngram"] > before[name]["ngram"]
    assert after[name]["mixture"] > before[name]["mixture"]
    assert after[name]["llm"] == pytest.approx(before[name]["llm"], abs=1e-5)
    assert after[other]["mixture"] == pytest.approx(before[other]["mixture"], abs=1e-5)


def test_servers_and_kept_scores_mix_the_same(bundle, tmp_path):
    expected = Rescorer.load(bundle).rescore(TALK, replace(MIXED, cache=0.3))[0]
    cached = load_cached_rescorer(bundle, "cpu", tmp_path / "scores", pytest.fail)
    for weights in (LLM_ONLY, MIXED, replace(MIXED, cache=0.3)):
        for _ in range(2):  # computed, and read from files
            (again,) = cached.rescore(TALK, weights)
    with run_server(bundle) as server, Client(f"127.0.0.1:{server.port}") as client:
        (served,) = client.rescore([TALK], weights=replace(MIXED, cache=0.3))
        (text,) = client.score_text(["the cat"], weights=MIXED)
    for found in (again, served):
        for one, other in zip(found.hypotheses, expected.hypotheses, strict=True):
            assert one.components == pytest.approx(other.components, abs=1e-4)
    values, _ = mix_alone(Rescorer.load(bundle), "the cat")
    assert text.log_probs["mixture"] == pytest.approx(tuple(values), abs=1e-4)


def test_explain_and_score_agree_on_the_words_of_a_mixture(imported, arpa, tmp_path):
    folder = publish(tmp_path, imported[0], ngrams={"ngram": arpa}, weights=MIXED)
    lists = write(tmp_path / "lists.jsonl", record("l", "the cat sat", "a zebra sat"))
    (tmp_path / "text").write_text("the cat sat\na zebra sat\n")
    call = CliRunner().invoke
    explained = call(app, ["explain", str(lists), "l", "--bundle", str(folder), "--json"])
    scored = call(app, ["score", str(tmp_path / "text"), "--bundle", str(folder), "--words", "--json"])
    assert (explained.exit_code, scored.exit_code) == (0, 0), (explained.stderr, scored.stderr)
    best = {one["text"]: one["components"]["mixture"] for one in json.loads(explained.stdout)[0]["best"]}
    for found in map(json.loads, scored.stdout.splitlines()[:2]):
        values = {name: np.exp(column) for name, column in found["word_log_probs"].items()}
        np.testing.assert_allclose(values["mixture"], 0.4 * values["ngram"] + 0.6 * values["llm"], rtol=1e-4)
        assert sum(found["word_log_probs"]["mixture"]) == pytest.approx(best[found["text"]], abs=1e-5)


def test_two_processes_write_the_same_bytes(bundle, tmp_path):
    texts = ("the cat sat", "a zebra sat", "the dog ran on", "a dog sat on the cat")
    lines = (record(f"l{number}", *texts[number % 3 :], texts[0]) for number in range(30))
    lists, weights = write(tmp_path / "lists.jsonl", *lines), tmp_path / "mixed.json"
    weights.write_text(json.dumps(weights_to_dict(MIXED)))
    found = []
    for workers in (1, 2):
        output = tmp_path / f"{workers}.jsonl"
        options = (
            "-o",
            output,
            "--bundle",
            bundle,
            "--weights",
            weights,
            "--batch-words",
            50,
            "--workers",
            workers,
        )
        done = CliRunner().invoke(app, ["rescore", str(lists), *map(str, options), "--quiet"])
        assert done.exit_code == 0, done.stderr
        found.append(output.read_bytes())
    assert found[0] == found[1]
    assert found[0].count(b'"mixture"') >= 30


def test_bundles_fit_its_share_with_the_others(imported, arpa, tmp_path):
    folder = publish(tmp_path, imported[0], ngrams={"ngram": arpa}, mix_units=True)
    weights, manifest = read_bundle(folder).weights["default"], read_bundle(folder).manifest
    assert weights.lm == {"mixture": 1.0}
    assert set(weights.mixture) == {"ngram", "llm"}
    models = load_models(folder, with_units=True)
    assert (set(models.models), models.shares) == ({"ngram", "llm"}, weights.mixture)
    scores = score_tokens(models.models, SENTENCES * 4)
    assert fit_mixture(scores.log_probs) == pytest.approx(weights.mixture, abs=1e-4)
    assert not scores.unknown["llm"].any()
    perplexities = manifest["measured"]["validation"]["perplexity"]
    assert perplexities["llm"] == pytest.approx(perplexity(scores.log_probs["llm"]), rel=1e-3)
    assert perplexities["mixture"] <= min(perplexities["llm"], perplexities["ngram"]) + 1e-3


def test_texts_that_are_too_long_are_mixed_without_it(bundle):
    rescorer = Rescorer.load(bundle)
    limit = replace(rescorer.bundle.units["llm"], n_positions=12)
    short = Rescorer(replace(rescorer.bundle, units={"llm": limit}), rescorer.models)
    ((answer,), (cached,)) = short.rescore(LIST, MIXED), short.rescore(TALK, replace(MIXED, cache=0.3))
    for one in (*answer.hypotheses, *cached.hypotheses):
        assert one.components["llm"] == 0.0
    assert all(one.components["mixture"] == one.components["ngram"] for one in answer.hypotheses)
    (text, fits) = short.score_text(["the cat sat on", "the"], weights=MIXED)
    assert (set(text.log_probs), set(fits.log_probs)) == ({"ngram"}, {"ngram", "llm", "mixture"})


def test_models_of_whole_texts_are_not_mixed(surface, imported, arpa, tmp_path):
    message = "mixture names the model 'llm', which reads texts as they are written"
    rescorer = Rescorer.load(publish(tmp_path, surface, ngrams={"ngram": arpa}))
    with pytest.raises(ConfigError, match=message):
        rescorer.rescore(LIST, MIXED)
    with pytest.raises(ConfigError, match="as they are written, and scores no words; it cannot be mixed"):
        publish(tmp_path / "other", surface, ngrams={"ngram": arpa}, mix_units=True)


@pytest.fixture(scope="module")
def surface(source, tmp_path_factory):
    """A folder of a model that reads texts as they are written."""
    folder = tmp_path_factory.mktemp("surface") / "units"
    import_model(read_huggingface(source), folder, [("The", "cat", "sat."), ("A", "dog.")], text="surface")
    return folder


WRITTEN = NBestList(
    "w",
    (Hypothesis("The cat, sat."), Hypothesis("the cat sat"), Hypothesis("THE CAT")),
    {"acoustic": (-5.0, -4.0, -6.0)},
    context="Yes, and",
)


def test_texts_are_scored_as_they_are_written(surface, tmp_path):
    rescorer = Rescorer.load(publish(tmp_path, surface))
    model, config = rescorer.models["llm"], load_config(surface)
    (answer,) = rescorer.rescore(WRITTEN, LLM_ONLY)
    for hypothesis in answer.hypotheses:
        words, context = tuple(hypothesis.text.split()), ("Yes,", "and")
        expected = score_alone(model, config, words, context)
        assert hypothesis.components["llm"] == pytest.approx(expected, abs=1e-3)
        assert hypothesis.components["oov"] == 0.0
    (text,) = rescorer.score_text("the cat")
    assert (text.words, text.log_probs, text.unknown) == (("the", "cat"), {}, (False, False))


def test_merging_keeps_the_text_of_the_best_writing(surface, imported, tmp_path):
    lower = Normaliser(NormaliserSettings())
    rescorer = Rescorer.load(publish(tmp_path, surface, normaliser=lower))
    (apart,) = rescorer.rescore(WRITTEN, LLM_ONLY)
    (merged,) = rescorer.rescore(WRITTEN, LLM_ONLY, merge=True)
    same = [one for one in apart.hypotheses if len(one.text.split()) == 3]
    (kept,) = [one for one in merged.hypotheses if len(one.text.split()) == 3]
    assert (kept.text, kept.components["llm"]) == (same[0].text, same[0].components["llm"])
    assert kept.total == pytest.approx(np.logaddexp(*(one.total for one in same)), abs=1e-6)


def test_models_of_canonical_and_of_written_texts_score_side_by_side(surface, imported, arpa, tmp_path):
    units = {"written": surface, "llm": imported[0]}
    normaliser = Normaliser(NormaliserSettings())
    folder = publish(tmp_path, None, ngrams={"ngram": arpa}, units=units, normaliser=normaliser)
    rescorer = Rescorer.load(folder)
    weights = Weights("w", ACOUSTIC, {"mixture": 1.0, "llm": 0.5, "written": 0.5})
    (answer,) = rescorer.rescore(WRITTEN, weights)
    assert list(answer.best.components)[:4] == ["acoustic", "ngram", "written", "llm"]
    same = [one.components for one in answer.hypotheses if len(one.text.split()) == 3]
    assert same[0]["llm"] == same[1]["llm"]
    assert same[0]["written"] != same[1]["written"]
    encoder = WordEncoder("written", np.eye(rescorer.models["written"].vector_size)[:, :4])
    (encodings,) = rescorer.encode([WRITTEN], encoder)
    assert encodings.shape == (3, 4)
    assert not np.allclose(encodings[0], encodings[1])
    (text,) = rescorer.score_text("the cat")
    assert set(text.log_probs) == {"ngram", "llm", "mixture"}
    cached = load_cached_rescorer(folder, "cpu", tmp_path / "scores", pytest.fail)
    for _ in range(2):  # computed, and read from files
        (again,) = cached.rescore(WRITTEN, weights)
        assert again == answer
    with run_server(folder) as server, Client(f"127.0.0.1:{server.port}") as client:
        (found,) = client.rescore([WRITTEN], weights=weights)
    for one, other in zip(found.hypotheses, answer.hypotheses, strict=True):
        assert one.components == pytest.approx(other.components, abs=1e-4)


def test_tokenizers_that_join_words_divide_whole_texts(tmp_path):
    folder = write_joining_model(tmp_path / "joining")
    found = import_model(read_huggingface(folder), tmp_path / "units", SENTENCES)
    assert found.config.whole
    rescorer = Rescorer.load(publish(tmp_path, tmp_path / "units"))
    assert rescorer.bundle.whole == {"llm"}
    with pytest.raises(ConfigError, match="'llm', whose tokenizer divides texts as a whole"):
        rescorer.rescore(LIST, replace(LLM_ONLY, mixture={"llm": 1.0}))
    (answer,) = rescorer.rescore(LIST, LLM_ONLY)
    for one in answer.hypotheses:
        expected = score_alone(rescorer.models["llm"], found.config, tuple(one.text.split()))
        assert one.components["llm"] == pytest.approx(expected, abs=1e-3)


def test_commands_work_without_a_mixture(surface, tmp_path):
    folder = publish(tmp_path, surface)
    lists = tmp_path / "lists.jsonl"
    record = {
        "id": "l", "reference": "the cat sat", "hypotheses": [
            {"text": "The cat, sat.", "acoustic": -5.0}, {"text": "a zebra", "acoustic": -4.0},
        ],
    }  # fmt: skip
    lists.write_text("".join(json.dumps(record | {"id": str(number)}) + "\n" for number in range(4)))
    weights = tmp_path / "w.json"
    weights.write_text(json.dumps({"streams": {"acoustic": 1.0}, "lm": {"llm": 0.1}}))
    read = ["--bundle", str(folder), "--stream", "acoustic=acoustic"]
    weighted = [*read, "--weights", str(weights)]
    for command, options in {"evaluate": weighted, "explain": ["0", *weighted], "inspect": read}.items():
        result = CliRunner().invoke(app, [command, str(lists), *options], catch_exceptions=False)
        assert result.exit_code == (command == "inspect"), result.output  # which has warnings
        assert "llm" in result.output
    explained = CliRunner().invoke(app, ["explain", str(lists), "0", *weighted, "--json"])
    (found,) = json.loads(explained.stdout)
    assert found["weights"]["llm"] == 0.1
    for one in found["best"]:
        assert one["weighted"]["llm"] == pytest.approx(0.1 * one["components"]["llm"])
        assert one["components"]["llm"] < 0
    session = [*weighted, "-o", str(tmp_path / "out.jsonl"), "--session", "speaker"]
    result = CliRunner().invoke(app, ["rescore", str(lists), *session])
    assert "changes nothing" in result.output
    assert "import 'llm' again with --prompt, add a cache" in " ".join(result.output.split())
    result = CliRunner().invoke(app, ["score", str(lists), "--bundle", str(folder)])
    assert "score whole hypotheses and no words" in str(result.exception or result.output)


def test_a_bundle_may_have_nothing_else(imported, tmp_path):
    rescorer = Rescorer.load(publish(tmp_path, imported[0]))
    (answer,) = rescorer.rescore(LIST)
    assert set(answer.best.components) == {"acoustic", "llm", "oov", "words"}
    with pytest.raises(ConfigError, match="but the bundle has no mixture; expected weights such as"):
        rescorer.rescore(LIST, Weights("w"))
    for cached in (replace(LLM_ONLY, cache=0.1), replace(LLM_ONLY, neural_cache=0.1)):
        with pytest.raises(ConfigError, match="weights have a cache, but the bundle has no mixture"):
            rescorer.rescore(replace(LIST, previous=(Utterance("a zebra"),)), cached)
    alone = Weights("w", ACOUSTIC, {"mixture": 1.0}, mixture={"llm": 1.0})
    for one in rescorer.rescore(LIST, alone)[0].hypotheses:
        expected = sum(rescorer.score_text(one.text, weights=alone)[0].log_probs["llm"])
        assert one.components["mixture"] == pytest.approx(expected, abs=1e-5)


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def short(request, source, tmp_path_factory):
    """A bundle with a model that has 40 positions, as a table or turned."""
    folder = tmp_path_factory.mktemp("short")
    shutil.copytree(PEER_MODELS / request.param, folder / "source")
    shutil.copyfile(source / "tokenizer.json", folder / "source" / "tokenizer.json")
    import_model(read_huggingface(folder / "source"), folder / "units", [*SENTENCES, ("cat",) * 20])
    return publish(folder, folder / "units")


LONG = NBestList("long", (Hypothesis("cat"), Hypothesis("the cat " * 5)), {"acoustic": (0.0, 1.0)})


def test_lists_beyond_a_table_of_positions_are_answered_without_its_model(short):
    rescorer = Rescorer.load(short)
    fits = replace(LONG, hypotheses=(Hypothesis("cat"), Hypothesis("the cat " * 4 + "the ca")))
    answers = rescorer.rescore([LONG, fits, LIST], LLM_ONLY)
    assert [one.degradation for one in answers] == ["length", "", ""]
    assert [one.components["llm"] for one in answers[0].hypotheses] == [0.0, 0.0]
    assert answers[0].best.text == "the cat " * 5
    assert all(one.components["llm"] < 0 for one in (*answers[1].hypotheses, *answers[2].hypotheses))
    line = encode_ranking(rescorer.rank_each([LONG], LLM_ONLY)[0], LLM_ONLY, "toy/1")
    assert json.loads(line)["degradation"] == "length"
    continued = replace(LIST, previous=(Utterance("the cat"),))
    line = encode_ranking(rescorer.rank_each([continued], LLM_ONLY)[0], LLM_ONLY, "toy/1")
    assert json.loads(line)["previous_unread_by"] == ["llm"]
    with run_server(short) as server, Client(f"127.0.0.1:{server.port}") as client:
        found = client.rescore([LONG, LIST, continued], weights=LLM_ONLY)
    assert [one.degradation for one in found] == ["length", "", ""]
    assert [one.previous_unread_by for one in found] == [(), (), ("llm",)]


def test_a_model_with_a_prompt_reads_the_conversation_everywhere(source, tmp_path):
    foreign, prompt = read_huggingface(source), Prompt(after_utterance=". ", max_units=16)
    import_model(foreign, tmp_path / "units", SENTENCES, prompt=prompt)
    folder = publish(tmp_path, tmp_path / "units")
    lists = [
        replace(LIST, id=name, previous=said) for name, said in (("0", ()), ("1", (Utterance("a cat"),)))
    ]
    rescorer = Rescorer.load(folder)
    assert rescorer.bundle.reads_previous == {"llm"}
    alone, after = (answer.best.components["llm"] for answer in rescorer.rescore(lists, LLM_ONLY))
    assert abs(alone - after) > 1e-3
    fresh = Rescorer.load(folder).rescore(lists[1:], LLM_ONLY)[0]
    assert fresh.best.components["llm"] == pytest.approx(after, abs=1e-4)
    assert fresh.previous_unread_by == ()
    with run_server(folder) as server, Client(f"127.0.0.1:{server.port}") as client:
        found = client.rescore(lists, weights=LLM_ONLY)
    expected = pytest.approx([alone, after], abs=1e-4)
    assert [one.best.components["llm"] for one in found] == expected


def test_any_replica_may_answer_the_next_list_of_a_conversation(source, tmp_path):
    """One server has read all of it, another one nothing; the budget is full several times."""
    prompt = Prompt(after_utterance=". ", max_units=16)
    import_model(read_huggingface(source), tmp_path / "units", SENTENCES, prompt=prompt)
    folder = publish(tmp_path, tmp_path / "units")
    said = [Utterance(" ".join(SENTENCES[n % len(SENTENCES)])) for n in range(12)]
    lists = [replace(LIST, id=str(n), previous=tuple(said[:n])) for n in range(len(said))]
    with run_server(folder) as warm, Client(f"127.0.0.1:{warm.port}") as client:
        found = [client.rescore([nbest], weights=LLM_ONLY)[0] for nbest in lists]
    for nbest, answer in list(zip(lists, found, strict=True))[-3:]:
        with run_server(folder) as cold, Client(f"127.0.0.1:{cold.port}") as client:
            (other,) = client.rescore([nbest], weights=LLM_ONLY)
        for one, same in zip(answer.hypotheses, other.hypotheses, strict=True):
            assert one.text == same.text
            n_words = len(one.text.split()) + 1
            assert one.components["llm"] == pytest.approx(same.components["llm"], abs=1e-4 * n_words)


def test_a_model_that_is_added_to_a_bundle_reads_the_conversation(source, tmp_path):
    import_model(read_huggingface(source), tmp_path / "units", SENTENCES, prompt=Prompt(max_units=16))
    added = use_imported(tmp_path / "units").added
    rescorer = Rescorer.load(Composition({"llm": added}, language="en"))
    lists = [LIST, replace(LIST, previous=(Utterance("a cat"),))]
    alone, after = (answer.best.components["llm"] for answer in rescorer.rescore(lists, LLM_ONLY))
    assert alone != pytest.approx(after, abs=1e-3)
    config = json.loads((tmp_path / "units/config.json").read_text())
    config["prompt"]["max_units"] = 8
    (tmp_path / "units/config.json").write_text(json.dumps(config))
    assert not use_imported(tmp_path / "units").added.identity.fits(added.identity)


def test_models_of_written_texts_read_utterances_as_they_are_written(source, tmp_path):
    prompt = Prompt(max_units=16)
    import_model(read_huggingface(source), tmp_path / "units", SENTENCES, text="surface", prompt=prompt)
    rescorer = Rescorer.load(publish(tmp_path, tmp_path / "units"))
    lists = [replace(LIST, previous=(Utterance(text),)) for text in ("the cat", "The cat!")]
    found = [answer.best.components["llm"] for answer in rescorer.rescore(lists, LLM_ONLY)]
    assert found[0] != pytest.approx(found[1], abs=1e-3)
    model, config = (
        rescorer.models["llm"],
        UnitConfig.from_dict(json.loads((tmp_path / "units/config.json").read_text()), ""),
    )
    for log_prob, history in zip(found, (("the", "cat", "\n"), ("The", "cat!", "\n")), strict=True):
        words = tuple(rescorer.rescore(lists, LLM_ONLY)[0].best.text.split())
        assert log_prob == pytest.approx(score_alone(model, config, words, history), abs=1e-3)


def test_a_list_too_long_to_follow_its_conversation_is_scored_without_it(source, tmp_path):
    shutil.copytree(PEER_MODELS / "gpt2", tmp_path / "source")
    shutil.copyfile(source / "tokenizer.json", tmp_path / "source" / "tokenizer.json")
    foreign = read_huggingface(tmp_path / "source")
    import_model(foreign, tmp_path / "units", SENTENCES, prompt=Prompt(max_units=12))
    rescorer = Rescorer.load(publish(tmp_path, tmp_path / "units"))
    fits = replace(LONG, hypotheses=(Hypothesis("cat"), Hypothesis("the cat " * 4 + "the ca")))
    said = replace(fits, previous=(Utterance("a cat"),))
    alone, after = rescorer.rescore([fits, said], LLM_ONLY)
    assert after.degradation == alone.degradation == ""
    assert [one.components for one in after.hypotheses] == [one.components for one in alone.hypotheses]
    assert rescorer.rescore([replace(LONG, previous=said.previous)], LLM_ONLY)[0].degradation == "length"


def test_the_base_weights_of_a_reranker_stand_in_for_it_where_its_model_cannot_read_a_list(
    short, tmp_path, run
):
    folder = shutil.copytree(short, tmp_path / "toy" / "1")
    base = Weights("base", {"acoustic": 2.0}, {"llm": 1.0}, 0.5)
    add_reranker(folder, random_reranker("r", base, 4, features=("total", "score:llm", "words")))
    calibration = Calibration(utterance=ConfidenceMap(1.0, (0.0, 1.0), (0.1, 0.9)))
    weights = Weights("w", {"acoustic": 1.0}, {"llm": 0.0}, rerankers={"r": 3.0}, calibration=calibration)
    long, fits = Rescorer.load(folder).rescore([LONG, LIST], weights)
    plain = replace(weights, streams={"acoustic": 7.0}, word=1.5, rerankers={})
    (expected,) = Rescorer.load(folder).rescore([LONG], plain)
    assert [one.text for one in long.hypotheses] == [one.text for one in expected.hypotheses]
    for found, other in zip(long.hypotheses, expected.hypotheses, strict=True):
        assert found.total == pytest.approx(other.total)
        assert found.components["reranker:r"] == 2.0 * found.components["acoustic"] + 0.5 * len(
            found.text.split()
        )
    assert (long.degradation, long.best.confidence) == ("length", None)
    assert fits.best.confidence is not None
    texts = (hypothesis.text for hypothesis in LONG.hypotheses)
    write(tmp_path / "lists.jsonl", record("long", *texts))
    code, out, err = run("explain", tmp_path / "lists.jsonl", "long", "--bundle", folder, "--weights", "r")
    assert (code, "reranker:r" in out, "score:llm" in out) == (0, True, False), err


def test_tokenizers_are_read_within_bounds(source, tmp_path):
    folder = shutil.copytree(source, tmp_path / "source")
    (folder / "tokenizer.json").unlink()
    os.mkfifo(folder / "tokenizer.json")
    with pytest.raises(BundleError, match="is a FIFO"):
        read_huggingface(folder)
    (folder / "tokenizer.json").unlink()
    with open(folder / "tokenizer.json", "wb") as stream:
        stream.truncate(65 << 20)
    with pytest.raises(BundleError, match="expected at most 67,108,864"):
        read_huggingface(folder)


def test_refuses_tokenizers_that_repeat_merges(source, monkeypatch):
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    for merges in ([["a", "b"]] * 3, ["a b"] * 3):
        tokenizer["model"] |= {"vocab": tokenizer["model"]["vocab"] | {"ab": 40}, "merges": merges}
        with pytest.raises(
            BundleError, match="x: 2 of 3 merges are repetitions of others; expected each once"
        ):
            JsonTokenizer(json.dumps(tokenizer).encode(), "x")
    monkeypatch.setattr(tokens, "MAX_STRINGS", 10)
    with pytest.raises(BundleError, match=r"has \d+ names of units; expected at most 10"):
        JsonTokenizer(json.dumps(tokenizer).encode(), "x")


def test_refuses_sentences_that_are_all_longer_than_a_model_can_read(source, tmp_path):
    message = r"more than the 40 pieces of words that the model can read.* --validation TEXT"
    with pytest.raises(ConfigError, match=message):
        import_model(read_huggingface(source), tmp_path / "units", [("cat",) * 20])


def test_a_server_limits_pieces_of_words(bundle):
    texts = [f"{letter * 999}" for letter in "yzx"]
    many = NBestList("m", tuple(map(Hypothesis, texts)), {"acoustic": (0.0, 1.0, 2.0)})
    with run_server(bundle, max_request_words=2500) as server, Client(f"127.0.0.1:{server.port}") as client:
        refused, answer = client.rescore_each([many, LIST])
        with pytest.raises(InputError, match=r"texts: .* pieces of words; expected at most 2500"):
            client.score_text("y" * 2600)
    assert isinstance(refused, InputError)
    assert "3004 pieces of words; expected at most 2500 (max_request_words)" in str(refused)
    assert answer.id == "l"


def test_batches_hold_few_pieces_of_words(bundle):
    rescorer = Rescorer.load(bundle, max_batch_words=64)
    texts = [f"{letter * 20} cat" for letter in "abcdefgh"]
    nbest = NBestList("b", tuple(map(Hypothesis, texts)), {"acoustic": (0.0,) * 8})
    prepared = rescorer.ranker.prepare(nbest, rescorer.ranker.bind())
    assert prepared.n_units > 8 * 24
    batches = list(plan([prepared], 64))
    assert len(batches) >= 4
    (whole,) = Rescorer.load(bundle).rescore(nbest)
    (parts,) = rescorer.rescore(nbest)
    assert [one.text for one in parts.hypotheses] == [one.text for one in whole.hypotheses]


def test_the_manifest_of_such_a_bundle_is_checked(bundle, tmp_path):
    folder = tmp_path / "toy" / "1"
    shutil.copytree(bundle, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"schema": 3}))
    with pytest.raises(BundleError, match="schema is 3, but models in pieces of words need 4"):
        read_bundle(folder)
    manifest["models"]["llm"]["tokenizer"] = "../tokenizer.json"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match="'tokenizer' is not one of"):
        read_bundle(folder)


def test_a_server_answers_like_the_library(bundle):
    weights = Weights("w", ACOUSTIC, {"mixture": 1.0, "llm": 0.5})
    (expected,) = Rescorer.load(bundle).rescore(LIST, weights)
    with run_server(bundle) as server, Client(f"127.0.0.1:{server.port}") as client:
        (found,) = client.rescore([LIST], weights=weights)
        (described,) = [model for model in client.get_model().language_models if model.name == "llm"]
    assert [one.text for one in found.hypotheses] == [one.text for one in expected.hypotheses]
    assert found.best.components == pytest.approx(expected.best.components, abs=1e-4)
    assert (described.kind, described.vocabulary_size) == ("units", 0)
    assert described.parameters == 5_872


def test_perplexity_is_that_of_the_members_of_the_mixture(bundle):
    assert list(load_models(str(bundle)).models) == ["ngram"]


@pytest.mark.parametrize(
    "values",
    [
        {"rotary_frequencies": ["a"]}, {"rotary_frequencies": [[1]]}, {"rotary_frequencies": [float("nan")]},
        {"query_scale": "x"}, {"query_scale": [1.0]}, {"embedding_scale": 1e308}, {"norm_epsilon": None},
        {"windows": [None]}, {"windows": "x"}, {"gated": "no"}, {"context_length": "40"},
    ],
)  # fmt: skip
def test_refuses_configurations_of_other_types(imported, tmp_path, values):
    config = json.loads((imported[0] / "config.json").read_text())
    config["decoder"] |= values
    with pytest.raises(BundleError, match="config of the decoder"):
        UnitConfig.from_dict(config, "config.json")


def test_a_folder_that_was_not_imported_is_told_so(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama", "hidden_size": 8}')
    with pytest.raises(
        BundleError, match=r"config\.json is that of .* import it first by `rescorer-train import"
    ):
        read_unit_config(Folder(tmp_path))
