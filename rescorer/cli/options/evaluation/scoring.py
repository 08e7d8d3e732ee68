"""Options for references and for counting errors, shared by all commands that count errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from rescorer.bundle import read_normaliser
from rescorer.cli.options.lists import ListInputOptions, Lists
from rescorer.cli.output import MAX_EXAMPLES, Rejections
from rescorer.errors import ConfigError, InputError
from rescorer.evaluation.error_rate.counting import CountingSettings, Method
from rescorer.evaluation.error_rate.time_alignment import align_by_time
from rescorer.formats.nbest.plain_text import Reading, Sentences, classify
from rescorer.formats.nist.references import read_references
from rescorer.formats.nist.trn_ctm import is_stm, read_ctm, read_stm
from rescorer.formats.registry import choose, is_plain_text
from rescorer.pipeline import Rescorer
from rescorer.text import Normaliser
from rescorer.types import NBestList

ReferenceOption = Annotated[
    str | None,
    typer.Option(
        help="Reference transcripts by id: lines `id words` (Kaldi's text), `words (id)`, id<TAB>text or "
        "JSON; or by time, if the name ends in .stm and FILE is a ctm; or in order, if both are sentences."
    ),
]
NormaliserOption = Annotated[
    Path | None,
    typer.Option(help="JSON file of normaliser settings; default: those of the bundle, or lower case."),
]


@dataclass(frozen=True, slots=True)
class CountingOptions:
    """How to count errors; see ``CountingSettings``."""

    counting: Annotated[
        Method,
        typer.Option(
            help="levenshtein: fewest errors that explain a hypothesis; sclite: errors of the alignment by "
            "NIST's sclite, sometimes one more."
        ),
    ] = "levenshtein"
    characters: Annotated[
        bool, typer.Option("--characters", help="Count characters without spaces, not words (sclite -c).")
    ] = False
    optional_words: Annotated[
        bool, typer.Option("--optional-words", help="With sclite: allow (word) to be left out (its -D).")
    ] = False
    fragments: Annotated[
        bool,
        typer.Option("--fragments", help="With sclite: match wo- with words that start with wo (its -F)."),
    ] = False

    def settings(self) -> CountingSettings:
        """Raises ConfigError if the options contradict each other."""
        return CountingSettings(self.counting, self.characters, self.optional_words, self.fragments)


def choose_normaliser(path: Path | None, rescorer: Rescorer | None) -> Normaliser:
    """The normaliser of ``--normaliser``, else of the bundle, else the default one.

    Raises:
        ConfigError: the file does not exist.
        BundleError: the file is not one of normaliser settings.
    """
    if path:
        if not path.exists():
            raise ConfigError(
                f"--normaliser {path}: no such file; expected a JSON file of normaliser settings, such as "
                "the text.json of a bundle; leave it out for the normaliser of the bundle, or lower case"
            )
        return read_normaliser(path)
    return rescorer.bundle.normaliser if rescorer else Normaliser()


def make_list_reader(reference: str | None, options: ListInputOptions) -> Callable[[str], Lists]:
    """Build a function that reads the lists of a file with their references: by id; by time for an stm; or in
    order, for references that are plain sentences and lists without ids.

    Raises:
        ConfigError: the options do not fit an stm.
    """
    if reference and is_stm(reference):
        if options.is_set:
            raise ConfigError(
                "an stm scores a ctm and names its speakers: omit --map, --stream, --groups and --format"
            )
        segments = list(read_stm(reference))
        return lambda file: iter(align_by_time(read_ctm(file), segments))
    sentences = Sentences.read(reference) if reference and is_plain_text(reference) else None
    if sentences is not None and classify(sentences.texts) is Reading.IDS:
        sentences = None
    references = read_references(reference) if reference and sentences is None else None

    def read(file: str) -> Lists:
        nonlocal references
        lists = options.read(file, reference=reference)
        if sentences is not None and choose(options.find_format(file, reference)).format.is_numbered:
            items = list(lists)
            texts, n_lists = sentences.number(items, file)
            return add_references(iter(items[:n_lists]), texts, file)
        if references is None:
            references = read_references(reference) if reference else {}
        return add_references(lists, references, file)

    return read


def add_references(lists: Lists, references: Mapping[str, str], file: str) -> Lists:
    """Yield the lists with their references; report references without a list on stderr.

    Where lists lack a reference too, the ids may be written differently: one of each side is shown.
    """
    unused = dict.fromkeys(references)
    without_reference: str | None = None
    for item in lists:
        if isinstance(item, NBestList) and item.id in references:
            item = replace(item, reference=references[item.id])
        elif isinstance(item, NBestList) and item.reference is None and without_reference is None:
            without_reference = item.id
        unused.pop(item.id if isinstance(item, NBestList) else getattr(item, "list_id", ""), None)
        yield item
    if unused:
        examples = ", ".join(map(repr, islice(unused, MAX_EXAMPLES)))
        more = ", …" if len(unused) > MAX_EXAMPLES else ""
        message = f"{file}: no lists for {len(unused):,} of {len(references):,} references: {examples}{more}"
        if without_reference is not None:
            message += f"; there is a list {without_reference!r} without a reference: are ids written alike?"
        typer.echo(message, err=True)


def collect_lists(lists: Iterable[NBestList | InputError], rejected: Rejections) -> list[NBestList]:
    """Collect the lists that could be read; add the errors to ``rejected``."""
    good: list[NBestList] = []
    for item in lists:
        if isinstance(item, NBestList):
            good.append(item)
        else:
            rejected.add(item)
    return good
