"""Describe the language models of a bundle: kind, direction, and what a network reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rescorer.bundle import Bundle, ModelKind
from rescorer.lm.files.network_files import read_config

Direction = Literal["forward", "backward"]


@dataclass(frozen=True, slots=True)
class BundleModel:
    """One language model of a bundle; the field names are keys of the JSON report."""

    name: str
    kind: ModelKind
    network: str
    """Kind of the network, such as ``lstm``; empty for an n-gram model."""
    direction: Direction
    """Which end of a sentence is read first."""
    topics: int = 0
    """Number of topics of the text before a sentence that the network reads beside the words; 0 for none."""


def describe_models(bundle: Bundle) -> tuple[BundleModel, ...]:
    """Describe each language model of a bundle from its manifest and the configurations of its networks.

    Raises:
        BundleError: the configuration of a network cannot be read.
    """
    return tuple(_describe(bundle, name, kind) for name, kind in bundle.model_kinds.items())


def _describe(bundle: Bundle, name: str, kind: ModelKind) -> BundleModel:
    direction: Direction = "backward" if name in bundle.backward else "forward"
    if kind != "neural":
        return BundleModel(name, kind, "", direction)
    config = read_config(bundle.files.subfolder(bundle.manifest["models"][name]["path"].rstrip("/")))
    return BundleModel(name, kind, config.kind, direction, config.topics)
