"""Put the files of an adapted bundle together: models, normaliser and weights sets."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rescorer.bundle import TEXT, WEIGHTS, Bundle
from rescorer.bundle.manifest import list_model_files
from rescorer.score_combination import weights_to_dict
from rescorer.types import Weights
from rescorer_training.adaptation.ngram import AdaptedNgram

NGRAM_FILE = "model.arpa.gz"
DEFAULT = "default"
"""The weights set that every bundle has."""


def copy_models(
    bundle: Bundle, ngram: AdaptedNgram, networks: Mapping[str, Path], folder: Path
) -> dict[str, Any]:
    """Copy the adapted models, and those that stay as they are, into an unfinished bundle.

    Args:
        networks: folder of each network, by the name of the model.

    Returns:
        The models' manifest entries, in the order of the source and then the new one.
    """
    new: dict[str, Any] = {"kind": "ngram", "path": f"{ngram.model}/{NGRAM_FILE}", "order": ngram.order}
    slots = sorted(bundle.slots.get(ngram.model, ()))  # interpolation keeps all words
    new |= {"slots": slots} if slots else {}
    entries: dict[str, Any] = {**bundle.manifest["models"], ngram.model: new}
    for name, entry in entries.items():
        for file in list_model_files(entry):
            source = bundle.files.path / file
            if name == ngram.model:
                source = ngram.file
            elif name in networks:
                source = networks[name] / Path(file).name
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, folder / file)
    return entries


def write_settings(bundle: Bundle, shares: Mapping[str, float], folder: Path) -> list[str]:
    """Write the normaliser and the weights sets; the sets keep all values except those of the models.

    λ become ``shares`` in each set that has λ. What was learnt with the models of the source is left out:
    rerankers, sets other than ``default`` that use them, confidences, and held-out error rates.

    Returns:
        The names of the sets from which something was left out.
    """
    shutil.copyfile(bundle.files.path / TEXT, folder / TEXT)
    (folder / WEIGHTS).mkdir()
    for name, weights in bundle.weights.items():
        if weights.rerankers and name != DEFAULT:
            continue
        mixture = shares if weights.mixture else {}
        adapted = replace(weights, mixture=mixture, calibration=None, held_out={}, rerankers={})
        text = json.dumps(weights_to_dict(adapted), indent=2)
        (folder / WEIGHTS / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    return [name for name, weights in bundle.weights.items() if depends_on_models(weights)]


def depends_on_models(weights: Weights) -> bool:
    """Whether weights have something that was learnt with the models of their bundle, other than λ."""
    return bool(weights.calibration or weights.held_out or weights.rerankers)
