"""Files of word vectors, as word2vec and GloVe write them.

A file comes in and words with vectors go out, or the reverse; ``read_vectors`` and ``write_vectors`` are all
that other folders need.
"""

from rescorer_training.vectors.files.reading import read_vectors
from rescorer_training.vectors.files.writing import write_vectors

__all__ = ["read_vectors", "write_vectors"]
