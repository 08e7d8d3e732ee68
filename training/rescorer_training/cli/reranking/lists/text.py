"""The command ``rescorer-train lists text``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from rescorer.cli.options.dataclass_options import expand_options
from rescorer.errors import ConfigError
from rescorer_training.cli.options import JsonOption
from rescorer_training.cli.reranking.lists.common import (
    OutputOption,
    ReadingOptions,
    SentenceOptions,
    TextsArgument,
    check_paths,
    count,
    report_few,
)


@dataclass(frozen=True, slots=True)
class WrongWordOptions:
    """What wrong words sound like, and in which contexts they occur."""

    dictionary: Annotated[
        Path | None,
        typer.Option(
            help="Pronunciation dictionary in the form of the CMU dictionary. Default: that of the Python "
            "package pocketsphinx."
        ),
    ] = None
    ngram: Annotated[
        Path | None,
        typer.Option(
            help="ARPA file or KenLM binary: wrong words fit their context, and scores follow it. Default: "
            "counts of words in the texts."
        ),
    ] = None


@expand_options
def text_command(
    texts: TextsArgument,
    output: OutputOption,
    like: Annotated[str, typer.Option(metavar="LISTS", help="Real lists with references to imitate.")],
    *,
    sentences: SentenceOptions,
    wrong_words: WrongWordOptions,
    reading: ReadingOptions,
    as_json: JsonOption = False,
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

    check_paths(output)
    check_read_twice(texts)
    choice = sentences.to_choice()
    pronunciations = Pronunciations.read(wrong_words.dictionary or dictionary_path())
    ngram = wrong_words.ngram
    normaliser = choose_normaliser(reading.normaliser, [ngram] if ngram else [])
    real = reading.read_lists([like])
    counts = count_words(texts, normaliser)
    model = NGramContext(ngram) if ngram else CountModel(counts)
    imitator = ListImitator(real, normaliser, pronunciations, counts, model)
    others = reading.read_excluded(sentences.exclude or [])
    excluded = reference_words([*real, *others], normaliser)
    chosen = choose_sentences(texts, normaliser, choice, excluded)
    with writer(output) as write, track("making lists", "lists", len(chosen)) as task:
        for nbest in imitator.make_all(chosen):
            write(nbest)
            task.advance()
    report_few(len(chosen), sentences.number)
    if as_json:
        facts = {"output": str(output), "written": len(chosen), "imitated": len(imitator.templates)}
        typer.echo(json.dumps(facts, indent=2))
        return
    made, imitated = count(len(chosen), "list"), count(len(imitator.templates), "real list")
    typer.echo(f"{made} written to {output}, in imitation of {imitated}")


def check_read_twice(texts: Sequence[Path]) -> None:
    """Raise ConfigError if a text is a pipe, which can be read only once."""
    for text in texts:
        if str(text) == "-" or text.is_fifo():
            raise ConfigError(f"{text}: is a pipe, but texts are read twice; write it to a file first")
