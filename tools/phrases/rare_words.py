"""Give read-speech lists the rare words of their references as phrases, and write them for `rescorer`.

    python -m tools.phrases.rare_words $DATA --bundle models/starter/1 -o pocketsphinx.jsonl

Rare are words that occur fewer than 100 times in a file of novels.
"""

from __future__ import annotations

import gzip
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from rescorer.bundle import read_bundle
from rescorer.cli.options.models import BundleOption
from rescorer.conversation import Phrase
from rescorer.formats.nbest.jsonlines import writer
from rescorer.text import Normaliser
from rescorer.types import NBestList
from tools.phrases.false_alarms import RANK, SOURCES

NOVELS = "text/books/books-0.txt.gz"
MIN_COUNT = 100


def add_phrases(nbest: NBestList, counts: Counter[str], normaliser: Normaliser) -> NBestList:
    """Add the rare words of the reference, each once; not those that the normaliser drops, such as "uh"."""
    words = dict.fromkeys((nbest.reference or "").split())
    rare = (word for word in words if counts[word] < MIN_COUNT and normaliser.normalise_token(word))
    streams = {name: values for name, values in nbest.streams.items() if name != RANK}
    return replace(nbest, phrases=tuple(map(Phrase, rare)), streams=streams)


def main(
    folder: Annotated[Path, typer.Argument(help="The data folder.")],
    bundle: BundleOption,
    output: Annotated[Path, typer.Option("-o", help="File of lists to write.")],
    source: Annotated[str, typer.Option(help="PocketSphinx or Moonshine.")] = "PocketSphinx",
) -> None:
    """Write the lists with phrases, and print how many phrases they have."""
    with gzip.open(folder / NOVELS, "rt", encoding="utf-8") as lines:
        counts = Counter(word for line in lines for word in line.split())
    normaliser = read_bundle(bundle).normaliser
    lists = [add_phrases(nbest, counts, normaliser) for nbest in SOURCES[source].read(folder / "nbest")]
    with writer(str(output)) as write:
        for nbest in lists:
            write(nbest)
    n_phrases = [len(nbest.phrases) for nbest in lists]
    n_with = sum(map(bool, n_phrases))
    print(f"{counts.total():,} words of novels; {sum(n_phrases)} phrases in {n_with} of {len(lists)} lists")


if __name__ == "__main__":
    typer.run(main)
