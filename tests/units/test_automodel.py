"""Models that transformers runs: how they are read, and which are refused.

Most tests use small networks with transformers' interface. Where transformers itself is installed, which CI
does not do, further tests compare its families with its own scores.
"""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from rescorer import progress
from rescorer.errors import BundleError, ConfigError
from rescorer.trie import build_trie
from rescorer.units import automodel
from rescorer.units.automodel import AutoDecoder, AutoModelConfig, measure_difference, read_automodel
from rescorer.units.files import load_unit_model
from rescorer.units.importing import import_model, read_huggingface, score_alone
from rescorer.units.model import MAX_DIFFERENCE, DecoderScorer
from rescorer_training.cli.imports import print_import
from tests.support.fake_transformers import N_POSITIONS, N_UNITS, SIZE, FakeModel
from tests.support.unit_models import letters_json

SENTENCES = [("the", "cat", "sat"), ("a", "dog", "ran", "on"), ("the", "dog", "sat", "on", "the", "cat")]
VERSIONS = {"transformers": "5.0", "torch": "2.6"}


def fake_decoder(kind, reading, **values):
    config = AutoModelConfig({"model_type": f"fake-{kind}", **values}, N_UNITS, SIZE, reading=reading)
    return AutoDecoder(config, FakeModel.built(config.model, {}))


@pytest.fixture
def fake(monkeypatch):
    """Fake networks instead of those of transformers, which counts as installed."""
    monkeypatch.setattr(automodel, "build_model", FakeModel.built)
    monkeypatch.setattr(automodel, "installed_versions", lambda: VERSIONS)
    monkeypatch.setattr("rescorer.units.importing.is_installed", lambda: True)


def write_folder(folder, **values):
    """Write the folder of a model, as transformers saves it."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(values))
    (folder / "tokenizer.json").write_text(letters_json())
    save_file({"embedding": torch.zeros(N_UNITS, SIZE)}, folder / "model.safetensors")
    return folder


texts = st.lists(st.integers(0, N_UNITS - 1).map(str), max_size=9).map(tuple)
batches = st.lists(st.tuples(texts, st.one_of(st.just(()), texts)), min_size=1, max_size=8)


@pytest.mark.parametrize(
    ("kind", "reading"),
    [
        ("attention", "tree"),
        ("window", "tree"),
        ("states", "padded"),
        ("attention", "padded"),
        ("crowd", "alone"),
    ],
)
@settings(max_examples=15)
@given(batch=batches, start=st.sampled_from([0, None]), end=st.sampled_from([1, None]))
def test_every_reading_gives_the_scores_of_one_text_at_a_time(kind, reading, batch, start, end):
    decoder = fake_decoder(kind, reading)
    hypotheses, contexts = zip(*batch, strict=True)
    trie = build_trie(hypotheses, contexts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(automodel.BLOCK_NODES, "cpu", 4)
        patch.setitem(automodel.BATCH_UNITS, "cpu", 12)
        found = DecoderScorer(decoder, start, end, 0).score(trie).sum_paths(trie)
    for (text, context), log_prob in zip(batch, found, strict=True):
        ends = [] if end is None else [end]
        units = [*([] if start is None else [start]), *map(int, context), *map(int, text), *ends]
        n_scored = min(len(text) + len(ends), len(units) - 1)
        expected = decoder.sequence_log_probs(units)[-n_scored:].sum() if n_scored > 0 else 0.0
        assert log_prob == pytest.approx(float(expected), abs=1e-4)


@pytest.mark.parametrize("reading", ["tree", "padded", "alone"])
def test_texts_beyond_the_table_of_positions_do_not_disturb_others(reading):
    decoder = fake_decoder("attention", reading)
    decoder.config = replace(decoder.config, context_length=N_POSITIONS, positions="table")
    trie = build_trie([("3", "4"), ("3", *["5"] * N_POSITIONS)])
    found = DecoderScorer(decoder, 0, 1, 0).score(trie).sum_paths(trie)
    assert found[0] == pytest.approx(float(decoder.sequence_log_probs([0, 3, 4, 1]).sum()), abs=1e-4)
    assert np.isfinite(found[1])


@pytest.mark.parametrize("reading", ["tree", "padded", "alone"])
def test_a_batch_says_how_far_it_is(monkeypatch, reading):
    steps: list[int] = []
    task = progress.ProgressTask()
    task.advance = steps.append

    def show(description, unit, total):
        steps.append(-total)
        return nullcontext(task)

    monkeypatch.setattr(progress, "_display", show)
    monkeypatch.setattr(automodel, "BATCH_UNITS", {"cpu": 4})
    monkeypatch.setattr(automodel, "BLOCK_NODES", {"cpu": 4})
    trie = build_trie([("3", "4"), ("3", "5", "6")])
    DecoderScorer(fake_decoder("attention", reading), 0, 1, 0).score(trie)
    assert len(steps) > 2
    assert sum(steps) == 0


@pytest.mark.parametrize(
    ("kind", "reading"), [("attention", "tree"), ("window", "tree"), ("states", "padded"), ("crowd", "alone")]
)
@pytest.mark.usefixtures("fake")
def test_the_first_exact_reading_is_chosen(tmp_path, kind, reading):
    folder = write_folder(tmp_path / "m", model_type=f"fake-{kind}", dtype="bfloat16")
    config, _ = read_automodel(folder)
    assert (config.reading, config.versions) == (reading, VERSIONS)
    assert config.model == {"model_type": f"fake-{kind}"}
    assert (config.positions, config.context_length) == ("table", N_POSITIONS)
    assert (config.vocabulary_size, config.embedding_size) == (N_UNITS, SIZE)


@pytest.mark.usefixtures("fake")
def test_networks_that_look_ahead_are_refused(tmp_path):
    folder = write_folder(tmp_path / "m", model_type="fake-both")
    with pytest.raises(BundleError, match=r"tree: differs by .*; padded: .*; alone: differs by .* nats"):
        read_automodel(folder)


def boolean_masks(decoder, tree, nodes):
    """The masks of ``AutoDecoder`` with the wrong type."""
    return make_masks(decoder, tree, nodes) == 0


def masks_without_windows(decoder, tree, nodes):
    """The masks of ``AutoDecoder`` for networks without windows."""
    masks = make_masks(decoder, tree, nodes)
    first, last = tree.first[nodes], tree.last[nodes]
    seen = torch.from_numpy((first <= first[:, None]) & (first[:, None] <= last))
    full = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)[None, None]
    return dict.fromkeys(masks, full) if isinstance(masks, dict) else full


make_masks = AutoDecoder._masks


@pytest.mark.parametrize(
    ("masks", "values"),
    [
        (boolean_masks, {"model_type": "fake-attention"}),
        (masks_without_windows, {"model_type": "fake-window"}),
        (masks_without_windows, {"model_type": "fake-window", "sliding_window": 40}),
    ],
)
@pytest.mark.usefixtures("fake")
def test_wrong_masks_are_found_out(tmp_path, monkeypatch, masks, values):
    folder = write_folder(tmp_path / "m", **values)
    assert read_automodel(folder)[0].reading == "tree"
    monkeypatch.setattr(AutoDecoder, "_masks", masks)
    assert read_automodel(folder)[0].reading == "padded"


@pytest.mark.usefixtures("fake")
def test_other_versions_are_checked_again(tmp_path, monkeypatch):
    config, tensors = read_automodel(write_folder(tmp_path / "m", model_type="fake-attention"))
    monkeypatch.setattr(automodel, "installed_versions", lambda: VERSIONS | {"transformers": "6.0"})
    automodel.load_decoder(config, tensors)
    monkeypatch.setattr(AutoDecoder, "_masks", boolean_masks)
    with pytest.raises(BundleError, match=r"with transformers 6.0, .* unlike with transformers 5.0"):
        automodel.load_decoder(config, tensors)
    monkeypatch.setattr(automodel, "installed_versions", lambda: VERSIONS)
    automodel.load_decoder(config, tensors)


@pytest.mark.parametrize(("kind", "told"), [("attention", "computed once"), ("states", "padded: slower")])
@pytest.mark.usefixtures("fake")
def test_a_folder_is_imported_and_loaded(tmp_path, capsys, kind, told):
    pytest.importorskip("tokenizers")
    source = write_folder(tmp_path / "m", model_type=f"fake-{kind}")
    found = import_model(read_huggingface(source), tmp_path / "units", SENTENCES)
    print_import(found, {}, tmp_path / "units")
    output = capsys.readouterr().out
    assert "run by transformers 5.0" in output
    assert told in output
    config = json.loads((tmp_path / "units" / "config.json").read_text())
    assert config["decoder"]["runtime"] == "transformers"
    assert {path.name for path in (tmp_path / "units").iterdir()} == {
        "config.json", "model.safetensors", "tokenizer.json"
    }  # fmt: skip
    model, trie = load_unit_model(tmp_path / "units"), build_trie(SENTENCES)
    expected = [score_alone(model, found.config, words) for words in SENTENCES]
    scores = model.score(trie, {"r": np.eye(SIZE)})
    np.testing.assert_allclose(scores.sum_paths(trie), expected, atol=1e-3)
    assert scores.encodings["r"].shape == (len(SENTENCES), SIZE)
    for dtype in ("bfloat16", "int8"):
        rough = load_unit_model(tmp_path / "units", dtype=dtype).score(trie).sum_paths(trie)
        np.testing.assert_allclose(rough, expected, rtol=0.1)
    with pytest.raises(ConfigError, match="dtype is 'half'"):
        load_unit_model(tmp_path / "units", dtype="half")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"runtime": "ollama"}, "runtime is 'ollama'; expected 'transformers'"),
        ({"reading": "twice"}, "reading is 'twice'"),
        ({"embedding_size": 0}, "embedding_size is 0"),
        ({"model": {"num_layers": 10**9}}, "'num_layers' is 1,000,000,000"),
        ({"model": {"attention_types": [[["local"], 10**9]]}}, "'attention_types' is 1,000,000,000"),
        ({"model": {"text_config": {"attn_implementation": "hub/kernel"}}}, "'attn_implementation' is not"),
        ({"model": {"auto_map": {}}}, "'auto_map' is not expected"),
        ({"code": "x"}, "unexpected keyword argument 'code'"),
    ],
)
@pytest.mark.usefixtures("fake")
def test_refuses_damaged_folders(tmp_path, change, message):
    pytest.importorskip("tokenizers")
    source = write_folder(tmp_path / "m", model_type="fake-attention")
    import_model(read_huggingface(source), tmp_path / "units", SENTENCES)
    path = tmp_path / "units" / "config.json"
    config = json.loads(path.read_text())
    config["decoder"].update(change)
    path.write_text(json.dumps(config))
    with pytest.raises(BundleError, match=message):
        load_unit_model(tmp_path / "units")


def test_names_the_cure_where_transformers_is_missing_or_old(tmp_path, monkeypatch):
    folder = write_folder(tmp_path / "m", model_type="phi")
    monkeypatch.setattr("rescorer.units.importing.is_installed", lambda: False)
    with pytest.raises(BundleError, match=r"'phi' has no runtime here.*pip install 'rescorer\[hf\]'"):
        read_huggingface(folder)
    automodel.import_transformers.cache_clear()
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ConfigError, match=r"run by the package transformers: pip install 'rescorer\[hf\]'"):
        read_automodel(folder)
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(__version__="4.46.3"))
    with pytest.raises(ConfigError, match=r"4\.46\.3 takes masks in another way; expected 4\.57"):
        read_automodel(folder)


# From here on, with transformers itself.

NAMES = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
USUAL = {
    **NAMES,
    "vocab_size": N_UNITS,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
SHARED = {**USUAL, "num_key_value_heads": 2}
WINDOWS = {**SHARED, "sliding_window": 4, "num_hidden_layers": 4}
SMALL = {**NAMES, "vocab_size": N_UNITS, "hidden_size": 16, "num_hidden_layers": 2}
GPT = {**NAMES, "vocab_size": N_UNITS, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 64}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
FAMILIES = {
    "phi": ("tree", USUAL),
    "phi3": ("tree", SHARED),
    "phi3 window": ("tree", WINDOWS),
    "gptj": ("tree", {**GPT, "rotary_dim": 4}),
    "olmo2": ("tree", SHARED),
    "olmo3": ("tree", WINDOWS),
    "granite": ("tree", {**SHARED, "logits_scaling": 2.0, "embedding_multiplier": 3.0}),
    "stablelm": ("tree", SHARED),
    "cohere": ("tree", {**SHARED, "logit_scale": 0.25}),
    "cohere2": ("tree", WINDOWS),
    "gemma2": ("tree", {**WINDOWS, "head_dim": 8}),
    "gemma2 wide": ("tree", {**SHARED, "head_dim": 8, "sliding_window": 40}),
    "gemma3_text": ("tree", {**WINDOWS, "head_dim": 8, "num_hidden_layers": 6}),
    "gemma3": (
        "tree",
        {
            "text_config": {**SHARED, "head_dim": 8, "sliding_window": 40, "num_hidden_layers": 6},
            "vision_config": {"hidden_size": 12, "intermediate_size": 16, "num_hidden_layers": 1},
        },
    ),
    "starcoder2": ("tree", WINDOWS),
    "falcon": ("tree", {**SMALL, "num_attention_heads": 4, "alibi": False}),
    "mixtral": ("tree", {**SHARED, **EXPERTS}),
    "gpt_oss": ("tree", {**WINDOWS, **EXPERTS, "head_dim": 8}),
    "gpt_neo": (
        "padded",
        {
            **NAMES,
            "vocab_size": N_UNITS,
            "hidden_size": 16,
            "num_layers": 2,
            "num_heads": 4,
            "max_position_embeddings": 64,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 4,
        },
    ),
    "mpt": ("padded", {**NAMES, "vocab_size": N_UNITS, "d_model": 16, "n_heads": 4, "n_layers": 2}),
    "bloom": ("padded", {**SMALL, "n_head": 4}),
    "rwkv": ("padded", {**SMALL, "num_hidden_layers": 8, "attention_hidden_size": 16}),
    "mamba": ("padded", {**SMALL, "state_size": 4}),
    "mamba2": (
        "padded",
        {**SMALL, "state_size": 4, "num_heads": 4, "head_dim": 8, "n_groups": 1, "chunk_size": 4},
    ),
    "lfm2": ("padded", {**SHARED, "layer_types": ["conv", "full_attention"]}),
    "falcon_h1": (
        "padded",
        {**SHARED, "mamba_d_ssm": 32, "mamba_d_state": 4, "mamba_n_heads": 4, "mamba_d_head": 8},
    ),
}


@pytest.fixture(scope="module")
def peer():
    """The package transformers."""
    pytest.importorskip("transformers", reason="transformers is not installed: pip install 'rescorer[hf]'")
    automodel.import_transformers.cache_clear()
    return automodel.import_transformers()


def write_peer(peer, folder, name, values):
    """Write a random model of a family."""
    torch.manual_seed(1)
    config = peer.CONFIG_MAPPING[name.split()[0]].from_dict(values)
    model = peer.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for parameter in model.parameters():
        is_matrix = parameter.dim() > 1
        torch.nn.init.normal_(parameter, mean=0.0 if is_matrix else 1.0, std=0.3 if is_matrix else 0.2)
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(letters_json())
    return folder


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FAMILIES)
def test_scores_are_those_of_transformers(peer, tmp_path, capfd, name):
    reading, values = FAMILIES[name]
    folder = write_peer(peer, tmp_path / "m", name, values)
    capfd.readouterr()
    found = import_model(read_huggingface(folder), tmp_path / "units", SENTENCES)
    assert found.config.decoder.reading == reading
    assert found.check.max_difference < 1e-5
    model = load_unit_model(tmp_path / "units")
    assert measure_difference(model.scorer.decoder) < 1e-5
    trie = build_trie(SENTENCES)
    scores = model.score(trie).sum_paths(trie)
    assert capfd.readouterr() == ("", "")
    network = peer.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for words, log_prob in zip(SENTENCES, scores, strict=True):
        ends = [] if found.config.end is None else [found.config.end]
        units = torch.tensor([[*found.config.start, *model.divider.divide_text(words), *ends]])
        log_probs = network(units[:, :-1], use_cache=False).logits.log_softmax(dim=-1)
        expected = log_probs.gather(2, units[:, 1:, None]).sum().item()
        assert log_prob == pytest.approx(expected, abs=3e-4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_wrong_masks_of_transformers_are_found_out(peer, tmp_path, monkeypatch):
    folder = write_peer(peer, tmp_path / "gemma2", *(("gemma2", FAMILIES["gemma2 wide"][1])))
    config, tensors = read_automodel(folder)
    monkeypatch.setattr(AutoDecoder, "_masks", masks_without_windows)
    assert read_automodel(folder)[0].reading == "padded"
    folder = write_peer(peer, tmp_path / "phi", "phi", USUAL)
    config, tensors = read_automodel(folder)
    assert config.reading == "tree"
    network = automodel.build_model(config.model, tensors)
    network.set_attn_implementation("eager")
    assert measure_difference(AutoDecoder(config, network)) < 1e-5
    monkeypatch.setattr(AutoDecoder, "_masks", boolean_masks)
    assert measure_difference(AutoDecoder(config, network)) > 100 * MAX_DIFFERENCE


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_refuses_what_transformers_cannot_read(peer, tmp_path):
    folder = write_peer(peer, tmp_path / "bert", "bert", USUAL)
    with pytest.raises(BundleError, match="no way of reading many texts gives the scores of one"):
        read_automodel(folder)
    folder = write_peer(peer, tmp_path / "phi", "phi", USUAL)
    config, tensors = read_automodel(folder)
    for changes, message in [
        ({"vocab_size": 10**7}, "describes .* parameters, but the file of weights has only"),
        ({"num_hidden_layers": 10**4}, "describes 10,000 layers"),
        ({"hidden_act": "mish2"}, "cannot read this phi model: "),
        ({"num_hidden_layers": 1}, "tensors are not read"),
        ({"model_type": "fi"}, "'fi' is not known to transformers"),
    ]:
        with pytest.raises(BundleError, match=message):
            automodel.build_model({**config.model, **changes}, tensors)
    name = next(iter(tensors))
    with pytest.raises(BundleError, match=r"parameters, but|tensors are missing"):
        automodel.build_model(config.model, {key: value for key, value in tensors.items() if key != name})
    changed = replace(config, versions={"transformers": "4.57.0"})
    assert measure_difference(automodel.load_decoder(changed, tensors)) < 1e-5
