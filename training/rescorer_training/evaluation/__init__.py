"""Measure language models on text: perplexity, mixture weights, sentence completion, samples."""
