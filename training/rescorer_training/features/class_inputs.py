"""Word classes as inputs of a network in training: a vector of each class is added to a word's embedding.

A class depends on the word alone, so a saved model has the sums as its embedding and no classes.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from rescorer.errors import ConfigError
from rescorer.lm.networks import NeuralModel, SequenceModel


class ClassEmbedding(nn.Embedding):
    """An embedding whose vectors are sums: the word's own vector and one for each of its classes.

    The vectors of classes start as zeros.

    Args:
        words: the embedding whose parameter holds the words' own vectors.
        classes: (V, C) int64 classes of each word, all numbered in one sequence.
    """

    classes: Tensor

    def __init__(self, words: nn.Embedding, classes: Tensor) -> None:
        super().__init__(words.num_embeddings, words.embedding_dim, _weight=words.weight)
        self.weight = words.weight  # the parameter itself: an output layer may share it
        self.register_buffer("classes", classes)
        self.class_vectors = nn.Parameter(torch.zeros(int(classes.max()) + 1, words.embedding_dim))

    def forward(self, words: Tensor) -> Tensor:
        return super().forward(words) + self._sum_classes(self.classes[words])

    def folded_weight(self) -> Tensor:
        """The vectors of all words, (V, E)."""
        return self.weight + self._sum_classes(self.classes)

    def _sum_classes(self, classes: Tensor) -> Tensor:
        """Sum the vectors of some words' classes, (..., C) → (..., E)."""
        return functional.embedding(classes, self.class_vectors).sum(dim=-2)


def add_class_inputs(model: NeuralModel, classes: Tensor) -> None:
    """Let a model read the classes of words, (V, C), beside the words; it stays the same function at first.

    Raises:
        ConfigError: the output layer is a tree that is tied to the embedding.
    """
    if model.config.tied and model.config.output == "tree":
        raise ConfigError("class inputs do not work with a tree that is tied to the embedding; add --untied")
    model.network.embedding = ClassEmbedding(model.network.embedding, classes)


@torch.no_grad()
def fold_class_inputs(model: SequenceModel) -> SequenceModel:
    """Return an equal model without class inputs, for scoring.

    It is the model itself if that has none. Otherwise it is a copy on the CPU, untied because its output
    weights are the words' own vectors.
    """
    embedding = model.network.embedding
    if not isinstance(model, NeuralModel) or not isinstance(embedding, ClassEmbedding):
        return model
    state = {name: value for name, value in model.state_dict().items() if ".embedding." not in name}
    state["network.embedding.weight"] = embedding.folded_weight()
    if model.config.tied:  # the shared parameter has a row for <s>, which is never predicted
        state["output.word_weight"] = state["output.word_weight"][: model.config.n_words]
    with torch.random.fork_rng(devices=[]):  # the initial values are replaced, and must not disturb training
        folded = NeuralModel(replace(model.config, tied=False))
    folded.load_state_dict(state)
    return folded.train(model.training)
