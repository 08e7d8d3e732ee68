"""Publish a copy of a bundle with a reranker, and with a weights set of the same name that ranks by it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from rescorer.bundle import RERANKERS, WEIGHTS, Bundle, hash_used_models, publish
from rescorer.bundle.manifest import check_label
from rescorer.errors import BundleError, ConfigError, quote
from rescorer.reranking.files import write_reranker
from rescorer.reranking.reranker import Reranker
from rescorer.score_combination import weights_to_dict
from rescorer.types import Weights

PAGE = "README.md"
"""Page of figures in the folder of the reranker."""
MAX_NAME_BYTES = 200
"""Longest name in UTF-8; file systems allow 255 bytes with a suffix."""


def check_output(output: Path, bundle: Bundle, name: str) -> None:
    """Raise ConfigError, before any work is done, if the bundle cannot be written as the user asks."""
    if not (output.name.isascii() and output.name.isdecimal()):
        raise ConfigError(
            f"-o {output}: the last part of the path must be a version number, such as {output}/1"
        )
    _check_name("-o", output.absolute().parent.name)
    if output.exists():
        raise ConfigError(f"-o {output} exists, and bundles are immutable; choose another version")
    if name in bundle.weights or name in bundle.rerankers:
        taken = ", ".join({**bundle.weights, **bundle.rerankers})
        raise ConfigError(f"--name {quote(name)}: the bundle already has {taken}; choose another name")
    _check_name("--name", name)


def _check_name(option: str, name: str) -> None:
    """Raise ConfigError unless a folder and a weights set can have this name and be found by it."""
    try:
        check_label(option, "the name", name)
    except BundleError as error:
        raise ConfigError(str(error)) from None
    if name != name.strip() or name.startswith(".") or "\\" in name or len(name.encode()) > MAX_NAME_BYTES:
        raise ConfigError(f"{option} {quote(name)}: expected a name for a folder, such as reranker")


def publish_with_reranker(bundle: Bundle, reranker: Reranker, page: str, output: Path) -> None:
    """Copy a bundle as another version, and add a reranker.

    Args:
        page: Markdown page about the reranker, which is kept beside it.
        output: NAME/VERSION of the new bundle.
    """
    weights = Weights(
        reranker.name,
        lm={},
        rerankers={reranker.name: 1.0},
        mixture=reranker.base.mixture,
        cache=reranker.base.cache,
        tuned_on=reranker.tuned_on,
        held_out=reranker.held_out,
    )

    models = hash_used_models(reranker, bundle.manifest)

    def fill(partial: Path) -> dict[str, Any]:
        for file in bundle.manifest["files"]:
            copy = partial / file
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(bundle.folder / file, copy)
        write_reranker(replace(reranker, models=models), partial / RERANKERS / reranker.name)
        (partial / RERANKERS / reranker.name / PAGE).write_text(page, encoding="utf-8")
        file = partial / WEIGHTS / f"{reranker.name}.json"
        file.write_text(json.dumps(weights_to_dict(weights), indent=2) + "\n", encoding="utf-8")
        kept = {key: value for key, value in bundle.manifest.items() if key not in ("schema", "files")}
        return {**kept, "name": output.absolute().parent.name, "version": int(output.name)}

    publish(output, fill)
