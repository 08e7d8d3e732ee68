"""The benchmark of scoring: each phase beside the machine's own speed, a plain PyTorch scorer and KenLM."""
