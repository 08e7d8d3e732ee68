"""The command ``rescorer-train vectors export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rescorer.bundle import read_bundle
from rescorer.cli.output import print_results_apart
from rescorer.errors import ConfigError
from rescorer.formats.io.targets import check_not_input
from rescorer.formats.io.utterance_folder import list_files
from rescorer.safe_input.files import Folder
from rescorer_training.cli.vectors.options import OutputFormatOption, VectorsOutputOption
from rescorer_training.cli.vectors.outputs import prepare_output
from rescorer_training.evaluation.model_set import resolve_model_folder
from rescorer_training.vectors.files import write_vectors
from rescorer_training.vectors.files.formats import VectorFormat


def export_command(
    output: VectorsOutputOption,
    neural: Annotated[
        Path | None, typer.Option(help="Folder of a trained network or of its run, of any kind.")
    ] = None,
    bundle: Annotated[
        Path | None, typer.Option(help="Bundle folder instead: NAME/VERSION, or NAME for its newest version.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Network of the bundle, if it has several.")
    ] = None,
    output_layer: Annotated[
        bool, typer.Option(help="Word vectors of the output layer instead of the input embedding.")
    ] = False,
    to: OutputFormatOption = VectorFormat.WORD2VEC,
) -> None:
    """Export the embeddings of a language model as word vectors.

    Works for log-bilinear, feed-forward, recurrent and transformer networks alike. The words are in the order
    of the network's vocabulary, without <s>, </s> and <unk>.

    Example: rescorer-train vectors export --neural runs/lstm -o lstm-embeddings.txt
    """
    from rescorer_training.vectors.export import export_embeddings  # deferred: importing torch takes seconds

    prepare_output(output)
    folder = _choose_folder(neural, bundle, model)
    if isinstance(folder, Path):
        check_not_input("-o", output, list_files(folder))
    vectors = export_embeddings(folder, output=output_layer)
    write_vectors(output, vectors, to)
    with print_results_apart(output):
        typer.echo(f"{output}: {len(vectors):,} words, {vectors.dimensions} dimensions")


def _choose_folder(neural: Path | None, bundle: Path | None, model: str | None) -> Path | Folder:
    """Return the folder of the network to export.

    Raises:
        ConfigError: not exactly one of network and bundle is given, or the bundle's network is not clear.
    """
    if (neural is None) == (bundle is None):
        raise ConfigError("expected either --neural or --bundle")
    if neural is not None:
        if model is not None:
            raise ConfigError("--model names a network of a bundle; give it with --bundle")
        return resolve_model_folder(neural)
    assert bundle is not None
    content = read_bundle(bundle)
    names = [name for name, kind in content.model_kinds.items() if kind == "neural"]
    if not names:
        raise ConfigError(f"{content.folder}: the bundle has no network")
    if model is None and len(names) == 1:
        model = names[0]
    if model not in names:
        raise ConfigError(f"{content.folder}: expected --model with one of {', '.join(names)}, got {model}")
    return content.files.subfolder(content.manifest["models"][model]["path"].rstrip("/"))
