"""The command that imports language models of other toolkits."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rescorer.errors import ConfigError
from rescorer.evaluation.list_errors import format_size
from rescorer.terminal.options import expand_options
from rescorer.terminal.tables import FoldingTable, print_out
from rescorer_training.cli.options import JsonOption, NormaliserOption, ThreadsOption
from rescorer_training.corpus import choose_normaliser, read_sentences

if TYPE_CHECKING:
    from rescorer.units.importing import Candidate, Imported

Kind = Literal["hf", "gguf"]


@expand_options
def import_command(
    kind: Annotated[
        Kind, typer.Argument(help="hf: a folder that transformers saved; gguf: a file of llama.cpp.")
    ],
    source: Annotated[Path, typer.Argument(help="Folder or file of the model.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder to write; it must not exist.")],
    *,
    validation: Annotated[
        Path,
        typer.Option(
            help="Text like that of the lists, one sentence per line, never their references: start and end "
            "are chosen by it, and scores are checked on it."
        ),
    ],
    start: Annotated[
        str, typer.Option(help="Unit before every sentence: its name or number; auto: the best on the text.")
    ] = "auto",
    end: Annotated[
        str,
        typer.Option(
            help="Unit that ends a sentence; none: ends are not scored; auto: the best on the text, or none."
        ),
    ] = "auto",
    text: Annotated[
        Literal["canonical", "upper"],
        typer.Option(
            help="Writing of words that the model knows: as the normaliser writes them, or upper case."
        ),
    ] = "canonical",
    normaliser: NormaliserOption = None,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Import a language model in pieces of words from another toolkit.

    Example: rescorer-train import hf ~/SmolLM2-135M -o smollm --validation valid.txt.gz

    The scores of the imported model over a trie are compared with those of one sentence at a time; a model
    for which they differ is refused. Then: rescorer-train bundle mine/1 --units smollm=smollm --validation
    valid.txt.gz; its weight is lm:smollm.
    """
    # deferred, because importing torch takes seconds
    from rescorer.runtime import use_threads
    from rescorer.units.importing import CHOSEN_BY, import_model, read_gguf, read_huggingface

    if output.exists():
        raise ConfigError(f"{output}: exists already; name a new folder by --output")
    if threads:
        use_threads(threads)
    sentences = []
    for words in read_sentences([validation], choose_normaliser(normaliser, [])):
        sentences.append(words)
        if len(sentences) == CHOSEN_BY:
            break
    foreign = read_huggingface(source) if kind == "hf" else read_gguf(source)
    imported = import_model(foreign, output, sentences, start, end, text)
    if as_json:
        facts = {
            "config": imported.config.to_dict(),
            "check": asdict(imported.check),
            "starts": [asdict(one) for one in imported.starts],
            "ends": [asdict(one) for one in imported.ends],
            "parameters": imported.n_parameters,
        }
        typer.echo(json.dumps(facts, indent=2, ensure_ascii=False))
    else:
        print_import(imported, output)


READINGS = {
    "tree": "each distinct prefix of a list is computed once",
    "padded": "this model is scored one hypothesis after another, padded: slower",
    "alone": "this model is scored one hypothesis after another, by equal lengths: slower",
}
"""Sentences for users about the ways in which transformers reads a model."""


def print_import(imported: Imported, output: Path) -> None:
    """Print what was chosen and found, and the next command."""
    from rescorer.units.automodel import AutoModelConfig  # deferred, because importing torch takes seconds

    source, check = imported.config.source or {}, imported.check
    licence = f", licence {source['licence']}" if "licence" in source else ""
    size_bytes, decoder = 4 * imported.n_parameters, imported.config.decoder
    print_out(
        f"{source.get('architecture')}: {imported.n_parameters:,} parameters, "
        f"{size_bytes / 2**20:,.0f} MiB in float32{licence}"
    )
    if isinstance(decoder, AutoModelConfig):
        print_out(f"run by transformers {decoder.versions['transformers']}: {READINGS[decoder.reading]}")
    print_candidates("start", "perplexity per word", imported.starts)
    print_candidates("end", "mean ln P at the end", imported.ends)
    print_out(
        "",
        f"perplexity per word {format_size(check.perplexity)}; {check.words_per_s:,.0f} words of hypotheses "
        "a second of processor time",
        "scores of a trie and of one sentence at a time differ by at most "
        f"{check.max_difference:.1e} nats per word",
        f"{output}: imported; next: rescorer-train bundle BUNDLE/1 --units {shlex.quote(f'llm={output}')} "
        "--validation TEXT; rescorer tune then finds the weight lm:llm",
    )


def print_candidates(role: str, measure: str, candidates: Sequence[Candidate]) -> None:
    """Print the units that were considered, the chosen one first."""
    if not candidates:
        return
    table = FoldingTable(role, measure, title=f"{role}: {candidates[0].name!r} was chosen")
    for candidate in candidates:
        value = candidate.value
        table.add_row(repr(candidate.name), format_size(value) if value > 0 else f"{value:.2f}")
    print_out("", table)
