"""Output layers of language models: from a context vector to the log-probability of a word."""

from rescorer.lm.output.base import OutputLayer
from rescorer.lm.output.classes import ClassFactoredSoftmax
from rescorer.lm.output.full import FullSoftmax
from rescorer.lm.output.mixture import MixtureOfSoftmaxes
from rescorer.lm.output.tree import TreeSoftmax

__all__ = ["ClassFactoredSoftmax", "FullSoftmax", "MixtureOfSoftmaxes", "OutputLayer", "TreeSoftmax"]
