"""The command ``rescorer-train vectors lsa``."""

from __future__ import annotations

from typing import Annotated

import typer

from rescorer.cli.options.dataclass_options import expand_options
from rescorer.cli.output import print_results_apart
from rescorer_training.cli.options import NormaliserOption, SeedOption, TextsArgument
from rescorer_training.cli.vectors.options import DimensionsOption, MinCountOption, VectorsTarget
from rescorer_training.cli.vectors.outputs import open_temporary_folder, prepare_output
from rescorer_training.data.normalisation import choose_normaliser
from rescorer_training.vectors.files import write_vectors


@expand_options
def lsa_command(
    texts: TextsArgument,
    target: VectorsTarget,
    *,
    dimensions: DimensionsOption = 300,
    document_sentences: Annotated[
        int, typer.Option(help="Number of consecutive sentences that are one document.")
    ] = 1,
    min_count: MinCountOption = 5,
    seed: SeedOption = 1,
    normaliser: NormaliserOption = None,
) -> None:
    """Compute word vectors by latent semantic analysis: words that occur in the same documents.

    Counts are weighted by the entropy of their words. The matrix of words and documents is held in memory,
    about 50 bytes per word of the text.

    Example: rescorer-train vectors lsa books.txt.gz -o lsa.txt --dimensions 300
    """
    from rescorer_training.vectors.encoded_text import prepare_text
    from rescorer_training.vectors.lsa import analyse

    chosen = choose_normaliser(normaliser)
    prepare_output(target.output)
    with open_temporary_folder(target.output) as folder:
        text = prepare_text(texts, chosen, folder, min_count)
        vectors = analyse(text, dimensions, document_sentences, seed)
    write_vectors(target.output, vectors, target.to)
    with print_results_apart(target.output):
        typer.echo(f"{target.output}: {len(vectors):,} words, {vectors.dimensions} dimensions")
