"""The command ``rescorer-train lists speech``."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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

if TYPE_CHECKING:
    from rescorer_training.lists.speech import Summary


@dataclass(frozen=True, slots=True)
class NoiseOptions:
    """How much noise to add."""

    min_snr: Annotated[
        float, typer.Option(metavar="DB", help="Least ratio of speech to added noise, in decibels.")
    ] = 20.0
    max_snr: Annotated[
        float, typer.Option(metavar="DB", help="Largest ratio of speech to added noise, in decibels.")
    ] = 40.0

    def to_range(self) -> tuple[float, float]:
        """Raises ConfigError if the range is empty or not finite."""
        if not -math.inf < self.min_snr <= self.max_snr < math.inf:
            raise ConfigError(
                f"--min-snr {self.min_snr:g}, --max-snr {self.max_snr:g}: expected two numbers in decibels, "
                "the first at most as large as the second"
            )
        return self.min_snr, self.max_snr


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechOptions:
    """How sentences are spoken and recognised."""

    voice: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PROGRAM:VOICE",
            help="Voice to use, such as flite:slt, festival:ked_diphone or espeak-ng:en-us+m3; repeat for "
            "more. Default: 5 of flite and 3 of festival.",
        ),
    ] = None
    depth: Annotated[int, typer.Option(min=1, help="Maximum number of hypotheses per list.")] = 100
    processes: Annotated[int, typer.Option(min=1, help="Number of processes.")] = 1
    noise: NoiseOptions
    timeout: Annotated[
        float,
        typer.Option(min=1, metavar="SECONDS", help="Time for one sentence, after which it is rejected."),
    ] = 120.0


@expand_options
def speech_command(
    texts: TextsArgument,
    output: OutputOption,
    *,
    sentences: SentenceOptions,
    speech: SpeechOptions,
    reading: ReadingOptions,
    as_json: JsonOption = False,
) -> None:
    """Speak sentences by synthetic voices, and recognise them with PocketSphinx.

    Example: rescorer-train lists speech novel.txt -o lists.jsonl.gz -n 2000 --exclude test.jsonl

    Needs Debian's packages flite, festival and festvox-*, and the Python package pocketsphinx. Give texts
    that the language models were not trained on. Voice, speed, pitch and noise are drawn for each sentence
    and recorded in its list; the group of a list is its voice. Its streams are acoustic and lm;
    PocketSphinx itself ranks by acoustic=1,lm=9.5,word=-0.6296. Sentences that give no list are counted. A
    run that was interrupted goes on where it stopped when it is started again. --map, --stream, --format
    and --reference describe the files of --exclude.
    """
    from rescorer_training.data.normalisation import choose_normaliser
    from rescorer_training.lists.pocketsphinx import PocketSphinx, import_pocketsphinx
    from rescorer_training.lists.speech import SpeechSettings, make_speech_lists, unfinished_folder
    from rescorer_training.lists.synthesis import DEFAULT_VOICES, check_voices
    from rescorer_training.lists.texts import choose_sentences, reference_words

    check_paths(output)
    choice = sentences.to_choice()
    snr_range_db = speech.noise.to_range()
    voices = tuple(dict.fromkeys(speech.voice or DEFAULT_VOICES))
    check_voices(voices)
    import_pocketsphinx()
    normaliser = choose_normaliser(reading.normaliser)
    excluded = reference_words(reading.read_excluded(sentences.exclude or []), normaliser)
    chosen = choose_sentences(texts, normaliser, choice, excluded)
    settings = SpeechSettings(sentences.seed, speech.depth, voices, snr_range_db)
    folder = unfinished_folder(output)
    try:
        summary = make_speech_lists(
            chosen, output, settings, PocketSphinx, n_processes=speech.processes, timeout_s=speech.timeout
        )
    except (KeyboardInterrupt, SystemExit):
        typer.echo(f"note: finished lists are kept in {folder}; start the command again to go on", err=True)
        raise
    report_few(len(chosen), sentences.number)
    if summary.n_kept:
        more = count(summary.n_kept, "finished sentence")
        typer.echo(
            f"note: {more} of an earlier run, not asked for now, are kept in {folder}: a larger -n writes "
            "them, too; if you do not need them, delete the folder",
            err=True,
        )
    _print_summary(summary, output, as_json)


def _print_summary(summary: Summary, output: Path, as_json: bool) -> None:
    if as_json:
        facts = {"output": str(output), "written": summary.written, "rejected": dict(summary.rejected)}
        typer.echo(json.dumps({**facts, "kept": summary.n_kept}, indent=2, ensure_ascii=False))
        return
    typer.echo(
        f"{count(summary.written, 'list')} written to {output}; "
        f"{count(summary.rejected.total(), 'sentence')} rejected"
    )
    for reason, n_sentences in summary.rejected.most_common():
        typer.echo(f"  {n_sentences:,}: {reason}")
