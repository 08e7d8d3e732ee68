"""Language models in pieces of words (units), from other toolkits.

Models of other toolkits come in (``huggingface``, ``gguf``, ``toolkits`` with ``checkpoints``), and folders
for bundles go out (``importing``, ``files``), or for one command (``cache``). A loaded model takes a trie of
words, divides its words into units (``tokens``), scores the trie of units with a transformer (``decoders``),
a recurrent network (``recurrent``) or a network of the package transformers (``automodel``), and returns the
score of each word (``model``).
"""
