"""``python -m rescorer_training``: the same as ``rescorer-train``, for ``torchrun -m rescorer_training``."""

from rescorer_training.cli import main

main()
