"""Scale the channels of a decoder so that it loses less in int8, without changing what it computes.

Some channels of a decoder's activations are a hundred times as large as others. Each row of activations is
rounded to int8 by its largest value, so that little is left of the other channels. Weights have no such
outliers. SmoothQuant (Xiao et al. 2023) therefore divides each channel by a factor, and multiplies the column
of the matrix that reads it by the same factor,

    s_j = max |x_j|^½ / max |W_j|^½,    (x / s) · (W s)ᵀ = x · Wᵀ,

where the largest activations are those on some text. The division costs nothing, because it is folded into
what makes the channel: the gain of a normalisation, the rows of values, or those of the inner layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from rescorer.trie import Words, build_trie
from rescorer.units.decoders import Decoder, DecoderConfig, DecoderLayer
from rescorer.units.model import DecoderScorer, UnitLanguageModel

LEAST = 1e-5  # what the largest activation and weight of a channel are taken for at least
PARTS = ("attention_input", "attention_output", "feedforward_input", "feedforward_output")


class _RecordingLayer(DecoderLayer):
    """A layer that remembers the largest absolute value of each channel that its matrices read."""

    def __init__(self, config: DecoderConfig, tensors: Mapping[str, Tensor]) -> None:
        super().__init__(config, tensors)
        self.largest: dict[str, Tensor] = {}

    def multiply(
        self, x: Tensor, name: str, added: Tensor | None = None, rows: slice | None = None
    ) -> Tensor:
        found = x.abs().amax(dim=0)
        self.largest[name] = torch.maximum(found, self.largest.get(name, found))
        return super().multiply(x, name, added, rows)


def smooth_channels(model: UnitLanguageModel, sentences: Sequence[Words]) -> dict[str, Tensor]:
    """Return the tensors of a model in float32, scaled for int8.

    Args:
        sentences: text by which channels are judged, as the model reads it.
    """
    assert isinstance(model.scorer, DecoderScorer)
    decoder = model.scorer.decoder
    assert isinstance(decoder, Decoder)
    layers = decoder.layers
    recording = [_RecordingLayer(layer.config, layer.tensors) for layer in layers]
    decoder.layers = [*recording]
    try:
        model.score(build_trie(sentences))
    finally:
        decoder.layers = layers
    tensors = {name: tensor.clone() for name, tensor in decoder.tensors.items()}
    for number, layer in enumerate(recording):
        part = {
            name.removeprefix(prefix): tensor
            for name, tensor in tensors.items()
            if name.startswith(prefix := f"layers.{number}.")
        }
        _smooth_layer(decoder.config, part, layer.largest)
    return tensors


def _smooth_layer(
    config: DecoderConfig, tensors: Mapping[str, Tensor], largest: Mapping[str, Tensor]
) -> None:
    """Scale the tensors of a layer in place."""
    for name in PARTS:
        weight = tensors[f"{name}.weight"]
        factor = (largest[name].clamp_min(LEAST) / weight.abs().amax(dim=0).clamp_min(LEAST)).sqrt()
        if name == "attention_output":
            heads = factor.view(config.key_heads, -1, config.head_size)
            factor = heads.amax(dim=1, keepdim=True)  # of queries' heads that share values
            made = _rows(tensors, "attention_input", -config.key_heads * config.head_size)
            divide, factor = factor.flatten(), factor.expand_as(heads).flatten()
        elif name == "feedforward_output":
            if not config.gated:  # the activation function comes between
                continue
            made, divide = _rows(tensors, "feedforward_input", -config.feedforward_size), factor
        else:
            if config.norm_after:  # which normalises something else
                continue
            made, divide = _rows(tensors, name.removesuffix("input") + "norm", 0), factor
        for part in made:
            part /= divide if part.dim() == 1 else divide.unsqueeze(1)
        weight *= factor


def _rows(tensors: Mapping[str, Tensor], name: str, first: int) -> list[Tensor]:
    """Weight and bias of a name, if it has them, from a row on."""
    names = (f"{name}.weight", f"{name}.bias")
    return [tensors[one][first:] for one in names if one in tensors]
