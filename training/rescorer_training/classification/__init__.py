"""Classify sentences, or the words of a sentence, with the networks and the training loop of language models.

Reads one text per class; produces a classifier, its predictions and their accuracy beside naive Bayes.
"""
