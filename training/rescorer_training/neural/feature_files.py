"""Prepare the features of a training run, and keep them in files of its folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rescorer.errors import ConfigError
from rescorer_training.classes.class_tree import find_nested_classes
from rescorer_training.neural.options import NetworkOptions
from rescorer_training.neural.prepare import PreparedText

CLASS_INPUTS_FILE = "class_inputs.npy"
"""File of the classes of each word, (V, depths) int64."""
MAX_CLUSTERS = 128
"""Number of Brown clusters that are joined to a tree; fewer for small vocabularies."""
MAX_DEPTH = 64


def parse_depths(depths: str | None) -> list[int]:
    """Parse depths of the tree of classes, such as ``4,8,16``; none for None.

    Raises:
        ConfigError: a depth is not an integer from 1 to ``MAX_DEPTH``.
    """
    parsed = [int(part) if part.strip().isdecimal() else 0 for part in (depths or "").split(",") if depths]
    if not all(1 <= depth <= MAX_DEPTH for depth in parsed):
        raise ConfigError(
            f"class_inputs is {depths!r}; expected depths from 1 to {MAX_DEPTH}, separated by commas: 4,8,16"
        )
    return parsed


def prepare_class_inputs(folder: Path, text: PreparedText, options: NetworkOptions) -> None:
    """Find the classes of each word of a prepared run, if the options ask for them, and write their file.

    ``<s>``, which Brown clusters lack, has the classes of ``</s>``.
    """
    (folder / CLASS_INPUTS_FILE).unlink(missing_ok=True)
    if not (depths := parse_depths(options.class_inputs)):
        return
    n_words = len(text.vocabulary) - 1
    n_clusters = min(MAX_CLUSTERS, n_words)
    classes = find_nested_classes(text.train.ids, n_words, n_clusters, depths)
    np.save(folder / CLASS_INPUTS_FILE, np.concatenate([classes, classes[:1]]))


def load_class_inputs(folder: Path) -> Tensor:
    """Load what ``prepare_class_inputs`` wrote, (V, depths); raises ConfigError if the file is missing."""
    path = folder / CLASS_INPUTS_FILE
    if not path.exists():
        raise ConfigError(f"{path} is missing, so the run cannot be continued; start a new one")
    return torch.from_numpy(np.load(path, allow_pickle=False))
