"""Classify sequences: context networks in one or two directions, pooling, and a softmax over the classes.

Bidirectional recurrent networks are those of Schuster & Paliwal (1997). As in ELMo (Peters et al. 2018), the
directions are separate stacks, which share the word embedding; their vectors are concatenated.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from rescorer.errors import BundleError
from rescorer.lm.checkpoint import load_weights
from rescorer.lm.files.network_files import CONFIG_FILE, WEIGHTS_FILE, check_tensors, read_vocabulary
from rescorer.lm.networks import ContextNetwork, SequenceModel, State
from rescorer.lm.networks.model import NETWORKS
from rescorer.lm.output import FullSoftmax
from rescorer.safe_input.files import Folder
from rescorer.vocabulary import Vocabulary
from rescorer_training.classification.config import ClassifierConfig


class Classifier(SequenceModel):
    """Predict the label of each sentence (many-to-one), or of each of its words (many-to-many).

    It is not a ``NeuralModel``, and no method scores words: it can never be used as a language model.
    """

    config: ClassifierConfig

    def __init__(self, config: ClassifierConfig) -> None:
        super().__init__()
        self.config = config
        self.network = NETWORKS[config.network.kind](config.network)
        self.reverse: ContextNetwork | None = None
        size = self.network.output_size
        if config.bidirectional:
            self.reverse = NETWORKS[config.network.kind](config.network)
            self.reverse.embedding = self.network.embedding
            size += self.reverse.output_size
        self.output = FullSoftmax(size, len(config.labels))

    def context_vectors(
        self,
        inputs: Tensor,
        state: State | None = None,
        topics: Tensor | None = None,
        *,
        bfloat16: bool = False,
    ) -> tuple[Tensor, State]:
        """Vectors of sentences or of their words in float32, and an empty state; topics are not read.

        Args:
            inputs: (B, T) words, padded at the end with ``<s>``.

        Returns:
            (B, 1, D), or (B, T, D) for labels of words.
        """
        lengths = (inputs != self.config.network.vocabulary_size - 1).sum(1)  # (B,)
        with torch.autocast(inputs.device.type, torch.bfloat16, enabled=bfloat16):
            directions = [self._pool(self.network(inputs)[0], lengths)]
            if self.reverse is not None:
                order = reversed_positions(lengths, inputs.shape[1])
                vectors, _ = self.reverse(inputs.gather(1, order))
                pooled = self._pool(vectors, lengths)
                if self.config.pooling == "none":
                    pooled = pooled.gather(1, order.unsqueeze(2).expand_as(pooled))
                directions.append(pooled)
        return torch.cat(directions, dim=2).float(), ()

    def _pool(self, vectors: Tensor, lengths: Tensor) -> Tensor:
        """Reduce the vectors of one direction, in the order of reading, (B, T, D), to (B, 1, D)."""
        if self.config.pooling == "none":
            return vectors
        positions = torch.arange(vectors.shape[1], device=vectors.device)
        if self.config.pooling == "last":
            chosen = positions == lengths.unsqueeze(1) - 1  # (B, T)
            return vectors[chosen].unsqueeze(1)
        is_word = (positions < lengths.unsqueeze(1)).unsqueeze(2)  # (B, T, 1)
        return (vectors * is_word).sum(1, keepdim=True) / lengths.view(-1, 1, 1)


def reversed_positions(lengths: Tensor, n_columns: int) -> Tensor:
    """Positions that reverse the words of each row and leave its padding where it is, (B, T) int64.

    >>> reversed_positions(torch.tensor([2, 3]), 3).tolist()
    [[1, 0, 2], [2, 1, 0]]
    """
    positions = torch.arange(n_columns, device=lengths.device)
    ends = lengths.unsqueeze(1)
    return torch.where(positions < ends, ends - 1 - positions, positions)


def load_classifier(folder: Path) -> tuple[Classifier, Vocabulary]:
    """Load a classifier in float32 and evaluation mode.

    The sizes of its three files are compared before anything is built.

    Raises:
        BundleError: a file is missing or damaged, the files do not fit together, or they are those of a
            language model.
    """
    files = Folder(folder)
    values = files.read_json(CONFIG_FILE)
    try:
        config = ClassifierConfig.from_dict(values)
    except BundleError as error:
        raise BundleError(f"{folder / CONFIG_FILE}: {error}") from None
    with files.open(WEIGHTS_FILE) as stream:
        check_tensors(stream, config.parameter_shapes())
    vocabulary = read_vocabulary(files, config.network)
    model = Classifier(config)
    load_weights(model, files)
    return model, vocabulary
