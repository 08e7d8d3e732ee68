"""Owns what a glance at this machine tells before anything starts: whether bundles and device are here."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rescorer.errors import BundleError

if TYPE_CHECKING:
    from rescorer.service.settings import ServiceSettings


def missing_bundles(settings: ServiceSettings) -> Iterator[str]:
    """What is wrong with the folder of models; whether they can be used is seen when they are loaded."""
    # numpy and KenLM behind it are for who gets this far
    from rescorer.service.models.discovery import NO_BUNDLES, find, wanted

    folder = settings.repository or settings.bundle
    if folder is None:
        return
    try:
        found = find(folder, single=settings.repository is None)
    except BundleError as fault:
        yield str(fault)
        return
    if not found:
        yield f"{folder}: {NO_BUNDLES}"
    elif settings.repository is not None:
        for name, versions in wanted(found, settings.models).items():
            if not versions:
                yield f"{folder}: has no bundle {name}"


def missing_device(settings: ServiceSettings) -> Iterator[str]:
    """That the device is not here; asked of a process of its own, for the server does without torch."""
    if settings.device != "cpu":
        command = [sys.executable, "-m", "rescorer.lm.device", settings.device]
        fault = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
        if fault:
            yield fault
