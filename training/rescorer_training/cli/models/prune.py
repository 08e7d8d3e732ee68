"""The command ``rescorer-train prune``."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from rescorer.cli.options.dataclass_options import expand_options
from rescorer.cli.output import print_results_apart
from rescorer.errors import ConfigError
from rescorer.evaluation.figures import format_size
from rescorer.lm.ngrams.reading import contains_words
from rescorer.text import Normaliser
from rescorer.vocabulary import END, UNKNOWN
from rescorer_training.cli.options import JsonOption, NormaliserOption
from rescorer_training.cli.outputs import check_model_output
from rescorer_training.data.corpus import encode_text, read_sentences
from rescorer_training.data.direction import is_backward, record_direction
from rescorer_training.data.normalisation import choose_normaliser, record_normaliser
from rescorer_training.data.pipes import check_no_pipe
from rescorer_training.evaluation.model_set import open_ngram
from rescorer_training.evaluation.perplexity import measure
from rescorer_training.evaluation.token_scores import score_tokens
from rescorer_training.ngram.backoff_model import BackoffModel, load_backoff_model
from rescorer_training.ngram.output import atomic_output, staged_output, write_word_list
from rescorer_training.ngram.prune import (
    HISTORIES,
    compute_count_history,
    compute_model_history,
    compute_stationary_history,
    prune,
)


@dataclass(frozen=True, slots=True)
class CriterionOptions:
    """How many n-grams are pruned, and what tells how often their histories occur.

    Raises:
        ConfigError: options contradict one another.
    """

    threshold: Annotated[
        float | None,
        typer.Option(help="Relative rise of the perplexity below which an n-gram is pruned: 1e-8, 1e-7, …"),
    ] = None
    keep: Annotated[
        int | None, typer.Option(help="Maximum number of n-grams to keep; use instead of --threshold.")
    ] = None
    history: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(HISTORIES),
            help="Source of the probability of a history: 'counts' of --text; 'stationary', an endless text "
            "that the model generates; or 'model', the product of the model's probabilities, which is wrong "
            "for Kneser-Ney models. Default: counts with --text, otherwise stationary.",
        ),
    ] = None
    text: Annotated[
        list[Path] | None, typer.Option(help="Training text for --history counts; repeat for more.")
    ] = None

    @property
    def source(self) -> str:
        """The source of the probability of a history."""
        return self.history or ("counts" if self.text else "stationary")

    def __post_init__(self) -> None:
        source, threshold = self.source, self.threshold
        if source not in HISTORIES:
            raise ConfigError(f"history is {source!r}; expected one of {', '.join(HISTORIES)}")
        if source == "counts" and not self.text:
            raise ConfigError("--history counts needs the training text; give it with --text")
        if source != "counts" and self.text:
            raise ConfigError(f"--text can only be used with --history counts, got --history {source}")
        if (threshold is None) == (self.keep is None):
            raise ConfigError("give either --threshold or --keep")
        if threshold is not None and not threshold > 0:
            raise ConfigError(f"threshold is {threshold}; expected a positive number, such as 1e-8")


@expand_options
def prune_command(
    model: Annotated[Path, typer.Argument(help="ARPA file to prune, or n-gram table.")],
    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            help="ARPA file to write, gzip if the name ends in .gz; or a KenLM binary if it ends in .bin.",
        ),
    ],
    *,
    criterion: CriterionOptions,
    test: Annotated[
        Path | None, typer.Option(help="Text on which to measure the perplexity before and after.")
    ] = None,
    normaliser: NormaliserOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove those n-grams from a model whose removal raises its perplexity least.

    This is relative-entropy pruning (Stolcke 1998), with history probabilities that are right for Kneser-Ney
    models too (Chelba et al. 2010).

    Example: rescorer-train prune books4.arpa.gz -o small.arpa.gz --keep 1000000 --test test.txt
    """
    check_model_output("-o", output)
    check_no_pipe(model)
    if not contains_words(model):
        raise ConfigError(f"{model}: is a KenLM binary; give the ARPA file that it was made from")
    chosen = choose_normaliser(normaliser, [model])
    whole = load_backoff_model(model, "reading")
    backward = is_backward(model)
    probs = compute_history(whole, criterion, chosen, backward=backward)
    small, result = prune(whole, probs, threshold=criterion.threshold, keep=criterion.keep)
    with staged_output(output) as file:
        with atomic_output(file) as partial:
            small.save(partial)
        write_word_list(file, small.trie.words)
        record_normaliser(file, chosen)
        record_direction(file, backward=backward)
        facts: dict[str, Any] = {
            "history": criterion.source,
            **asdict(result),
            "before": [int(n) for n in np.diff(whole.trie.bounds)],
            "bytes_before": model.stat().st_size,
            "bytes": file.stat().st_size,
        }
        if test:
            facts["perplexity_before"], facts["perplexity"] = compare_perplexities(model, file, test, chosen)
    with print_results_apart(output):
        typer.echo(json.dumps(facts) if as_json else format_summary(facts))


def compute_history(
    model: BackoffModel, criterion: CriterionOptions, normaliser: Normaliser, *, backward: bool = False
) -> np.ndarray:
    """Compute the probability of every history by the chosen method, (R,)."""
    if criterion.source == "stationary":
        return compute_stationary_history(model, "history")
    if criterion.source == "model":
        return compute_model_history(model)
    ids = {word: i for i, word in enumerate(model.trie.words)}
    encoded = encode_text(
        criterion.text or [], normaliser, ids,
        unknown_id=ids[UNKNOWN], end_id=ids[END], backward=backward,
    )  # fmt: skip
    return compute_count_history(model, encoded)


def compare_perplexities(before: Path, after: Path, text: Path, normaliser: Normaliser) -> list[float]:
    """Measure the perplexities of two models with the same vocabulary."""
    words = list(read_sentences([text], normaliser))
    paths = {"before": before, "after": after}
    scores = (score_tokens({name: open_ngram(path, name)}, words, name) for name, path in paths.items())
    return [next(iter(measure(model_scores).models.values())).shared for model_scores in scores]


def format_summary(facts: dict[str, Any]) -> str:
    """Format the sizes and perplexities before and after pruning."""
    sizes = ", ".join(
        f"{n}-grams {kept:,} of {before:,}"
        for n, (before, kept) in enumerate(zip(facts["before"], facts["kept"], strict=True), start=1)
    )
    megabytes = f"{facts['bytes_before'] / 1e6:.1f} → {facts['bytes'] / 1e6:.1f} MB"
    lines = [f"{sizes}; {megabytes}, threshold {facts['threshold']:.3g}"]
    if "perplexity" in facts:
        before, after = (format_size(facts[key]) for key in ("perplexity_before", "perplexity"))
        lines.append(f"perplexity {before} → {after}")
    return "\n".join(lines)
