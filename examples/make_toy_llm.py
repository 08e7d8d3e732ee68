"""Write a tiny random language model as a folder of Hugging Face's form, to try what real ones are for.

    python examples/make_toy_llm.py FOLDER TEXT

It has a tokenizer that was trained on the text, and a decoder of LLaMA's shape with random weights. Its
scores are those of an untrained model; the way from such a folder to rescored lists is that of any other.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

SIZE, INNER, LAYERS, HEADS, KEY_HEADS = 32, 64, 2, 4, 2


def write_toy(folder: Path, text: Path) -> None:
    """Write ``config.json``, ``model.safetensors`` and ``tokenizer.json`` into a new folder."""
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        sys.exit(f"{folder} exists already: delete it, or give the name of a new folder")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train([str(text)], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "model_type": "llama",
        "vocab_size": tokenizer.get_vocab_size(),
        "hidden_size": SIZE,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_HEADS,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(config))
    torch.manual_seed(1)
    keys = SIZE * KEY_HEADS // HEADS
    shapes = {
        "self_attn.q_proj": (SIZE, SIZE),
        "self_attn.k_proj": (keys, SIZE),
        "self_attn.v_proj": (keys, SIZE),
        "self_attn.o_proj": (SIZE, SIZE),
        "mlp.gate_proj": (INNER, SIZE),
        "mlp.up_proj": (INNER, SIZE),
        "mlp.down_proj": (SIZE, INNER),
    }
    tensors = {
        "model.embed_tokens.weight": torch.randn(config["vocab_size"], SIZE),
        "model.norm.weight": torch.ones(SIZE),
    }
    for number in range(LAYERS):
        layer = f"model.layers.{number}."
        tensors |= {f"{layer}{name}.weight": 0.1 * torch.randn(shape) for name, shape in shapes.items()}
        tensors |= {
            f"{layer}{name}.weight": torch.ones(SIZE)
            for name in ("input_layernorm", "post_attention_layernorm")
        }
    save_file(tensors, folder / "model.safetensors")


if __name__ == "__main__":
    write_toy(Path(sys.argv[1]), Path(sys.argv[2]))
