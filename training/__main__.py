"""``python -m training``: the same as ``rescorer-train``, for ``torchrun -m training``."""

from training.cli import main

main()
