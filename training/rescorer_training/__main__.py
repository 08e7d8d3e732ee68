"""Run ``rescorer-train`` as a module: ``python -m rescorer_training``, ``torchrun -m rescorer_training``."""

from rescorer_training.cli import main
from rescorer_training.progress import end_without_finalisation

with end_without_finalisation():
    main()
