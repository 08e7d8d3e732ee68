"""Encodings of the words of hypotheses as more inputs of rerankers.

Training sees the principal components of a language model's mean context vectors. A reranker that was fitted
on them looks at few of their combinations: these, and not the components, are what the runtime computes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rescorer.lm.base import LanguageModel, VectorModel
from rescorer.pipeline import Rescorer
from rescorer.reranking.ensemble import Ensemble
from rescorer.reranking.features import centre_features
from rescorer.reranking.transformer import TransformerEnsemble
from rescorer.types import NBestList
from rescorer.word_encoder import ENCODING, WordEncoder
from rescorer_training.reranker.arrays import TrainingArrays
from rescorer_training.reranker.candidates import MIN_LISTS_FOR_NETWORKS

MAX_COMPONENTS = 96
"""Largest number of principal components."""
N_SAMPLE_LISTS = 500
"""Largest number of lists that the components are computed from; they are evenly spaced."""
MIN_VARIANCE = 1e-9
"""Share of the largest variance below which a component is left out."""


@dataclass(frozen=True, slots=True)
class EncodedLists:
    """Encodings of the words of all hypotheses of some lists."""

    encoder: WordEncoder
    """Its projection is (D, C), onto C principal components."""
    encodings: Sequence[np.ndarray]
    """(H, C) float64 of each list, not centred."""

    @property
    def names(self) -> tuple[str, ...]:
        """(C,) names of the components among the features of training."""
        return tuple(f"{ENCODING}{self.encoder.model}:{k}" for k in range(self.encoder.projection.shape[1]))

    def append_to(self, arrays: TrainingArrays) -> TrainingArrays:
        """Append the components, centred in the list, to the features of the same lists."""
        centred = np.concatenate([centre_features(encoding) for encoding in self.encodings])
        return replace(
            arrays,
            features=(*arrays.features, *self.names),
            scales=np.concatenate((arrays.scales, np.ones(centred.shape[1]))),
            x=np.concatenate((arrays.x, centred), axis=1),
        )


def is_encoding(feature: str) -> bool:
    """Whether a feature of training is a component of an encoding."""
    return feature.startswith(ENCODING)


def encode_lists(rescorer: Rescorer, lists: Sequence[NBestList]) -> EncodedLists | None:
    """Encode lists by the network of a bundle with the longest context vectors.

    The components are scaled by one number, so that their variance within lists is 1 on average.

    Returns:
        None if the bundle has no network, or if the lists are too few for encodings to be tried.
    """
    name = find_encoding_model(rescorer.models)
    if name is None or len(lists) < MIN_LISTS_FOR_NETWORKS:
        return None
    sample = [lists[int(i)] for i in np.linspace(0, len(lists) - 1, min(N_SAMPLE_LISTS, len(lists)))]
    size = _vector_size(rescorer.models[name])
    vectors = rescorer.encode(sample, WordEncoder(name, np.eye(size)))
    projection = find_components(np.concatenate([centre_features(part) for part in vectors]))
    encoder = WordEncoder(name, projection)
    return EncodedLists(encoder, rescorer.encode(lists, encoder)) if projection.shape[1] else None


def find_encoding_model(models: Mapping[str, LanguageModel]) -> str | None:
    """Name of the network with the longest context vectors, the first one of several; None without one."""
    sizes = {name: _vector_size(model) for name, model in models.items()}
    return max(sizes, key=sizes.__getitem__) if any(sizes.values()) else None


def _vector_size(model: LanguageModel) -> int:
    return model.vector_size if isinstance(model, VectorModel) else 0


def find_components(centred: np.ndarray) -> np.ndarray:
    """Projection (D, C) onto the principal components of some vectors (N, D) with mean 0."""
    variances, directions = np.linalg.eigh(centred.T @ centred / len(centred))
    largest = np.argsort(-variances, kind="stable")[:MAX_COMPONENTS]
    largest = largest[variances[largest] > MIN_VARIANCE * max(variances.max(initial=0.0), 1e-300)]
    projection: np.ndarray = directions[:, largest]
    return projection / np.sqrt(variances[largest].mean()) if len(largest) else projection


def compress_encoding(
    ensemble: Ensemble | TransformerEnsemble, encoder: WordEncoder
) -> tuple[Ensemble | TransformerEnsemble, WordEncoder]:
    """Replace the last C inputs of networks, the components, by the combinations of them that they use.

    The combinations span the columns of all matrices that the components are multiplied by, so that scores
    change by rounding alone. Linear weights are averaged over the members first.

    Args:
        encoder: its projection is (D, C).
    """
    n_components = encoder.projection.shape[1]
    n_features = ensemble.features - n_components
    if isinstance(ensemble, TransformerEnsemble):
        linear, first = ensemble.parameters["linear"], ensemble.parameters["input"]
    else:
        linear, first = ensemble.linear, ensemble.hidden
    linear = np.broadcast_to(linear.mean(axis=0), linear.shape)
    columns = [linear[0, n_features:, None], *first[:, n_features:]]  # (C, 1), and (C, U) per member
    basis, _ = np.linalg.qr(np.concatenate(columns, axis=1))  # (C, K)
    size = basis.shape[1]
    linear = np.concatenate((linear[:, :n_features], linear[:, n_features:] @ basis), axis=1)
    first = np.concatenate((first[:, :n_features], basis.T @ first[:, n_features:]), axis=1)
    compressed: Ensemble | TransformerEnsemble
    if isinstance(ensemble, TransformerEnsemble):
        sizes = replace(ensemble.sizes, features=n_features, encoding=size)
        compressed = TransformerEnsemble(sizes, {**ensemble.parameters, "linear": linear, "input": first})
    else:
        compressed = replace(ensemble, linear=linear, hidden=first, encoding=size)
    return compressed, replace(encoder, projection=encoder.projection @ basis)
