"""The commands ``rescorer-train lists speech`` and ``rescorer-train lists text``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rescorer.cli.options.dataclass_options import expand_options
from rescorer.cli.options.lists import ListInputOptions
from rescorer.cli.options.scoring import ReferenceOption, make_list_reader
from rescorer.cli.output import PLAIN_HELP, check_output_path
from rescorer.errors import ConfigError
from rescorer.types import NBestList
from rescorer_training.cli.options import NormaliserOption

if TYPE_CHECKING:
    from rescorer_training.lists.texts import Choice

lists_app = typer.Typer(
    **PLAIN_HELP,
    help="Make n-best lists with references, for training where there are few real ones.",
    no_args_is_help=True,
)
TextsArgument = Annotated[
    list[Path], typer.Argument(metavar="TEXT...", help="Text files, one sentence per line.")
]
OutputOption = Annotated[
    Path, typer.Option("-o", "--output", help="JSON-lines file of lists to write; .gz compresses it.")
]
ExcludeOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="LISTS",
        help="Lists whose references must not be used, compared after normalisation; repeat for more files.",
    ),
]
MAX_WORDS = 20
"""Longer sentences take long to recognise."""


@dataclass(frozen=True, slots=True)
class SentenceOptions:
    """Which sentences of the texts to use."""

    number: Annotated[
        int, typer.Option("-n", "--number", min=1, help="Number of sentences; each gives one list.")
    ] = 1000
    seed: Annotated[int, typer.Option(help="Random seed.")] = 1
    min_words: Annotated[int, typer.Option(min=1, help="Smallest number of words per sentence.")] = 3
    max_words: Annotated[int, typer.Option(min=1, help="Largest number of words per sentence.")] = MAX_WORDS

    def to_choice(self) -> Choice:
        """Raises ConfigError if no sentence can be long and short enough."""
        from rescorer_training.lists.texts import Choice

        if self.min_words > self.max_words:
            raise ConfigError(
                f"--min-words {self.min_words} is more than --max-words {self.max_words}; "
                "no sentence has so many and so few words"
            )
        return Choice(self.number, self.seed, self.min_words, self.max_words)


@lists_app.command("speech")
@expand_options
def speech_command(
    texts: TextsArgument,
    output: OutputOption,
    *,
    exclude: ExcludeOption = None,
    sentences: SentenceOptions,
    voice: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PROGRAM:VOICE",
            help="Voice to use, such as flite:slt or espeak-ng:en-us+m3; repeat for more. Default: 5 of "
            "flite and 65 of espeak-ng.",
        ),
    ] = None,
    depth: Annotated[int, typer.Option(min=1, help="Maximum number of hypotheses per list.")] = 100,
    processes: Annotated[int, typer.Option(min=1, help="Number of processes.")] = 1,
    timeout: Annotated[
        float,
        typer.Option(min=1, metavar="SECONDS", help="Time for one sentence, after which it is rejected."),
    ] = 120.0,
    reference: ReferenceOption = None,
    list_options: ListInputOptions,
    normaliser: NormaliserOption = None,
) -> None:
    """Speak sentences by synthetic voices, and recognise them with PocketSphinx.

    Example: rescorer-train lists speech novel.txt -o lists.jsonl.gz -n 2000 --exclude test.jsonl

    Needs Debian's packages flite and espeak-ng, and the Python package pocketsphinx. Voice, speed, pitch and
    noise are drawn for each sentence and recorded in its list; the group of a list is its voice. Its streams
    are acoustic and lm; PocketSphinx itself ranks by acoustic=1,lm=9.5,word=-0.6296. Sentences that give no
    list are counted. A run that was interrupted goes on where it stopped when it is started again. --map,
    --stream, --format and --reference describe the files of --exclude.
    """
    from rescorer_training.data.normalisation import choose_normaliser
    from rescorer_training.lists.pocketsphinx import PocketSphinx, import_pocketsphinx
    from rescorer_training.lists.speech import SpeechSettings, make_speech_lists, unfinished_folder
    from rescorer_training.lists.synthesis import VOICES, check_voices
    from rescorer_training.lists.texts import choose_sentences, reference_words

    check_paths(output, texts, exclude or [])
    choice = sentences.to_choice()
    voices = tuple(dict.fromkeys(voice or VOICES))
    check_voices(voices)
    import_pocketsphinx()
    chosen_normaliser = choose_normaliser(normaliser)
    others = read_excluded(exclude or [], reference, list_options)
    excluded = reference_words(others, chosen_normaliser)
    chosen = choose_sentences(texts, chosen_normaliser, choice, excluded)
    settings = SpeechSettings(sentences.seed, depth, voices)
    try:
        summary = make_speech_lists(
            chosen, output, settings, PocketSphinx, n_processes=processes, timeout_s=timeout
        )
    except KeyboardInterrupt:
        kept = unfinished_folder(output)
        typer.echo(f"note: finished lists are kept in {kept}; start the command again to go on", err=True)
        raise
    _report_few(len(chosen), sentences.number)
    typer.echo(
        f"{count(summary.written, 'list')} written to {output}; "
        f"{count(summary.rejected.total(), 'sentence')} rejected"
    )
    for reason, n_sentences in summary.rejected.most_common():
        typer.echo(f"  {n_sentences:,}: {reason}")


@lists_app.command("text")
@expand_options
def text_command(
    texts: TextsArgument,
    output: OutputOption,
    like: Annotated[str, typer.Option(metavar="LISTS", help="Real lists with references to imitate.")],
    *,
    exclude: ExcludeOption = None,
    sentences: SentenceOptions,
    dictionary: Annotated[
        Path | None,
        typer.Option(
            help="Pronunciation dictionary in the form of the CMU dictionary. Default: that of the Python "
            "package pocketsphinx."
        ),
    ] = None,
    ngram: Annotated[
        Path | None,
        typer.Option(
            help="ARPA file or KenLM binary: wrong words fit their context, and scores follow it. Default: "
            "counts of words in the texts."
        ),
    ] = None,
    reference: ReferenceOption = None,
    list_options: ListInputOptions,
    normaliser: NormaliserOption = None,
) -> None:
    """Make lists from text alone, in imitation of real lists.

    Example: rescorer-train lists text novel.txt --like real.jsonl -o lists.jsonl.gz -n 5000

    Each list takes the pattern of a real one: which hypotheses are right, wrong and different at which words.
    Wrong words are drawn among those that sound like the right ones, and scores follow the words as they do
    in real lists. The group of a list is that of the real list that it imitates. References of --like and
    --exclude are not used. --map, --stream, --format, --groups and --reference describe these files.
    """
    from rescorer.formats.nbest.jsonlines import writer
    from rescorer_training.data.corpus import count_words
    from rescorer_training.data.normalisation import choose_normaliser
    from rescorer_training.lists.context_model import CountModel, NGramContext
    from rescorer_training.lists.pocketsphinx import dictionary_path
    from rescorer_training.lists.pronunciations import Pronunciations
    from rescorer_training.lists.text import ListImitator
    from rescorer_training.lists.texts import choose_sentences, reference_words
    from rescorer_training.progress import track

    check_paths(output, texts, [like, *(exclude or [])])
    check_read_twice(texts)
    choice = sentences.to_choice()
    pronunciations = Pronunciations.read(dictionary or dictionary_path())
    chosen_normaliser = choose_normaliser(normaliser, [ngram] if ngram else [])
    real = read_lists([like], reference, list_options)
    counts = count_words(texts, chosen_normaliser)
    model = NGramContext(ngram) if ngram else CountModel(counts)
    imitator = ListImitator(real, chosen_normaliser, pronunciations, counts, model)
    others = read_excluded(exclude or [], reference, list_options)
    excluded = reference_words([*real, *others], chosen_normaliser)
    chosen = choose_sentences(texts, chosen_normaliser, choice, excluded)
    with writer(output) as write, track("making lists", "lists", len(chosen)) as task:
        for nbest in imitator.make_all(chosen):
            write(nbest)
            task.advance()
    _report_few(len(chosen), sentences.number)
    made, imitated = count(len(chosen), "list"), count(len(imitator.templates), "real list")
    typer.echo(f"{made} written to {output}, in imitation of {imitated}")


def read_lists(files: Sequence[str], reference: str | None, options: ListInputOptions) -> list[NBestList]:
    """Read the lists of files, which must all have references.

    Raises:
        InputError: a list cannot be read.
        ConfigError: a file has no references.
    """
    lists: list[NBestList] = []
    read = make_list_reader(reference, options)
    for file in files:
        before = len(lists)
        for item in read(file):
            if not isinstance(item, NBestList):
                raise item
            lists.append(item)
        if all(nbest.reference is None for nbest in lists[before:]):
            raise ConfigError(
                f"{file}: no list has a reference; name their field with --map reference=FIELD, or give "
                "a file with --reference"
            )
    return lists


def read_excluded(files: Sequence[str], reference: str | None, options: ListInputOptions) -> list[NBestList]:
    """Read lists whose references must not be used; a note on stderr says how many have none."""
    lists = read_lists(files, reference, options)
    if missing := sum(nbest.reference is None for nbest in lists):
        without = f"{missing:,} of the {len(lists):,} lists of --exclude have no reference"
        typer.echo(f"note: {without}; what was said in them may be in the result", err=True)
    return lists


def check_paths(output: Path, texts: Sequence[Path], lists: Sequence[str]) -> None:
    """Raise ConfigError unless a file can be written that is neither an input nor a device or pipe."""
    check_output_path("-o", output, inputs=[*map(str, texts), *lists])
    if output.exists() and not output.is_file():
        raise ConfigError(f"-o {output}: expected the name of a file, not of a device or pipe")


def check_read_twice(texts: Sequence[Path]) -> None:
    """Raise ConfigError if a text is a pipe, which can be read only once."""
    for text in texts:
        if str(text) == "-" or text.is_fifo():
            raise ConfigError(f"{text}: is a pipe, but texts are read twice; write it to a file first")


def _report_few(n_chosen: int, n_wanted: int) -> None:
    if n_chosen < n_wanted:
        fitting = count(n_chosen, "fitting sentence")
        typer.echo(f"note: the texts have only {fitting}, not {n_wanted:,}", err=True)


def count(number: int, noun: str) -> str:
    """A number with its noun.

    >>> count(1, "list"), count(2_000, "list")
    ('1 list', '2,000 lists')
    """
    return f"{number:,} {noun}{'s' * (number != 1)}"
