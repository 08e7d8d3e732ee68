"""The commands of ``rescorer-train``, and how they run and end."""

from __future__ import annotations

from typing import Annotated

import typer

from rescorer.terminal.program import PLAIN_HELP, LazyCommand, LazyGroup, version_option
from rescorer.terminal.program import run as run_program
from rescorer_training.cli.help import TrainingCommand
from rescorer_training.pipes import keep_pipes


def _command(function: str, help: str, cls: str = "") -> LazyCommand:
    """Describe a command of this folder by ``module:name``: its function, and its class if it has one."""
    folder = "rescorer_training.cli."
    return LazyCommand(folder + function, help, cls and folder + cls)


COMMANDS = {
    "ngram": _command(
        "ngrams:ngram",
        "Estimate an n-gram model of words or of classes of words, by default with Kneser-Ney smoothing.",
        "ngrams:NGramCommand",
    ),
    "neural": _command("networks:neural", "Train a neural language model."),
    "run": _command(
        "networks:run", "Follow a recipe from raw text to a verified bundle and a one-page report."
    ),
    "bench": _command(
        "networks:bench",
        "Compare training speed with a plain PyTorch loop and with the time that the "
        "matrix products alone take.",
    ),
    "bundle": _command("bundles:bundle", "Publish trained models as a bundle that rescorer can serve."),
    "adapt": _command(
        "bundles:adapt", "Adapt a bundle to a domain by text alone, and measure what that changes."
    ),
    "import": _command("imports:import_command", "Import a language model from another toolkit."),
    "export": _command(
        "imports:export_command",
        "Write a transformer in pieces of words as a folder that Hugging Face's transformers loads.",
    ),
    "tables": _command(
        "bundles:tables", "Publish a bundle again, with n-gram tables in place of its ARPA files."
    ),
    "precision": _command(
        "bundles:precision",
        "Choose the precision of a bundle's networks, and publish the bundle again with that choice.",
    ),
    "perplexity": _command(
        "evaluation:perplexity_command",
        "Measure the perplexity of texts under models and their mixture, including </s>.",
    ),
    "interpolate": _command(
        "ngrams:interpolate_command",
        "Fit the interpolation weights λ of a word-level mixture by EM, "
        "and show what each model contributes.",
    ),
    "prune": _command(
        "ngrams:prune_command", "Remove those n-grams from a model whose removal raises its perplexity least."
    ),
    "sample": _command(
        "evaluation:sample_command",
        "Sample sentences word by word from an n-gram model, a network or a mixture.",
    ),
    "quantise": _command(
        "networks:quantise_command",
        "Store a network's weights in fewer bits; scoring still computes in float32.",
    ),
    "average": _command(
        "networks:average_command", "Average the weights of several networks into one network."
    ),
    "complete": _command(
        "evaluation:complete_command",
        "Answer sentence-completion questions by language models, word vectors, and their combination.",
    ),
    "reranker": _command(
        "reranking:reranker_command",
        "Train a reranker: a small model that scores hypotheses by features of their whole list.",
    ),
    "finetune": _command(
        "reranking:finetune_command",
        "Train a model in pieces of words further on lists, so that ranking by it makes fewer word errors.",
    ),
    "lists": _command(
        "reranking:lists_app",
        "Make n-best lists with references, for training where there are few real ones.",
    ),
    "classify": _command(
        "classification:classify_app",
        "Classify sentences by the kind of text that they come from, with recurrent and other networks.",
    ),
    "correct": _command(
        "correction:correct_app",
        "Rewrite the first hypothesis of a list by an encoder and a decoder, to score and to add hypotheses.",
    ),
    "tag": _command(
        "tagging:tag_app",
        "Tag every word of a text, for instance with its part of speech, by networks in one or two "
        "directions.",
    ),
    "vectors": _command("vectors:vectors_app", "Train, measure and look at word vectors."),
}


class Commands(LazyGroup):
    """The group of all commands of ``rescorer-train``."""

    lazy = COMMANDS
    help_class = TrainingCommand


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
    with keep_pipes():
        run_program(app, "rescorer-train", lambda _: ERROR_STATUS)
