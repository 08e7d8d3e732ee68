"""The components that a ``ListRanker`` has: those of every list, and what requests can ask for besides.

A bundle, and then the options of a request, come in; columns of hypotheses come out. To add a component,
write its class and name it here. Importing this package is cheap: what only some requests need is imported
when the first of them comes.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rescorer.bundle import Bundle
from rescorer.extensions.caches import Caches
from rescorer.extensions.generation import Generation
from rescorer.extensions.phrases import Phrases
from rescorer.extensions.rerankers import Rerankers
from rescorer.scoring.components import (
    Component,
    LanguageModels,
    Mixture,
    Streams,
    UnknownWords,
    WordCount,
)
from rescorer.scoring.ranker import ListRanker
from rescorer.text import Normaliser

COMPONENTS: tuple[type[Component], ...] = (
    Streams,
    LanguageModels,
    Mixture,
    UnknownWords,
    Caches,
    Phrases,
    Generation,
    WordCount,
    Rerankers,
)
"""In the order of their columns; each may read and change those of the ones before it."""


def make_ranker(bundle: Bundle, dictionary: Path | None = None, language: str = "") -> ListRanker:
    """A ranker with all components.

    Args:
        dictionary: file of pronunciations, for generating hypotheses; None: the installed dictionary.
        language: of the texts that are compared; empty: that of the bundle.
    """
    ranker = ListRanker(bundle, COMPONENTS)
    if language:
        settings = replace(bundle.text_normaliser.settings, language=language)
        ranker.text_normaliser = Normaliser(settings)
    ranker.component(Generation).dictionary = dictionary
    return ranker


__all__ = ["COMPONENTS", "Caches", "Generation", "Phrases", "Rerankers", "make_ranker"]
