"""Read and write the files of NIST's scoring tools: trn, ctm, stm, and references by utterance id.

Readers return words with times, segments, one-best lists, or dictionaries of references.
"""
