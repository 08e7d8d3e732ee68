"""Options for lists of conversations, which are rescored in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from rescorer.errors import ConfigError
from rescorer.extensions.rerankers import used_rerankers
from rescorer.files.rescoring import BatchRescorer
from rescorer.files.sessions import SessionRescorer, SessionText
from rescorer.scoring.ranker import ListRanker
from rescorer.types import Weights


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """Which lists belong to one conversation, and what later ones are read after."""

    session: Annotated[
        str,
        typer.Option(
            metavar="FIELD",
            help="Field of lists that names their conversation, or 'group'. Lists of one conversation are "
            "rescored in order, each after the texts before it: networks with carried state or topics read "
            "these, and so do caches (-w cache=0.1, -w neural_cache=0.1).",
        ),
    ] = ""
    session_text: Annotated[
        SessionText,
        typer.Option(
            help="What later lists of a conversation are read after: the texts that were chosen, or the "
            "references, which shows what perfect decisions would be worth."
        ),
    ] = "chosen"

    def keep_order(self, rescorer: BatchRescorer) -> BatchRescorer:
        """Rescore in the order of conversations if a field names them."""
        return SessionRescorer(rescorer, self.session, self.session_text) if self.session else rescorer

    def forbid(self, option: str) -> None:
        """Raise ConfigError if conversations are named, which an option cannot keep together."""
        if self.session:
            raise ConfigError(f"{option} samples lists and so cannot follow conversations; omit --session")

    def warn_if_unread(self, ranker: ListRanker, weights: Weights) -> None:
        """Warn on stderr if conversations are named, but nothing reads what was said before."""
        is_read = ranker.bundle.reads_previous or used_rerankers(ranker.bundle, weights)
        if self.session and not (is_read or weights.cache or weights.neural_cache):
            typer.echo(
                f"warning: --session {self.session} changes nothing, because no model of "
                f"{ranker.bundle.label} reads previous utterances; add a cache with -w cache=0.1, or train a "
                "network with --carried or --topics",
                err=True,
            )
