"""N-best rescoring for speech recognition."""
