"""Language models in pieces of words (units), from other toolkits.

Folders and files of other toolkits come in (``importing``, ``huggingface``, ``gguf``), and folders for
bundles go out (``files``). A loaded model takes a trie of words, divides its words into units (``tokens``),
scores the trie of units with a decoder (``decoders``; for further families, transformers runs it:
``automodel``), and returns the score of each word (``model``).
"""
