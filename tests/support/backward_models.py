"""A bundle of forward and backward models for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rescorer.models.bundle import publish
from rescorer.models.neural import save_model
from rescorer.text import NormaliserSettings
from rescorer.types import Weights
from rescorer.weights import weights_to_dict
from tests.support.random_ngrams import random_orders, write_random_arpa
from tests.support.tiny_models import random_network, write_arpa

BACKWARD = ("back", "leftward")
LM_WEIGHTS = {"mixture": 1.0, "back": 0.6, "leftward": 0.4}
WEIGHTS = Weights("default", {"acoustic": 1.0}, LM_WEIGHTS, 0.1, -1.0, {"ngram": 0.5, "neural": 0.5})


def write_bundle(folder: Path) -> Path:
    """Write a bundle with an n-gram and a network per direction to ``folder``/both/1; return its path."""

    def fill(partial: Path) -> dict[str, Any]:
        for name in ("ngram", "back"):
            (partial / name).mkdir()
        write_arpa(partial / "ngram")
        write_random_arpa(partial / "back" / "model.arpa", random_orders(3, 3))
        save_model(*random_network(), partial / "neural")
        save_model(*random_network(seed=1, backward=True), partial / "leftward")
        (partial / "text.json").write_text(NormaliserSettings.first_rules().to_json())
        (partial / "weights").mkdir()
        (partial / "weights" / "default.json").write_text(json.dumps(weights_to_dict(WEIGHTS)))
        models = {
            "ngram": {"kind": "ngram", "path": "ngram/model.arpa"},
            "back": {"kind": "ngram", "path": "back/model.arpa", "backward": True},
            "neural": {"kind": "neural", "path": "neural"},
            "leftward": {"kind": "neural", "path": "leftward", "backward": True},
        }
        return {"name": "both", "version": 1, "models": models}

    publish(folder / "both" / "1", fill)
    return folder / "both" / "1"
