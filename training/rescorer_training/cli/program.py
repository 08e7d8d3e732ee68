"""The commands of ``rescorer-train``, and how they run and end."""

from __future__ import annotations

from typing import Annotated

import typer

from rescorer.cli.lazy_commands import LazyCommand, LazyGroup
from rescorer.cli.output import PLAIN_HELP, version_option
from rescorer.cli.ending import run as run_program
from rescorer_training.cli.progress import show_bar
from rescorer_training.data.pipes import keep_pipes
from rescorer_training.progress import install_display

COMMANDS = {
    "ngram": LazyCommand(
        "rescorer_training.cli.models.ngram:ngram",
        "Estimate an n-gram model of words or of classes of words, by default with Kneser-Ney smoothing.",
        "rescorer_training.cli.models.ngram:NGramCommand",
    ),
    "neural": LazyCommand(
        "rescorer_training.cli.models.neural:neural",
        "Train a neural language model.",
    ),
    "run": LazyCommand(
        "rescorer_training.cli.run:run",
        "Follow a recipe from raw text to a verified bundle and a one-page report.",
    ),
    "bench": LazyCommand(
        "rescorer_training.cli.bench:bench",
        "Compare training speed with a plain PyTorch loop and with the time that the "
        "matrix products alone take.",
    ),
    "bundle": LazyCommand(
        "rescorer_training.cli.bundles.bundle:bundle",
        "Publish trained models as a bundle that rescorer can serve.",
    ),
    "adapt": LazyCommand(
        "rescorer_training.cli.bundles.adapt:adapt",
        "Adapt a bundle to a domain by text alone, and measure what that changes.",
    ),
    "tables": LazyCommand(
        "rescorer_training.cli.bundles.tables:tables",
        "Publish a bundle again, with n-gram tables in place of its ARPA files.",
    ),
    "perplexity": LazyCommand(
        "rescorer_training.cli.evaluation.perplexity:perplexity_command",
        "Measure the perplexity of texts under models and their mixture, including </s>.",
    ),
    "interpolate": LazyCommand(
        "rescorer_training.cli.models.interpolate:interpolate_command",
        "Fit the interpolation weights λ of a word-level mixture by EM, "
        "and show what each model contributes.",
    ),
    "prune": LazyCommand(
        "rescorer_training.cli.models.prune:prune_command",
        "Remove those n-grams from a model whose removal raises its perplexity least.",
    ),
    "sample": LazyCommand(
        "rescorer_training.cli.evaluation.sample:sample_command",
        "Sample sentences word by word from an n-gram model, a network or a mixture.",
    ),
    "quantise": LazyCommand(
        "rescorer_training.cli.models.postprocess:quantise_command",
        "Store a network's weights in fewer bits; scoring still computes in float32.",
    ),
    "average": LazyCommand(
        "rescorer_training.cli.models.postprocess:average_command",
        "Average the weights of several networks into one network.",
    ),
    "complete": LazyCommand(
        "rescorer_training.cli.evaluation.complete:complete_command",
        "Answer sentence-completion questions by language models, word vectors, and their combination.",
    ),
    "reranker": LazyCommand(
        "rescorer_training.cli.reranking.reranker:reranker_command",
        "Train a reranker: a small model that scores hypotheses by features of their whole list.",
    ),
    "lists": LazyCommand(
        "rescorer_training.cli.reranking.lists:lists_app",
        "Make n-best lists with references, for training where there are few real ones.",
    ),
    "classify": LazyCommand(
        "rescorer_training.cli.classification:classify_app",
        "Classify sentences by the kind of text that they come from, with recurrent and other networks.",
    ),
    "vectors": LazyCommand(
        "rescorer_training.cli.vectors:vectors_app",
        "Train, measure and look at word vectors.",
    ),
}


class Commands(LazyGroup):
    """The group of all commands of ``rescorer-train``."""

    lazy = COMMANDS


app = typer.Typer(
    **{**PLAIN_HELP, "cls": Commands},
    help="Train, measure and publish the language models that rescorer serves.\n\n"
    "Example: rescorer-train run ptb --data ~/text -o ptb",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def _options(version: Annotated[bool, version_option("rescorer-train")] = False) -> None:
    """Options of the program itself."""


ERROR_STATUS = 2
"""Exit status for invalid input or options, the same as the option parser's."""


def run_commands() -> None:
    """Run a command; print errors of this project as one line on stderr instead of a traceback."""
    install_display(show_bar)
    with keep_pipes():
        run_program(app, "rescorer-train", lambda _: ERROR_STATUS)
