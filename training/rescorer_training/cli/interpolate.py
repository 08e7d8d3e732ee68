"""Owns the command ``rescorer-train interpolate``."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from rescorer.errors import ConfigError
from rescorer.lm.ngram import NgramModel, is_arpa
from rescorer_training.cli.options import (
    BundleOption,
    DeviceOption,
    NeuralsOption,
    NGramsOption,
    NormaliserOption,
    read_normaliser,
)
from rescorer_training.data.corpus import sentences
from rescorer_training.evaluation.em_weights import fit_mixture
from rescorer_training.evaluation.model_set import ModelSet, load_models, open_ngram
from rescorer_training.evaluation.perplexity import perplexity
from rescorer_training.evaluation.token_scores import TokenScores, score_tokens
from rescorer_training.ngram.backoff_model import load_backoff
from rescorer_training.ngram.estimate import list_words, whole_file
from rescorer_training.ngram.interpolate import Member, interpolate, members, unknown_shares


def interpolate_command(
    validation: Annotated[Path, typer.Argument(help="Text that λ are fitted on, one sentence a line.")],
    bundle: BundleOption = None,
    ngram: NGramsOption = None,
    neural: NeuralsOption = None,
    test: Annotated[Path | None, typer.Option(help="Other text to measure the mixture on.")] = None,
    write: Annotated[
        Path | None, typer.Option(help="ARPA file to write: the n-grams mixed into one, with λ of their own.")
    ] = None,
    normaliser: NormaliserOption = None,
    device: DeviceOption = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Fit the shares λ of any models in a word-level mixture, by EM, and tell what each of them is worth.

    Words that a model lacks have their part of its <unk>, as in a bundle. --write mixes the n-grams (ARPA
    files) into one: exact where an n-gram is stored, backed off elsewhere, as SRILM's ngram -mix-lm.

    Example: rescorer-train interpolate valid.txt --ngram news.arpa.gz --ngram talk.arpa.gz --write mix.arpa
    """
    arpa = check_write(write, ngram or [])
    normalise = read_normaliser(normaliser) if normaliser else None
    models = load_models(bundle, ngram or (), neural or (), normaliser=normalise, device=device)
    scores = scored(models, validation)
    shares = fit_mixture(scores.log_probs)
    facts: dict[str, Any] = {
        "perplexity": perplexity(scores.mix(shares)),
        "models": {name: asdict(each) for name, each in members(scores, shares).items()},
    }
    if test:
        facts["test"] = {"text": str(test), "perplexity": perplexity(scored(models, test).mix(shares))}
    if write:
        facts["written"] = write_mixture(models, arpa, scores, write, validation)
    if as_json:
        typer.echo(json.dumps(facts))
    else:
        show(facts)


def check_write(write: Path | None, ngrams: list[Path]) -> list[Path]:
    """The ARPA files to mix into one; raises ConfigError where they cannot be."""
    if write and len(ngrams) < 2:
        raise ConfigError("--write mixes n-grams; give at least two of them with --ngram")
    binary = [path for path in ngrams if write and path.exists() and not is_arpa(path)]
    if binary:
        raise ConfigError(f"{binary[0]}: a KenLM binary cannot be taken apart; give its ARPA file")
    return ngrams


def scored(models: ModelSet, path: Path) -> TokenScores:
    words = list(sentences([path], models.normaliser))
    return score_tokens(models.models, words, f"scoring {path.name}", in_order=True)


def write_mixture(
    models: ModelSet, paths: list[Path], scores: TokenScores, write: Path, validation: Path
) -> dict[str, Any]:
    """Mixes the given n-grams into one file, with λ fitted among them alone; returns what to tell of it."""
    names = [name for name in models.models if name.startswith("ngram")][
        -len(paths) :
    ]  # a bundle's is before
    dynamic = [model for name in names if isinstance(model := models.models[name], NgramModel)]
    shares = fit_mixture({name: scores.log_probs[name] for name in names})
    words = frozenset().union(*(model.vocabulary() for model in dynamic))
    parts = [unknown_shares(model, words) for model in dynamic]
    loaded = [load_backoff(path, f"reading {path.name}") for path in paths]
    mixture = interpolate(loaded, list(shares.values()), parts)
    with whole_file(write) as partial:
        mixture.save(partial)
    list_words(write, mixture.trie.words)
    text = list(sentences([validation], models.normaliser))
    measured = score_tokens({"written": open_ngram(write)}, text).log_probs["written"]
    return {
        "file": str(write),
        "bytes": write.stat().st_size,
        "shares": shares,
        "perplexity": perplexity(measured),
    }


def show(facts: dict[str, Any]) -> None:
    """Prints it for people."""
    out = Table(title=f"perplexity of the mixture: {facts['perplexity']:,.2f}", title_justify="left")
    for column in ("model", "λ", "alone", "mixture without it"):
        out.add_column(column, justify="left" if column == "model" else "right")
    for name, values in facts["models"].items():
        each = Member(**values)
        without = "–" if each.without is None else f"{each.without:,.2f}"
        out.add_row(name, f"{each.share:.4f}", f"{each.alone:,.2f}", without)
    Console().print(out)
    if "test" in facts:
        typer.echo(f"{facts['test']['text']}: {facts['test']['perplexity']:,.2f}")
    if "written" in facts:
        made = facts["written"]
        size = made["bytes"] / 1e6
        typer.echo(f"{made['file']}: {size:.1f} MB, perplexity {made['perplexity']:,.2f} on the same text")
