"""Train word vectors by CBOW and skip-gram (Mikolov et al. 2013, arXiv 1301.3781 and 1310.4546).

Texts come in and word vectors go out. Words are trained in blocks of about a thousand, whose scores and
gradients are matrix products; neighbouring words share noise words (Ji et al. 2016, arXiv 1604.04661).
"""
