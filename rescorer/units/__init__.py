"""Language models in pieces of words (units), from other toolkits.

Models of other toolkits come in (``huggingface``, ``gguf``, ``toolkits`` with ``checkpoints``), and folders
for bundles go out (``importing``, ``files``). A loaded model takes a trie of words, divides its words into
units (``tokens``), scores the trie of units with a transformer (``decoders``; further families are run by the
package of that name, ``automodel``) or a recurrent network (``recurrent``), and returns the score of each
word (``model``).
"""
