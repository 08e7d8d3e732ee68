"""Evaluate language models on text.

Takes trained models and text or questions; returns perplexities, interpolation weights, answers to
sentence-completion questions, and sampled sentences.
"""
