"""Sentence completion: choose the word that is missing in a sentence, by language models and word vectors.

Zweig & Burges (2011), "The Microsoft Research sentence completion challenge". Questions and models come in;
scores of candidates, answers, and what a learned combination of the scores answers come out.
"""
