"""Accept former names of modules until 0.2.

If a module became one other module, its former name is imported with a warning. If it was divided among
several modules, its import raises an error that says where to look. CHANGELOG.md has the same table.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType

MODULES = {
    "rescorer.bundle": "rescorer.models.bundle",
    "rescorer.conversation": "rescorer.types",
    "rescorer.model_loading": "rescorer.pipeline",
    "rescorer.options": "rescorer.scoring.options",
    "rescorer.preparation": "rescorer.list_checks",
    "rescorer.score_combination": "rescorer.weights",
    "rescorer.service.models": "rescorer.service.repository",
    "rescorer.trie_scorer": "rescorer.pipeline",
    "rescorer.vocabulary": "rescorer.models.network_files",
}
"""Modules by their former names."""
ROOMS = {
    "rescorer.cli.options": "rescorer.terminal",
    "rescorer.cli.render": "rescorer.terminal",
    "rescorer.files": "rescorer.jobs",
    "rescorer.lm": "rescorer.models",
    "rescorer.load": "rescorer.bench.load",
    "rescorer.service.net": "rescorer.service",
    "rescorer.shards": "rescorer.jobs",
}
"""For former folders of modules whose content was divided: where to look for it now."""


class _FormerModule:
    """Loads the present module under its former name."""

    def create_module(self, spec: ModuleSpec) -> None:
        """Return None, so that Python makes an empty module, which ``exec_module`` replaces."""

    def exec_module(self, module: ModuleType) -> None:
        former, new = module.__name__, MODULES[module.__name__]
        warnings.warn(
            f"{former} is {new} now; 0.2 will refuse its former name", DeprecationWarning, stacklevel=2
        )
        sys.modules[former] = import_module(new)


class FormerNames:
    """Finds modules by their former names, after all other finders have failed."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name in MODULES:
            return ModuleSpec(name, _FormerModule())  # type: ignore[arg-type]  # importing its class takes 10 ms
        for room, new in ROOMS.items():
            if name == room or name.startswith(f"{room}."):
                raise ModuleNotFoundError(f"No module named {name!r}: look in {new}", name=name)
        return None


def accept_former_names() -> None:
    """Let imports find modules by their former names."""
    sys.meta_path.append(FormerNames())
