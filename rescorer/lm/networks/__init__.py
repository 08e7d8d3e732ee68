"""Context networks of language models: words in, vectors out, from which an output layer predicts."""

from rescorer.lm.networks.base import ContextNetwork, State
from rescorer.lm.networks.config import NetworkConfig
from rescorer.lm.networks.model import NeuralModel

__all__ = ["ContextNetwork", "NetworkConfig", "NeuralModel", "State"]
