"""The command that imports language models of other toolkits."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import typer

from rescorer.errors import ConfigError
from rescorer.evaluation.list_errors import format_size
from rescorer.formats.io.text_io import explain_write_errors
from rescorer.terminal.list_options import ListFormatOptions, ListInputOptions
from rescorer.terminal.options import expand_options
from rescorer.terminal.program import warn
from rescorer.terminal.tables import FoldingTable, print_out
from rescorer.text import Normaliser
from rescorer.trie import Words, build_trie
from rescorer_training.cli.options import JsonOption, NormaliserOption, ThreadsOption
from rescorer_training.corpus import (
    choose_normaliser,
    read_lines,
    read_sentences,
    record_normaliser,
)
from rescorer_training.progress import option

if TYPE_CHECKING:
    from rescorer.models.precision import PrecisionCheck
    from rescorer.units.importing import Candidate, Imported
    from rescorer.units.prompts import Prompt

Kind = Literal["hf", "gguf", "espnet", "speechbrain", "icefall", "rescorer", "rnnlm"]


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

    def read(self, normaliser: Normaliser | None) -> list[Words]:
        """Read the words of the first sentences: canonical ones, or without a normaliser as they are written.

        Raises:
            ConfigError: there is no text, there are two, or it has no words.
        """
        from rescorer.units.importing import CHOSEN_BY, first_best_sentences, split_words  # imports torch

        if self.lists is not None and self.validation is None:
            lists = ListInputOptions(**asdict(self.list_format)).read(self.lists)
            return first_best_sentences(lists, normaliser.normalise if normaliser else split_words)
        if self.validation is not None and self.lists is None:
            sentences = list(islice(read_texts(self.validation, normaliser), CHOSEN_BY))
            if not sentences:
                raise ConfigError(
                    f"--validation {self.validation} has no words; expected one sentence per line"
                )
            return sentences
        raise ConfigError(
            "start and end are chosen by a text: give either --validation TEXT or --lists LISTS"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingOptions:
    """How a model in pieces of words reads texts."""

    start: str = option("auto", "Unit before every sentence: its name, its number, none or auto (the best).")
    end: str = option(
        "auto", "Unit that ends a sentence; none: ends are not scored; auto: the best on the text, or none."
    )
    text: Literal["canonical", "surface", "upper"] = option(
        "canonical",
        "Texts that the model reads: words as the normaliser writes them (canonical), as the recogniser "
        "wrote them (surface), or canonical words in upper case (upper).",
    )
    prompt: str = option(
        "none",
        "Let the model read previous utterances, in the form of lines, sentences or dialogue, or of a JSON "
        "file; none: it does not.",
        metavar="FORM|FILE",
    )
    previous: int | None = option(
        None,
        "Largest number of pieces of previous utterances that are read with --prompt; 0: only its fixed "
        "texts are. Default: that of the prompt, 512 unless its file says another.",
        metavar="PIECES",
        min=0,
    )
    tokenizer: Path | None = option(
        None, "SentencePiece model of a model of ESPnet, SpeechBrain or icefall, if it is not with the model."
    )

    def read_prompt(self) -> Prompt | None:
        """Read the prompt, and change how many pieces it may have.

        Raises:
            ConfigError: there is no such prompt, or a number but no prompt.
        """
        from rescorer.units.prompts import Prompt

        if self.prompt != "none":
            prompt = Prompt.read(self.prompt)
            return prompt if self.previous is None else replace(prompt, max_units=self.previous)
        if self.previous:
            raise ConfigError("--previous needs the form of what is read: give --prompt lines")
        return None


@expand_options
def import_command(
    kind: Annotated[
        Kind,
        typer.Argument(
            help="hf: a folder that transformers saved; gguf: a file of llama.cpp; espnet: a folder exp/lm… "
            "or one of its checkpoints; speechbrain: a folder with lm.ckpt; icefall: a checkpoint of RnnLm; "
            "rescorer: the folder of a run of rescorer-train neural --units; "
            "rnnlm: a file of Mikolov's toolkit, whose words become a network for --neural."
        ),
    ],
    source: Annotated[Path, typer.Argument(help="Folder or file of the model.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder to write; it must not exist.")],
    *,
    chosen_by: ChoosingText,
    reading: ReadingOptions,
    normaliser: NormaliserOption = None,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Import a language model from another toolkit.

    Example: rescorer-train import hf ~/SmolLM2-135M -o smollm --validation valid.txt.gz

    Another one: rescorer-train import espnet exp/lm_train_lm_rnn -o rnn --text upper --lists lists.jsonl

    The scores of the imported model over a trie are compared with those of one sentence at a time; a model
    for which they differ is refused. Then: rescorer-train bundle mine/1 --units smollm=smollm --validation
    valid.txt.gz; its weight is lm:smollm.
    """
    # deferred, because importing torch takes seconds
    from rescorer.runtime import use_threads
    from rescorer.units.importing import check_precisions, import_model
    from rescorer.units.toolkits import read_source
    from rescorer_training.neural.export import read_run

    if output.exists():
        raise ConfigError(f"{output}: exists already; name a new folder by --output")
    if threads:
        use_threads(threads)
    is_ours = kind == "rescorer"
    if is_ours and reading.tokenizer is not None:
        raise ConfigError("--tokenizer is not for rescorer, whose runs have their own; leave it out")
    chosen = choose_normaliser(normaliser, [source] if is_ours else [])
    sentences = chosen_by.read(None if reading.text == "surface" else chosen)
    if kind == "rnnlm":
        if reading != ReadingOptions():
            raise ConfigError(
                "--start, --end, --text, --prompt, --previous and --tokenizer are not for rnnlm; leave them "
                "out"
            )
        facts = import_words(source, output, sentences, chosen)
        typer.echo(json.dumps(facts)) if as_json else print_words(facts, output)
        return
    before = reading.read_prompt()
    foreign = read_run(source) if kind == "rescorer" else read_source(kind, source, reading.tokenizer)
    with explain_write_errors(output):
        imported = import_model(
            foreign, output, sentences, reading.start, reading.end, reading.text, prompt=before
        )
    precisions = check_precisions(output, sentences)
    if as_json:
        facts = describe_import(imported) | {"precisions": {k: asdict(v) for k, v in precisions.items()}}
        typer.echo(json.dumps(facts, indent=2, ensure_ascii=False))
    else:
        print_import(imported, precisions, output)


def export_command(
    model: Annotated[
        Path,
        typer.Argument(help="Folder of rescorer-train import, or of a run of rescorer-train neural --units."),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder to write; it must not exist.")],
    as_json: JsonOption = False,
) -> None:
    """Write a transformer in pieces of words as a folder that Hugging Face's transformers loads.

    Example: rescorer-train export runs/pieces -o llama

    The folder has config.json, model.safetensors and tokenizer.json of a LLaMA with the same scores:
    AutoModelForCausalLM.from_pretrained("llama"). Other toolkits convert it further.
    """
    from rescorer_training.neural.export import write_llama  # deferred, because importing torch takes seconds

    if output.exists():
        raise ConfigError(f"{output}: exists already; name a new folder by --output")
    with explain_write_errors(output):
        values = write_llama(model, output)
    if as_json:
        typer.echo(json.dumps(values))
        return
    print_out(
        f"{output}: LLaMA of {values['num_hidden_layers']} layers and {values['vocab_size']:,} units; scores "
        f"are equal for texts of up to {values['max_position_embeddings']:,} units"
    )


def read_texts(path: Path, normaliser: Normaliser | None) -> Iterator[Words]:
    """Read the words of sentences, one a line: canonical ones, or as written without a normaliser."""
    if normaliser is not None:
        return read_sentences([path], normaliser)
    return filter(None, (tuple(line.split()) for line in read_lines(path)))


def import_words(
    source: Path, output: Path, sentences: Sequence[Words], normaliser: Normaliser
) -> dict[str, float]:
    """Import a network over words of the rnnlm toolkit; return what its scores of sentences are like.

    Raises:
        ConfigError: it knows no word of the sentences.
    """
    from rescorer.models.bundle import new_folder
    from rescorer.models.neural import NeuralLanguageModel, save_model
    from rescorer.models.rnnlm import read_rnnlm

    model, vocabulary = read_rnnlm(source)
    trie = build_trie(sentences)
    scores = NeuralLanguageModel(model, vocabulary).score(trie)
    edges = np.concatenate([trie.path_edges(number) for number in range(len(sentences))])
    known, n_words = ~scores.unknown[edges], sum(map(len, sentences))
    n_known = int(known.sum()) - len(sentences)
    if not n_known:
        raise ConfigError(
            f"{source}: no word of the text is known to the network; is it of another case or language? "
            "--normaliser says how words are written"
        )
    with explain_write_errors(output), new_folder(output) as partial:
        save_model(model, vocabulary, partial)
        record_normaliser(partial, normaliser)
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "vocabulary": len(vocabulary),
        "perplexity": float(np.exp(-scores.log_probs[edges][known].mean())),
        "unknown": n_words - n_known,
        "words": n_words,
    }


def print_words(facts: Mapping[str, float], output: Path) -> None:
    """Print what was imported, and the next command."""
    print_out(
        f"rnnlm: {facts['parameters']:,} parameters, {facts['vocabulary']:,} words",
        f"perplexity of known words and ends {format_size(facts['perplexity'])}; {facts['unknown']:,} of "
        f"{facts['words']:,} words are unknown to it",
        f"{output}: imported; next: rescorer-train bundle BUNDLE/1 --neural {shlex.quote(str(output))} "
        "--validation TEXT",
    )


def describe_import(imported: Imported) -> dict[str, Any]:
    """What was chosen and found, as plain data."""
    return {
        "config": imported.config.to_dict(),
        "check": asdict(imported.check),
        "starts": [asdict(one) for one in imported.starts],
        "ends": [asdict(one) for one in imported.ends],
        "parameters": imported.n_parameters,
    }


def print_import(imported: Imported, precisions: Mapping[str, PrecisionCheck], output: Path) -> None:
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
        print_out(decoder.describe())
    start, end = next(iter(imported.config.start), None), imported.config.end
    print_candidates("start", "perplexity per word", imported.starts, start)
    print_candidates("end", "mean ln P at the end", imported.ends, end)
    if imported.starts and (best := imported.starts[0]).unit != start:
        (own,) = [one for one in imported.starts if one.unit == start]
        warn(
            f"the text has a perplexity of {format_size(own.value)} per word after {own.name!r}, and "
            f"{format_size(best.value)} after {best.name!r}; --start auto takes the lower one"
        )
    print_out(
        "",
        f"perplexity per word {format_size(check.perplexity)}; {check.words_per_s:,.0f} words of hypotheses "
        "a second of processor time",
        "scores of a trie and of one sentence at a time differ by at most "
        f"{check.max_difference:.1e} nats per word",
        *(
            f"{dtype}: scores differ from float32 by {one.mean_difference:.1e} nats per word, at most "
            f"{one.max_difference:.1e}; of {one.n_sentences} sentences, the best variant changes in "
            f"{one.changed}"
            for dtype, one in precisions.items()
        ),
        f"{output}: imported; next: rescorer-train bundle BUNDLE/1 --units {shlex.quote(f'llm={output}')} "
        "--validation TEXT; rescorer tune then finds the weight lm:llm",
    )


def print_candidates(role: str, measure: str, candidates: Sequence[Candidate], chosen: int | None) -> None:
    """Print the units that were considered, the best one first."""
    if not candidates:
        return
    (name,) = [candidate.name for candidate in candidates if candidate.unit == chosen]
    table = FoldingTable(role, measure, title=f"{role}: {name!r} was chosen")
    for candidate in candidates:
        value = candidate.value
        table.add_row(repr(candidate.name), format_size(value) if value > 0 else f"{value:.2f}")
    print_out("", table)
