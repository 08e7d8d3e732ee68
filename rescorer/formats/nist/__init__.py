"""NIST's trn, ctm and stm files, and references by utterance id."""
