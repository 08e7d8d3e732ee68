"""Decoders of transformers' families: scores of transformers itself, and errors about the rest."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from rescorer.errors import BundleError
from rescorer.safe_input import Folder, read_tensor_header
from rescorer.units.decoders import Decoder
from rescorer.units.huggingface import read_folder

MODELS = Path(__file__).parents[1] / "golden" / "units"
PEER = json.loads((MODELS / "scores.json").read_text())["models"]


@pytest.mark.parametrize("name", PEER)
def test_scores_are_those_of_transformers(name):
    decoder = Decoder(*read_folder(MODELS / name))
    for units, expected in zip(PEER[name]["units"], PEER[name]["log_probs"], strict=True):
        np.testing.assert_allclose(decoder.sequence_log_probs(units), expected, atol=2e-5)
        np.testing.assert_allclose(decoder.sequence_log_probs(units, torch.float32), expected, atol=1e-4)


@pytest.fixture
def folder(tmp_path):
    return Path(shutil.copytree(MODELS / "llama", tmp_path / "llama"))


def change_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "lama"}, "model_type 'lama' has no runtime here; .*did you mean 'llama'"),
        ({"auto_map": {"AutoModel": "code.Model"}}, "needs Python code of its own"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised by gptq"),
        ({"hidden_act": "mish"}, "the activation 'mish' is not known"),
        ({"rope_parameters": {"rope_type": "new"}}, "scaled by 'new'"),
        ({"num_hidden_layers": 3}, r"layers\.2\.attention_norm\.weight is missing"),
        ({"vocab_size": 62}, r"embedding\.weight is .*61.*; expected .*62"),
        ({"num_hidden_layers": 10**9}, "layers is 1000000000"),
        ({"hidden_size": "wide"}, "hidden_size is wide; expected a whole number"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0; expected a whole number from 1"),
        ({"max_position_embeddings": None}, "context_length is None"),
        ({"tie_word_embeddings": None, "num_key_value_heads": 3}, "cannot share 3 heads"),
    ],
)
def test_refuses_configurations_that_it_cannot_read_exactly(folder, changes, message):
    change_config(folder, **changes)
    with pytest.raises(BundleError, match=message):
        read_folder(folder)


def edit_header(change):
    def edit(header, data):
        change(header)
        return json.dumps(header).encode(), data

    return edit


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            edit_header(lambda h: h["model.embed_tokens.weight"].update(data_offsets=[0, 3904])),
            "invalid offset .* again",
        ),
        (edit_header(lambda h: h["lm_head.weight"].update(data_offsets=[9**9, 9**9 + 4])), "do not span"),
        (
            edit_header(lambda h: h["lm_head.weight"].update(shape=[2**40, 2**22])),
            "do not span the 18,4",
        ),
        (edit_header(lambda h: h["lm_head.weight"].update(shape=[-1])), "expected a shape"),
        (lambda header, data: (b'{"a":' + b"[" * 9999 + b"]" * 9999 + b"}", data), "nested too deeply"),
        (
            lambda header, data: (b'{"lm_head.weight": 1, ' + json.dumps(header).encode()[1:], data),
            "header: 'lm_head.weight' is there twice",
        ),
        (lambda header, data: (b'{"": "' + b"x" * (8 << 20) + b'"}', data), "expected at most 8,388,608"),
    ],
)
def test_refuses_hostile_headers(folder, edit, message):
    weights = folder / "model.safetensors"
    data = weights.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header, data = edit(json.loads(data[8:end]), data[end:])
    weights.write_bytes(len(header).to_bytes(8, "little") + header + data)
    with pytest.raises(BundleError, match=f"model.safetensors: .*{message}"):
        read_folder(folder)


def test_headers_of_many_tensors_are_read(tmp_path):
    names = [f"model.layers.{number}.mlp.experts.{number}.down_proj.weight" for number in range(12_000)]
    save_file({name: torch.zeros(1) for name in names}, tmp_path / "model.safetensors")
    with Folder(tmp_path).open("model.safetensors") as stream:
        found = read_tensor_header(stream)
        assert int.from_bytes(stream.read(8), "little") > 1 << 20
    assert list(found) == sorted(names)


def test_refuses_adapters_pickles_and_damage(folder):
    weights = folder / "model.safetensors"
    data = weights.read_bytes()
    weights.write_bytes(data[: len(data) // 2])
    with pytest.raises(BundleError, match=r"has .* bytes of tensors; its header says .* again"):
        read_folder(folder)
    weights.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(BundleError, match="pickles are not read"):
        read_folder(folder)
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(BundleError, match="only adapters"):
        read_folder(folder)


def test_reads_shards(folder):
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    halves = names[: len(names) // 2], names[len(names) // 2 :]
    index = {}
    for number, half in enumerate(halves):
        save_file({name: tensors[name] for name in half}, folder / f"part-{number}.safetensors")
        index |= dict.fromkeys(half, f"part-{number}.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    units, expected = PEER["llama"]["units"][0], PEER["llama"]["log_probs"][0]
    np.testing.assert_allclose(Decoder(*read_folder(folder)).sequence_log_probs(units), expected, atol=2e-5)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../escape"}}')
    with pytest.raises(BundleError, match="in this folder"):
        read_folder(folder)


BAD = (None, -1, 0.5, "x", [], {}, [1], 10**17, float("nan"), 1e308)
BAD_SCALINGS = (
    {"rope_type": "yarn", "factor": 1e300}, {"rope_type": "llama3"}, {"rope_type": ["a"]},
    {"rope_type": "longrope", "short_factor": [0, 0]}, {"rope_theta": -5}, {"partial_rotary_factor": 1e9},
)  # fmt: skip


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt-neox", "opt", "qwen2-windows"])
def test_no_value_of_a_configuration_crashes_or_stalls(name, tmp_path):
    folder = Path(shutil.copytree(MODELS / name, tmp_path / name))
    config = json.loads((folder / "config.json").read_text())
    names = [*config, "head_dim", "sliding_window", "layer_types", "rope_scaling", "quantization_config"]
    changes = [{name: value} for name in names for value in BAD]
    changes += [{"rope_parameters": value} for value in BAD_SCALINGS]
    for change in changes:
        (folder / "config.json").write_text(json.dumps({**config, **change}))
        with suppress(BundleError):
            read_folder(folder)


def test_no_shape_of_a_tensor_crashes(folder):
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        for other in (tensor[:1], tensor.flatten(), tensor.unsqueeze(0), tensor[:0], tensor.to(torch.int64)):
            if other.shape != tensor.shape or other.dtype != tensor.dtype:
                save_file({**tensors, name: other.contiguous()}, folder / "model.safetensors")
                with pytest.raises(BundleError):
                    read_folder(folder)


def test_scalings_that_depend_on_the_length_limit_it(folder):
    scaling = {"rope_type": "longrope", "short_factor": [1.0] * 2, "original_max_position_embeddings": 10}
    change_config(folder, rope_parameters=scaling)
    assert read_folder(folder)[0].context_length == 10


@pytest.mark.parametrize(
    "name", ["model.layers.2.mlp.up_proj.weight", "model.layers.0.self_attn.q_proj.bias"]
)
def test_no_tensor_is_left_unread(folder, name):
    tensors = load_file(folder / "model.safetensors")
    computed = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2)}
    save_file({**tensors, **computed}, folder / "model.safetensors")
    read_folder(folder)
    save_file({**tensors, name: torch.ones(16)}, folder / "model.safetensors")
    with pytest.raises(
        BundleError, match=f"unexpected tensor '{name}', one of 1; expected those of 2 layers"
    ):
        read_folder(folder)
