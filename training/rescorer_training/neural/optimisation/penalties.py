"""Penalties on the context vectors of a network, which are added to the objective in training."""

from __future__ import annotations

import torch
from torch import Tensor

from rescorer.errors import ConfigError
from rescorer.lm.networks.model import SequenceConfig
from rescorer_training.neural.options import TrainingOptions


def check_penalties(options: TrainingOptions, config: SequenceConfig) -> None:
    """Raise ConfigError if dropout would be penalised as a change of the context vectors."""
    if options.change_penalty and config.dropout and not config.locked_dropout:
        raise ConfigError(
            "--change-penalty needs --locked-dropout: with a mask per word, the vectors change from word to "
            "word because of dropout"
        )


def penalise_activations(hidden: Tensor, is_word: Tensor, options: TrainingOptions) -> Tensor | None:
    """Activation regularisation (AR) and temporal activation regularisation (TAR).

    Per word, α times the mean square of the context vector plus β times the mean square of its change since
    the word before; after Merity et al. (2017), "Revisiting Activation Regularization for Language RNNs".
    There, the changes are those before dropout. With locked dropout, one mask applies to a whole sequence, so
    that dropout changes nothing from word to word.

    Args:
        hidden: (B, T, D) context vectors after dropout.
        is_word: (B, T) bool, False where a row is padded.

    Returns:
        The sum over words, or None if both penalties are 0.
    """
    alpha, beta = options.activation_penalty, options.change_penalty
    if not alpha and not beta:
        return None
    size = hidden.shape[-1]
    squares = hidden.square().sum(-1)[is_word].sum()
    changes = (hidden[:, 1:] - hidden[:, :-1]).square().sum(-1)[is_word[:, 1:] & is_word[:, :-1]].sum()
    return torch.add(squares * (alpha / size), changes, alpha=beta / size)
