"""Tiny models for tests: a hand-written ARPA file and a random network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rescorer.models.bundle import publish
from rescorer.models.network_files import END, START, UNKNOWN, Vocabulary
from rescorer.text import NormaliserSettings
from rescorer.types import Weights
from rescorer.weights import weights_to_dict

if TYPE_CHECKING:
    from rescorer.models.neural import NeuralModel

# torch takes seconds to import, so tests that use only the n-gram must not import it.

ARPA = """\
\\data\\
ngram 1=9
ngram 2=6
ngram 3=2

\\1-grams:
-1.2\t<unk>\t0
0\t<s>\t-0.3
-1.0\t</s>\t0
-0.9\tthe\t-0.4
-1.1\tcat\t-0.2
-1.1\tsat\t-0.1
-1.3\tmat\t-0.2
-1.0\ton\t-0.3
-1.6\tzebra\t0

\\2-grams:
-0.4\t<s> the\t-0.2
-0.5\tthe cat\t-0.1
-0.7\tthe mat\t0
-0.3\tcat sat\t0
-0.4\tsat on\t0
-0.3\ton the\t0

\\3-grams:
-0.2\t<s> the cat
-0.2\tcat sat on

\\end\\
"""
NETWORK_WORDS = ("the", "cat", "sat", "on", "mat", "dog", "ran", "fast")
"""Vocabulary of the random network; the n-gram lacks dog, ran and fast, and only the n-gram knows zebra."""


def write_arpa(folder: Path) -> Path:
    path = folder / "model.arpa"
    path.write_text(ARPA, encoding="utf-8")
    return path


def random_network(
    words: tuple[str, ...] = NETWORK_WORDS, *, seed: int = 0, **settings: Any
) -> tuple[NeuralModel, Vocabulary]:
    """Build a network with random weights.

    Args:
        settings: fields of ``NetworkConfig``; by default an LSTM with three classes and a projection.
    """
    import torch

    from rescorer.models.network_files import NetworkConfig
    from rescorer.models.neural import NeuralModel

    torch.manual_seed(seed)
    vocabulary = Vocabulary((END, UNKNOWN, *words, START))
    n_words = len(vocabulary) - 1
    sizes = (1, 3, n_words - 4)
    config = {"class_sizes": sizes, "embedding_size": 6, "hidden_size": 8, **settings}
    model = NeuralModel(NetworkConfig(len(vocabulary), **config))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0).add_(torch.randn_like(parameter) * 0.2)  # so that outputs are not uniform
    return model.eval(), vocabulary


def stable_network(**settings: Any) -> tuple[NeuralModel, Vocabulary]:
    """Make a random network that is not chaotic: rounding errors do not grow from word to word."""
    import torch

    model, vocabulary = random_network(**settings)
    if settings["kind"] == "elman":
        with torch.no_grad():
            for name, weight in model.network.named_parameters():
                if "weight_hh" in name:
                    weight.div_(torch.linalg.matrix_norm(weight, 2))
    if settings["kind"] == "transformer":
        with torch.no_grad():
            for weight in model.network.layers.parameters():
                weight.div_(4)
    return model, vocabulary


def write_bundle(
    folder: Path,
    weights: Weights | None = None,
    *,
    neural: bool = True,
    carried: bool = False,
    network: tuple[NeuralModel, Vocabulary] | None = None,
    text: NormaliserSettings | None = None,
) -> Path:
    """Write a complete bundle to ``folder``/tiny/1 and return that path.

    Args:
        network: None for a random LSTM.
        text: settings of the normaliser; None for the default ones.
    """

    def fill(partial: Path) -> dict:
        (partial / "ngram").mkdir()
        write_arpa(partial / "ngram")
        models = {"ngram": {"kind": "ngram", "path": "ngram/model.arpa"}}
        mixture = {"ngram": 1.0}
        if neural:
            from rescorer.models.neural import save_model

            save_model(*(network or random_network(carried=carried)), partial / "neural")
            models["neural"] = {"kind": "neural", "path": "neural"}
            mixture = {"ngram": 0.5, "neural": 0.5}
        (partial / "text.json").write_text((text or NormaliserSettings()).to_json())
        (partial / "weights").mkdir()
        default = weights or Weights("default", {"acoustic": 1.0}, {"mixture": 2.0}, 0.1, -1.0, mixture)
        (partial / "weights" / "default.json").write_text(json.dumps(weights_to_dict(default)))
        return {"name": "tiny", "version": 1, "models": models}

    publish(folder / "tiny" / "1", fill)
    return folder / "tiny" / "1"
