"""The command ``rescorer-train vectors train``; most of its options are fields of ``Word2VecOptions``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from rescorer.cli.options.dataclass_options import expand_options
from rescorer.cli.output import print_results_apart
from rescorer.runtime.cpu_count import count_cpus
from rescorer_training.cli.options import JsonOption, TextsArgument
from rescorer_training.cli.vectors.options import OutputFormatOption, VectorRunOptions, VectorsOutputOption
from rescorer_training.cli.vectors.outputs import prepare_output
from rescorer_training.data.normalisation import choose_normaliser
from rescorer_training.vectors.files import write_vectors
from rescorer_training.vectors.files.formats import VectorFormat
from rescorer_training.vectors.word2vec.options import Word2VecOptions


@expand_options
def train_command(
    texts: TextsArgument,
    output: VectorsOutputOption,
    folder: Annotated[Path, typer.Option("--run", help="Folder of the run: text as ids, state, report.")],
    *,
    to: OutputFormatOption = VectorFormat.WORD2VEC,
    settings: VectorRunOptions,
    as_json: JsonOption = False,
    options: Word2VecOptions,
) -> None:
    """Train word vectors by skip-gram or CBOW (word2vec).

    Contexts end at the ends of sentences. With one thread the same seed gives the same vectors, also after
    an interruption; several threads change the same vectors without waiting, so that results vary a little.

    Example: rescorer-train vectors train books.txt.gz -o books.txt --run runs/books --model cbow
    """
    from rescorer_training.vectors.word2vec import run  # deferred, because importing torch takes seconds

    prepare_output(output)
    settings.check_folder(folder, texts)
    if not settings.resume:
        run.start_run(texts, choose_normaliser(settings.normaliser), folder, options)
    vectors, report = run.run(folder, options, settings.threads or count_cpus())
    write_vectors(output, vectors, to)
    with print_results_apart(output):
        if as_json:
            typer.echo(json.dumps(report))
        else:
            typer.echo(
                f"{output}: {len(vectors):,} words, {vectors.dimensions} dimensions; trained in "
                f"{report['seconds']:,.0f} s"
            )
