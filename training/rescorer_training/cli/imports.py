"""The command that imports language models of other toolkits."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rescorer.errors import ConfigError
from rescorer.evaluation.list_errors import format_size
from rescorer.terminal.list_options import ListFormatOptions, ListInputOptions
from rescorer.terminal.options import expand_options
from rescorer.terminal.tables import FoldingTable, print_out
from rescorer.text import Normaliser
from rescorer.trie import Words
from rescorer_training.cli.options import JsonOption, NormaliserOption, ThreadsOption
from rescorer_training.corpus import choose_normaliser, read_sentences
from rescorer_training.progress import option

if TYPE_CHECKING:
    from rescorer.units.importing import Candidate, Imported

Kind = Literal["hf", "gguf"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoosingText:
    """The text that chooses start and end."""

    validation: Path | None = option(
        None,
        "Text like that of the lists, one sentence per line, never their references: start and end are "
        "chosen by it, and scores are checked on it.",
    )
    lists: str | None = option(
        None, "N-best lists, whose first hypotheses take the place of --validation.", metavar="LISTS"
    )
    list_format: ListFormatOptions

    def read(self, normaliser: Normaliser) -> list[Words]:
        """Read the first sentences; raise ConfigError unless there is one text."""
        from rescorer.units.importing import CHOSEN_BY, first_best_sentences  # imports torch

        if self.lists is not None and self.validation is None:
            lists = ListInputOptions(**asdict(self.list_format)).read(self.lists)
            return first_best_sentences(lists, normaliser.normalise)
        if self.validation is not None and self.lists is None:
            return list(islice(read_sentences([self.validation], normaliser), CHOSEN_BY))
        raise ConfigError(
            "start and end are chosen by a text: give either --validation TEXT or --lists LISTS"
        )


@expand_options
def import_command(
    kind: Annotated[
        Kind, typer.Argument(help="hf: a folder that transformers saved; gguf: a file of llama.cpp.")
    ],
    source: Annotated[Path, typer.Argument(help="Folder or file of the model.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder to write; it must not exist.")],
    *,
    chosen_by: ChoosingText,
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
    from rescorer.units.importing import (
        hash_source,
        import_model,
        read_gguf,
        read_huggingface,
    )

    if output.exists():
        raise ConfigError(f"{output}: exists already; name a new folder by --output")
    if threads:
        use_threads(threads)
    sentences = chosen_by.read(choose_normaliser(normaliser, []))
    foreign = read_huggingface(source) if kind == "hf" else read_gguf(source)
    foreign = replace(foreign, source={**foreign.source, "sha256": hash_source(source)})
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


def print_import(imported: Imported, output: Path) -> None:
    """Print what was chosen and found, and the next command."""
    source, check = imported.config.source or {}, imported.check
    licence = f", licence {source['licence']}" if "licence" in source else ""
    size_bytes = 4 * imported.n_parameters
    print_out(
        f"{source.get('architecture')}: {imported.n_parameters:,} parameters, "
        f"{size_bytes / 2**20:,.0f} MiB in float32{licence}"
    )
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
