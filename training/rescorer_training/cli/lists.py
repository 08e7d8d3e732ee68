"""The commands ``rescorer-train lists speech`` and ``rescorer-train lists text``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from rescorer.cli.options.dataclass_options import expand_options
from rescorer.cli.options.lists import ListInputOptions
from rescorer.cli.options.scoring import ReferenceOption, make_list_reader
from rescorer.cli.output import PLAIN_HELP, check_output_path
from rescorer.errors import ConfigError
from rescorer.types import NBestList
from rescorer_training.cli.options import NormaliserOption

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
    from rescorer_training.lists.speech import SpeechSettings, make_speech_lists
    from rescorer_training.lists.synthesis import VOICES, check_voices
    from rescorer_training.lists.texts import Choice, choose_sentences, reference_words

    check_output_path("-o", output)
    voices = tuple(dict.fromkeys(voice or VOICES))
    check_voices(voices)
    import_pocketsphinx()
    chosen_normaliser = choose_normaliser(normaliser)
    excluded = reference_words(read_lists(exclude or [], reference, list_options), chosen_normaliser)
    choice = Choice(sentences.number, sentences.seed, sentences.min_words, sentences.max_words)
    chosen = choose_sentences(texts, chosen_normaliser, choice, excluded)
    settings = SpeechSettings(sentences.seed, depth, voices)
    summary = make_speech_lists(
        chosen, output, settings, PocketSphinx, n_processes=processes, timeout_s=timeout
    )
    _report_few(len(chosen), sentences.number)
    typer.echo(
        f"{summary.written:,} lists written to {output}; {summary.rejected.total():,} sentences rejected"
    )
    for reason, count in summary.rejected.most_common():
        typer.echo(f"  {count:,}: {reason}")


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
    from rescorer_training.lists.texts import Choice, choose_sentences, reference_words
    from rescorer_training.progress import track

    check_output_path("-o", output)
    pronunciations = Pronunciations.read(dictionary or dictionary_path())
    chosen_normaliser = choose_normaliser(normaliser, [ngram] if ngram else [])
    real = read_lists([like], reference, list_options)
    counts = count_words(texts, chosen_normaliser)
    model = NGramContext(ngram) if ngram else CountModel(counts)
    imitator = ListImitator(real, chosen_normaliser, pronunciations, counts, model)
    others = read_lists(exclude or [], reference, list_options)
    excluded = reference_words([*real, *others], chosen_normaliser)
    choice = Choice(sentences.number, sentences.seed, sentences.min_words, sentences.max_words)
    chosen = choose_sentences(texts, chosen_normaliser, choice, excluded)
    with writer(output) as write, track("making lists", "lists", len(chosen)) as task:
        for nbest in imitator.make_all(chosen):
            write(nbest)
            task.advance()
    _report_few(len(chosen), sentences.number)
    typer.echo(f"{len(chosen):,} lists written to {output}, in imitation of {len(imitator.templates):,}")


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


def _report_few(n_chosen: int, n_wanted: int) -> None:
    if n_chosen < n_wanted:
        typer.echo(f"note: the texts have only {n_chosen:,} sentences that fit, not {n_wanted:,}", err=True)
