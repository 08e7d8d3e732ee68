"""Features beside the word: encoded text in, vectors or ids of features out, and networks that read them.

``docs/decisions/feature-inputs.md`` says how a word's input is made of its embedding and its features.
"""
