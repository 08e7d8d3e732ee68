"""Publish a bundle again with n-gram tables in place of its ARPA files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from rescorer.bundle import RERANKERS, Bundle, publish, read_bundle
from rescorer.bundle.publishing import hash_files
from rescorer.bundle.rerankers import hash_model
from rescorer.errors import ConfigError
from rescorer.lm.files.arpa import has_arpa_header
from rescorer.lm.ngrams.reading import read_arpa_model
from rescorer.lm.ngrams.table_file import SUFFIX, write_table
from rescorer.reranking.files import CONFIG_FILE


def write_arpa_table(arpa: BinaryIO, path: Path) -> None:
    """Write an open ARPA file as an n-gram table; raises BundleError if it cannot be read."""
    model = read_arpa_model(arpa)
    with path.open("wb") as output:
        write_table(output, model.content)


def publish_tables(source: Path, output: Path) -> list[str]:
    """Publish a bundle that differs from another only by n-gram tables in place of ARPA files.

    Scores stay the same to the last bit, so weights sets and rerankers stay valid.

    Args:
        output: folder of the new bundle, NAME/VERSION.

    Returns:
        Names of the models that have become tables.

    Raises:
        BundleError: the bundle cannot be read.
        ConfigError: it has no ARPA file, or the output exists.
    """
    bundle = read_bundle(source)
    converted = [name for name in bundle.manifest["models"] if _is_arpa(bundle, name)]
    if not converted:
        kinds = ", ".join(f"{name} ({kind})" for name, kind in bundle.model_kinds.items())
        raise ConfigError(f"{bundle.label}: has no n-gram as ARPA file to make a table of; it has {kinds}")
    publish(output, lambda partial: _fill(partial, bundle, converted, output))
    return converted


def _is_arpa(bundle: Bundle, name: str) -> bool:
    entry = bundle.manifest["models"][name]
    if entry["kind"] != "ngram":
        return False
    with bundle.files.open(entry["path"]) as stream:
        return has_arpa_header(stream)


def _fill(partial: Path, bundle: Bundle, converted: list[str], output: Path) -> dict[str, Any]:
    """Write the files of the new bundle; return its manifest."""
    entries = dict(bundle.manifest["models"])
    arpa_files = {entries[name]["path"] for name in converted}
    for file in bundle.manifest["files"]:
        if file not in arpa_files:
            (partial / file).parent.mkdir(parents=True, exist_ok=True)
            with bundle.files.open(file) as stream, (partial / file).open("wb") as copy:
                shutil.copyfileobj(stream, copy)
    for name in converted:
        path = PurePosixPath(entries[name]["path"])
        table = str(path.with_name(path.name.split(".")[0] + SUFFIX))
        entries[name] = {**entries[name], "path": table}
        (partial / table).parent.mkdir(parents=True, exist_ok=True)
        with bundle.files.open(str(path)) as stream:
            write_arpa_table(stream, partial / table)
    manifest = {"models": entries, "files": hash_files(partial)}
    for name in bundle.rerankers:
        _update_hashes(partial / RERANKERS / name / CONFIG_FILE, manifest)
    kept = {key: value for key, value in bundle.manifest.items() if key not in ("schema", "files")}
    return {
        **kept,
        "name": output.absolute().parent.name,
        "version": int(output.name),
        "models": entries,
        "training": {**bundle.manifest.get("training", {}), "tables_of": bundle.label},
    }


def _update_hashes(path: Path, manifest: Mapping[str, Any]) -> None:
    """Let a reranker name the models by the hashes of their new files."""
    config = json.loads(path.read_text(encoding="utf-8"))
    config["models"] = {name: hash_model(manifest, name) for name in config["models"]}
    path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
