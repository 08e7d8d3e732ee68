"""Run ``rescorer-train`` as a module: ``python -m rescorer_training``, ``torchrun -m rescorer_training``."""

from rescorer_training.cli import main

main()
