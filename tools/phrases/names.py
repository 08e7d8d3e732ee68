"""Give all PocketSphinx lists the proper names of the read-speech references as phrases, and count errors.

    python -m tools.phrases.names $DATA/nbest --bundle models/starter/1

The references are written in lower case. Names are the words that printed English writes with a capital
inside of a sentence: people, peoples, places, books, days and feasts. Weights are held out by speaker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from rescorer.cli.options.dataclass_options import expand_options
from rescorer.cli.options.evaluation.score_cache import CacheOptions
from rescorer.cli.options.models import BundleOption
from rescorer.conversation import Phrase
from rescorer.evaluation.comparison.false_alarms import PhraseBound, find_false_alarms
from rescorer.evaluation.comparison.rankings import order_by_errors, order_by_weights
from rescorer.evaluation.comparison.scored_lists import ScoredList, score_lists
from rescorer.evaluation.comparison.tuned import Tuning
from rescorer.evaluation.figures import describe_p, format_gain
from rescorer.evaluation.statistics.bootstrap import bootstrap
from rescorer.trie import Words
from rescorer.types import Weights
from tools.phrases.biased_errors import BiasedErrors, add_up, count_biased_errors
from tools.phrases.false_alarms import SOURCES

FREE = ("streams", "lm", "word", "oov", "empty", "phrases")
NAMES = (
    *(
        "allah",
        "benjamin",
        "bible",
        "biblical",
        "carl",
        "chinese",
        "dashwood",
        "egypt",
        "egyptian",
        "ephraim",
    ),
    *(
        "george",
        "gutenberg",
        "hale",
        "halloween",
        "hebrew",
        "hebrews",
        "helstone",
        "israel's",
        "john",
        "john's",
    ),
    *("joseph", "joyce", "judah", "lincoln", "manasseh", "margaret", "merneptah", "monday", "moses"),
    *("netherlands", "nuzhat al zaman", "polly", "puttel", "sherburn", "sherburn's", "smiths", "thornton"),
    "zau al makan",
)


def find_winners(scored: Sequence[ScoredList], weights: Sequence[Weights]) -> list[Words]:
    """The words that weights rank first, of each list."""
    pairs = zip(scored, weights, strict=True)
    return [item.words[order_by_weights(item, own)[0]] for item, own in pairs]


@expand_options
def main(
    folder: Annotated[Path, typer.Argument(help="The folder nbest of the data.")],
    bundle: BundleOption,
    *,
    cache: CacheOptions,
) -> None:
    """Print errors in names and elsewhere, with and without phrases."""
    rescorer = cache.load_rescorer(bundle, "cpu")
    source = SOURCES["PocketSphinx"]
    weights = rescorer.ranker.effective_weights(source.weights)
    lists = list(source.read(folder))
    plain, _ = score_lists(rescorer, lists, weights)
    phrases = tuple(map(Phrase, NAMES))
    named, _ = score_lists(rescorer, [replace(item, phrases=phrases) for item in lists], weights)
    bound = PhraseBound(find_false_alarms(rescorer, named, weights))
    start = bound.apply(named, weights)
    n = len(lists)
    tuned = Tuning(plain, weights, FREE)
    alone = Tuning(named, start, ("phrases",), phrase_bound=bound)
    together = Tuning(named, start, FREE, phrase_bound=bound)
    rows = {
        "fixed weights": find_winners(plain, [weights] * n),
        "fixed weights, phrases by default": find_winners(named, [weights] * n),
        "fixed weights, phrases tuned": find_winners(named, [own for _, own in alone.hold_out()]),
        "tuned weights": find_winners(plain, [own for _, own in tuned.hold_out()]),
        "tuned weights and phrases": find_winners(named, [own for _, own in together.hold_out()]),
        "oracle": [item.words[order_by_errors(item)[0]] for item in plain],
    }
    print(f"lists with a phrase that was not said: {len(bound.alarms.exposures)}")
    print(f"false alarms by default: {bound.alarms.count(named, weights)} of {n}")
    print(f"false alarms held out: {alone.count_false_alarms()} and {together.count_false_alarms()} of {n}")
    print(f"weights of phrases in the folds: {[own.phrases for own in alone.fold_weights]}")
    print(f"and with the others: {[own.phrases for own in together.fold_weights]}")
    report(plain, rows, rescorer.bundle.normaliser.normalise("\n".join(NAMES)))


def report(scored: Sequence[ScoredList], rows: Mapping[str, Sequence[Words]], names: Words) -> None:
    """Print the errors of each row, and its gain over the row before it that has no phrases."""
    references = [tuple(item.reference.split()) for item in scored]
    biased = frozenset(names)
    counts: dict[str, list[BiasedErrors]] = {
        name: [count_biased_errors(*pair, biased) for pair in zip(references, texts, strict=True)]
        for name, texts in rows.items()
    }
    errors = np.array([[one.errors for one in row] for row in counts.values()])
    drawn = bootstrap(errors, [len(words) for words in references], [item.nbest.group for item in scored])
    baseline = 0
    for index, (name, row) in enumerate(counts.items()):
        total = add_up(row)
        others = f"{total.errors - total.biased_errors} of {total.words - total.biased_words} other words"
        gain = drawn.gain(baseline, index)
        print(
            f"{name}: WER {total.rates()['WER']:.2f}, errors in {total.biased_errors} of "
            f"{total.biased_words} names and {others}; gain {format_gain(gain)}, {describe_p(gain.p_value)}"
        )
        baseline = index if name == "tuned weights" else baseline


if __name__ == "__main__":
    typer.run(main)
