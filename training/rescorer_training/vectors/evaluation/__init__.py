"""Judge word vectors: nearest neighbours, analogies, and similarities that people gave.

Word vectors and questions come in; words, accuracies and rank correlations with their intervals go out.
"""
