"""Read and write the files of NIST's scoring tools: trn, ctm, stm, and references by utterance id.

Files come in; words with times, segments, one-best lists and dictionaries of references go out.
"""
