"""The names and shapes of a network's parameters, derived from its configuration alone."""

from __future__ import annotations

from rescorer.lm.files.network_config import WINDOWED_KINDS, NetworkConfig

Shapes = dict[str, tuple[int, ...]]
GATES = {"lstm": 4, "gru": 3, "elman": 1}
"""Rows of a recurrent layer's matrices, in units of the hidden size."""
FEEDFORWARD_STEP = 16
"""The units of a transformer's feed-forward networks are a multiple of this."""


def parameter_shapes(config: NetworkConfig) -> Shapes:
    """Return the shape of every tensor that a checkpoint of this network contains, by name."""
    hidden, embedding = config.hidden_size, config.embedding_size
    shapes: Shapes = {"network.embedding.weight": (config.vocabulary_size, embedding)}
    if config.kind == "transformer":
        shapes |= _transformer_shapes(config)
    else:
        shapes |= _windowed_shapes(config) if config.kind in WINDOWED_KINDS else _recurrent_shapes(config)
    if hidden != embedding:
        shapes["network.projection.weight"] = (embedding, hidden)
    if config.n_features:
        shapes["topic_output.weight"] = (embedding, config.n_features)
    if config.topics:
        shapes["topic_words"] = (config.vocabulary_size, config.topics)
    if config.pos_tags:
        shapes |= _tag_shapes(config)
    return shapes | _output_shapes(config)


def _tag_shapes(config: NetworkConfig) -> Shapes:
    n_tags = config.pos_tags
    return {
        "tags.start": (n_tags,),
        "tags.transitions": (n_tags, n_tags),
        "tags.words": (config.vocabulary_size, n_tags),
    }


def _recurrent_shapes(config: NetworkConfig) -> Shapes:
    rows = GATES[config.kind] * config.hidden_size
    shapes: Shapes = {}
    for layer in range(config.layers):
        prefix = f"network.{config.kind}"
        columns = config.hidden_size if layer else config.embedding_size + config.n_features
        shapes[f"{prefix}.weight_ih_l{layer}"] = (rows, columns)
        shapes[f"{prefix}.weight_hh_l{layer}"] = (rows, config.hidden_size)
        shapes[f"{prefix}.bias_ih_l{layer}"] = shapes[f"{prefix}.bias_hh_l{layer}"] = (rows,)
    return shapes


def _windowed_shapes(config: NetworkConfig) -> Shapes:
    hidden = config.hidden_size
    shapes: Shapes = {
        "network.positions": (config.window, hidden, config.embedding_size),
        "network.bias": (hidden,),
    }
    for layer in range(config.layers - 1):
        shapes[f"network.deeper.{layer}.weight"] = (hidden, hidden)
        shapes[f"network.deeper.{layer}.bias"] = (hidden,)
    if config.n_features:
        shapes["network.topics.weight"] = (hidden, config.n_features)
    return shapes


def feedforward_size(hidden: int) -> int:
    """Units of a transformer's feed-forward networks: 8/3 of the hidden size, so that their three matrices
    have the size of two with four times the hidden size (Shazeer 2020), rounded up."""
    return -(-8 * hidden // (3 * FEEDFORWARD_STEP)) * FEEDFORWARD_STEP


def _transformer_shapes(config: NetworkConfig) -> Shapes:
    hidden, units = config.hidden_size, feedforward_size(config.hidden_size)
    shapes: Shapes = {"network.norm": (hidden,)}
    for layer in range(config.layers):
        prefix = f"network.layers.{layer}"
        shapes |= {
            f"{prefix}.attention_norm": (hidden,),
            f"{prefix}.queries_keys_values": (3 * hidden, hidden),
            f"{prefix}.attention_output": (hidden, hidden),
            f"{prefix}.feedforward_norm": (hidden,),
            f"{prefix}.gate_and_input": (2 * units, hidden),
            f"{prefix}.feedforward_output": (hidden, units),
        }
    if hidden != config.embedding_size:
        shapes["network.input_projection.weight"] = (hidden, config.embedding_size)
    return shapes


def _output_shapes(config: NetworkConfig) -> Shapes:
    n_words, size = config.n_words, config.embedding_size
    if config.output == "tree":
        inner = (config.leaves or n_words) - 1
        tree: Shapes = {
            "output.word_weight": (inner, size),
            "output.word_bias": (inner,),
            "output.tree": (inner, 2),
        }
        return tree | ({"output.places": (n_words,)} if config.leaves else {})
    shapes: Shapes = {"output.word_bias": (n_words,)}
    if not config.tied:
        shapes["output.word_weight"] = (n_words, size)
    if config.output == "classes":
        n_classes = len(config.class_sizes)
        shapes |= {
            "output.class_layer.weight": (n_classes, size),
            "output.class_layer.bias": (n_classes,),
        }
    if config.softmaxes > 1:
        shapes |= {
            "output.share_layer.weight": (config.softmaxes, size),
            "output.share_layer.bias": (config.softmaxes,),
            "output.component_layer.weight": (config.softmaxes * size, size),
        }
    return shapes
