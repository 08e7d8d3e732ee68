"""Run ``rescorer`` as a module: ``python -m rescorer``."""

from rescorer.cli import main

main()
