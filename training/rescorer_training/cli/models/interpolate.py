"""The command ``rescorer-train interpolate``."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from rescorer.cli.options.dataclass_options import expand_options
from rescorer.cli.output import print_results_apart
from rescorer.cli.render.tables import FoldingTable, print_out
from rescorer.errors import ConfigError
from rescorer.evaluation.figures import format_size
from rescorer.lm.ngrams import NgramModel
from rescorer.lm.ngrams.reading import contains_words
from rescorer_training.cli.open_models import ModelOptions, score_file
from rescorer_training.cli.options import DeviceOption, JsonOption, NormaliserOption
from rescorer_training.cli.outputs import check_model_output
from rescorer_training.data.corpus import read_sentences
from rescorer_training.data.direction import record_direction
from rescorer_training.data.normalisation import record_normaliser
from rescorer_training.data.pipes import check_no_pipe
from rescorer_training.evaluation.contributions import Contribution, measure_contributions
from rescorer_training.evaluation.em_weights import fit_mixture
from rescorer_training.evaluation.model_set import ModelSet, open_ngram
from rescorer_training.evaluation.perplexity import perplexity
from rescorer_training.evaluation.token_scores import TokenScores, score_tokens
from rescorer_training.ngram.interpolate import interpolate_files
from rescorer_training.ngram.output import atomic_output, staged_output, write_word_list


@expand_options
def interpolate_command(
    validation: Annotated[
        Path, typer.Argument(help="Held-out text on which to fit the weights, one sentence per line.")
    ],
    *,
    given: ModelOptions,
    test: Annotated[
        Path | None, typer.Option(help="Another text on which to measure the perplexity of the mixture.")
    ] = None,
    write: Annotated[
        Path | None,
        typer.Option(
            help="ARPA file to write: the --ngram models as one, with weights fitted for these alone."
        ),
    ] = None,
    normaliser: NormaliserOption = None,
    device: DeviceOption = "cpu",
    as_json: JsonOption = False,
) -> None:
    """Fit the interpolation weights λ of a word-level mixture by EM, and show what each model contributes.

    As in a bundle, a word that a model does not know gets a share of the model's <unk>. --write interpolates
    the n-gram models (ARPA files or tables) into a single model, like SRILM's ngram -mix-lm: this model
    equals the mixture for stored n-grams and backs off for the others.

    Example: rescorer-train interpolate valid.txt --ngram news.arpa.gz --ngram talk.arpa.gz --write mix.arpa
    """
    if write:
        check_model_output("--write", write)
    check_write(write, given.ngram or [])
    models = given.open(normaliser, device)
    if len({model.backward for model in models.models.values()}) > 1:
        raise ConfigError(
            "forward and backward models cannot be mixed word by word; give those of one direction"
        )
    scores = score_file(models, validation)
    shares = fit_mixture(scores.log_probs)
    contributions = measure_contributions(scores, shares)
    facts: dict[str, Any] = {
        "perplexity": perplexity(scores.mix(shares)),
        "models": {name: asdict(contribution) for name, contribution in contributions.items()},
    }
    if test:
        facts["test"] = {"text": str(test), "perplexity": perplexity(score_file(models, test).mix(shares))}
    if write:
        with staged_output(write) as file:
            written = write_mixture(models, given.ngram or [], scores, file, validation)
        facts["written"] = {**written, "file": str(write)}
    with print_results_apart(write or ""):
        if as_json:
            typer.echo(json.dumps(facts))
        else:
            print_results(facts)


def check_write(write: Path | None, ngrams: list[Path]) -> None:
    """Raise ConfigError if ``--write`` is given but the models cannot be interpolated into a single file."""
    if not write:
        return
    if len(ngrams) < 2:
        raise ConfigError("--write interpolates n-gram models; give at least two of them with --ngram")
    for path in ngrams:
        check_no_pipe(path)
        if not contains_words(path):
            raise ConfigError(
                f"{path}: --write cannot read KenLM binaries; give the model's ARPA file or table"
            )


def write_mixture(
    models: ModelSet, paths: list[Path], scores: TokenScores, write: Path, validation: Path
) -> dict[str, Any]:
    """Interpolate the given n-gram models into one file; return its statistics for the report."""
    ngram_names = [name for name in models.models if name.startswith("ngram")]
    names = ngram_names[-len(paths) :]  # a bundle's n-gram model comes first and has no ARPA file
    ngrams = [model for name in names if isinstance(model := models.models[name], NgramModel)]
    shares = fit_mixture({name: scores.log_probs[name] for name in names})
    mixture = interpolate_files(paths, ngrams, list(shares.values()))
    with atomic_output(write) as partial:
        mixture.save(partial)
    write_word_list(write, mixture.trie.words)
    record_normaliser(write, models.normaliser)
    record_direction(write, backward=ngrams[0].backward)
    text = list(read_sentences([validation], models.normaliser))
    measured = score_tokens({"written": open_ngram(write)}, text).log_probs["written"]
    return {
        "file": str(write),
        "bytes": write.stat().st_size,
        "shares": shares,
        "perplexity": perplexity(measured),
    }


def print_results(facts: dict[str, Any]) -> None:
    """Print the contributions of the models, and the perplexities of the mixture."""
    title = f"perplexity of the mixture: {format_size(facts['perplexity'])}"
    table = FoldingTable("model", "λ", "alone", "mixture without it", title=title)
    for name, values in facts["models"].items():
        model = Contribution(**values)
        without = "–" if model.without is None else format_size(model.without)
        table.add_row(name, f"{model.share:.4f}", format_size(model.alone), without)
    print_out(table)
    if "test" in facts:
        typer.echo(f"{facts['test']['text']}: perplexity {format_size(facts['test']['perplexity'])}")
    if "written" in facts:
        written = facts["written"]
        megabytes = written["bytes"] / 1e6
        typer.echo(
            f"{written['file']}: {megabytes:.1f} MB, "
            f"perplexity {format_size(written['perplexity'])} on the held-out text"
        )
