"""Score tries with back-off n-gram models: from flat arrays, all edges of a trie at once, or with KenLM.

A model file comes in, ARPA or our own or a KenLM binary; an ``NgramModel`` goes out, which takes tries. Its
table can be placed on a GPU.
"""

from rescorer.lm.ngrams.model import LN_10, NgramModel
from rescorer.lm.ngrams.placement import place_ngram
from rescorer.lm.ngrams.reading import read_ngram

__all__ = ["LN_10", "NgramModel", "place_ngram", "read_ngram"]
