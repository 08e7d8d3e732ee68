"""Write random small models by transformers, and its scores of some texts, as ground truth for the tests.

    python tests/units/write_peer_models.py tests/golden/units

Run it where transformers is installed; the project does not need it. Scores are computed in float64.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import torch
import transformers

N_UNITS, N_TEXTS, LENGTH = 61, 2, 14
COMMON = {
    "vocab_size": N_UNITS,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 40,
}
SHARED = {**COMMON, "num_key_value_heads": 2}
OPT = {
    "vocab_size": N_UNITS,
    "hidden_size": 16,
    "ffn_dim": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 40,
}


def scale_positions(kind: str, **values: float) -> dict[str, object]:
    """Rotary positions that are scaled."""
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10_000.0, **values}}


CONFIGS = {
    "llama": transformers.LlamaConfig(**SHARED, tie_word_embeddings=False),
    "llama-biases-tied": transformers.LlamaConfig(
        **COMMON, attention_bias=True, mlp_bias=True, tie_word_embeddings=True
    ),
    "llama-linear": transformers.LlamaConfig(**SHARED, **scale_positions("linear", factor=2.0)),
    "llama-llama3": transformers.LlamaConfig(
        **SHARED,
        **scale_positions(
            "llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=10,
        ),
    ),
    "llama-yarn": transformers.LlamaConfig(
        **SHARED, **scale_positions("yarn", factor=4.0, original_max_position_embeddings=10)
    ),
    "mistral-window": transformers.MistralConfig(**SHARED, sliding_window=4),
    "qwen2": transformers.Qwen2Config(**SHARED),
    "qwen2-windows": transformers.Qwen2Config(
        **SHARED, use_sliding_window=True, sliding_window=5, max_window_layers=1
    ),
    "qwen3": transformers.Qwen3Config(**SHARED, head_dim=8),
    "gemma": transformers.GemmaConfig(**{**COMMON, "num_key_value_heads": 1, "head_dim": 8}),
    "gpt2": transformers.GPT2Config(vocab_size=N_UNITS, n_embd=16, n_layer=2, n_head=4, n_positions=40),
    "gpt-neox": transformers.GPTNeoXConfig(**{**COMMON, "num_attention_heads": 2}),
    "gpt-neox-serial": transformers.GPTNeoXConfig(
        **COMMON,
        use_parallel_residual=False,
        **scale_positions("default", partial_rotary_factor=0.5),
    ),
    "opt": transformers.OPTConfig(**OPT),
    "opt-norm-after": transformers.OPTConfig(**OPT, word_embed_proj_dim=8, do_layer_norm_before=False),
}


def write(folder: Path) -> None:
    """Write all models, one folder each, and ``scores.json``."""
    torch.manual_seed(1)
    scores = {}
    for name, config in CONFIGS.items():
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        for parameter in model.parameters():
            is_matrix = parameter.dim() > 1
            torch.nn.init.normal_(parameter, mean=0.0 if is_matrix else 1.0, std=0.3 if is_matrix else 0.2)
        model.save_pretrained(folder / name)
        (folder / name / "generation_config.json").unlink(missing_ok=True)
        units = torch.randint(0, N_UNITS, (N_TEXTS, LENGTH))
        with torch.no_grad():
            log_probs = model.double()(units).logits.log_softmax(dim=-1)
        found = log_probs[:, :-1].gather(2, units[:, 1:, None]).squeeze(2)
        scores[name] = {"units": units.tolist(), "log_probs": found.tolist()}
    versions = {"transformers": transformers.__version__, "torch": torch.__version__}
    text = json.dumps({"versions": versions, "models": scores}, indent=1)
    (folder / "scores.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    target = Path(sys.argv[1])
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    write(target)
