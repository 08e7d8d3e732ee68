"""Context networks: they map words to vectors, from which an output layer predicts the next word."""

from rescorer.lm.files.network_config import NetworkConfig
from rescorer.lm.networks.base import ContextNetwork, State
from rescorer.lm.networks.model import NeuralModel, SequenceModel
from rescorer.lm.networks.recurrent import RecurrentNetwork
from rescorer.lm.networks.transformer import TransformerNetwork
from rescorer.lm.networks.windowed import WindowedNetwork

__all__ = [
    "ContextNetwork",
    "NetworkConfig",
    "NeuralModel",
    "RecurrentNetwork",
    "SequenceModel",
    "State",
    "TransformerNetwork",
    "WindowedNetwork",
]
