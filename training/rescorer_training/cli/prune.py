"""Owns the command ``rescorer-train prune``."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from rescorer.errors import ConfigError
from rescorer.lm.ngram import is_arpa
from rescorer.text import Normaliser
from rescorer.vocabulary import END, UNKNOWN
from rescorer_training.cli.options import NormaliserOption, read_normaliser
from rescorer_training.data.corpus import encode, sentences
from rescorer_training.evaluation.model_set import open_ngram
from rescorer_training.evaluation.perplexity import measure
from rescorer_training.evaluation.token_scores import score_tokens
from rescorer_training.ngram.backoff_model import BackoffModel, load_backoff
from rescorer_training.ngram.estimate import list_words, whole_file
from rescorer_training.ngram.prune import HISTORIES, count_history, model_history, prune, stationary_history


def prune_command(
    model: Annotated[Path, typer.Argument(help="ARPA file, gzip or plain.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="ARPA file to write, or KenLM's .bin.")],
    threshold: Annotated[
        float | None,
        typer.Option(help="Drop n-grams that raise the perplexity by a smaller part: 1e-8, 1e-7, …"),
    ] = None,
    keep: Annotated[int | None, typer.Option(help="Instead: leave at most so many n-grams.")] = None,
    history: Annotated[
        str | None,
        typer.Option(
            help="Where P(history) is from: counts (of --text), stationary (endless text of the model's own) "
            "or model (chained probabilities, wrong for Kneser-Ney). Default: counts with --text, else "
            "stationary."
        ),
    ] = None,
    text: Annotated[
        list[Path] | None, typer.Option(help="The training text, for counts; may be given again.")
    ] = None,
    test: Annotated[Path | None, typer.Option(help="Text to measure before and after.")] = None,
    normaliser: NormaliserOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Make an n-gram model smaller where it is missed least: relative-entropy pruning (Stolcke 1998), with
    history probabilities that are right for Kneser-Ney (Chelba et al. 2010).

    Example: rescorer-train prune books4.arpa.gz -o small.arpa.gz --keep 1000000 --test test.txt
    """
    history = history or ("counts" if text else "stationary")
    check(history, text, threshold, keep)
    if not model.exists() or not is_arpa(model):
        raise ConfigError(f"{model}: no ARPA file; expected one, gzip or plain")
    normalise = read_normaliser(normaliser)
    whole = load_backoff(model, "reading")
    probs = {
        "stationary": lambda: stationary_history(whole, "history"),
        "model": lambda: model_history(whole),
        "counts": lambda: count_history(whole, encoded(whole, text or [], normalise)),
    }[history]()
    small, done = prune(whole, probs, threshold=threshold, keep=keep)
    with whole_file(output) as partial:
        small.save(partial)
    list_words(output, small.trie.words)
    facts: dict[str, Any] = {
        "history": history,
        **asdict(done),
        "before": [int(n) for n in np.diff(whole.trie.bounds)],
        "bytes_before": model.stat().st_size,
        "bytes": output.stat().st_size,
    }
    if test:
        facts["perplexity_before"], facts["perplexity"] = compare(model, output, test, normalise)
    typer.echo(json.dumps(facts) if as_json else told(facts))


def check(history: str, text: list[Path] | None, threshold: float | None, keep: int | None) -> None:
    """Raises ConfigError where options do not fit, before a large model is read."""
    if history not in HISTORIES:
        raise ConfigError(f"history is {history!r}; expected one of {', '.join(HISTORIES)}")
    if (history == "counts") != bool(text):
        raise ConfigError("--history counts needs the training text (--text), and no other history does")
    if (threshold is None) == (keep is None):
        raise ConfigError("give either --threshold or --keep")
    if threshold is not None and not threshold > 0:
        raise ConfigError(f"threshold is {threshold}; expected a positive number, such as 1e-8")


def encoded(model: BackoffModel, texts: list[Path], normaliser: Normaliser) -> np.ndarray:
    """The texts in the model's word ids, (T,)."""
    ids = {word: i for i, word in enumerate(model.trie.words)}
    return encode(texts, normaliser, ids, unknown=ids[UNKNOWN], end=ids[END])


def compare(before: Path, after: Path, text: Path, normaliser: Normaliser) -> list[float]:
    """Perplexities of two models of one vocabulary."""
    words = list(sentences([text], normaliser))
    names = {"before": before, "after": after}
    scores = (score_tokens({name: open_ngram(path, name)}, words, name) for name, path in names.items())
    return [next(iter(measure(each).models.values())).shared for each in scores]


def told(facts: dict[str, Any]) -> str:
    """The outcome, for people."""
    sizes = ", ".join(
        f"{n}-grams {kept:,} of {before:,}"
        for n, (before, kept) in enumerate(zip(facts["before"], facts["kept"], strict=True), start=1)
    )
    megabytes = f"{facts['bytes_before'] / 1e6:.1f} → {facts['bytes'] / 1e6:.1f} MB"
    lines = [f"{sizes}; {megabytes}, threshold {facts['threshold']:.3g}"]
    if "perplexity" in facts:
        lines.append(f"perplexity {facts['perplexity_before']:.2f} → {facts['perplexity']:.2f}")
    return "\n".join(lines)
