"""Train word vectors with rescorer-train and with gensim on the same text, and compare quality and speed.

    python -m tools.gensim_vectors text.txt.gz --questions questions.txt --sets similarity/ --seeds 1 2 3

Both take the same options and text that is already normalised. Speed is in words of the text per second of
training, without reading the text: of processor time with one thread, of elapsed time with several, which
needs cores that nothing else uses. Each row is printed as soon as it is known; with two seeds or more, the
last lines give the differences of the means, with intervals of 95 % over seeds (Welch 1947), which say
nothing about other questions or pairs.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.stats import ttest_ind

from rescorer.text import Normaliser, NormaliserSettings
from rescorer_training.data.corpus import read_sentences
from rescorer_training.vectors.evaluation.analogy import Method, answer_analogies, sum_answers
from rescorer_training.vectors.evaluation.questions import read_analogies, read_similarities
from rescorer_training.vectors.evaluation.similarity import measure_similarity
from rescorer_training.vectors.word2vec import run
from rescorer_training.vectors.word2vec.options import Word2VecOptions
from rescorer_training.vectors.word_vectors import WordVectors

NORMALISER = Normaliser(NormaliserSettings.raw())


@dataclass(frozen=True)
class Trained:
    """Vectors, and how fast they were trained."""

    vectors: WordVectors
    words_per_second: float


def clock(threads: int) -> float:
    """Processor time in seconds, which other processes do not stretch; with several threads, elapsed time."""
    return time.process_time() if threads == 1 else time.perf_counter()


def train_ours(texts: Sequence[Path], options: Word2VecOptions, threads: int) -> Trained:
    """Train with ``rescorer-train vectors train``."""
    with tempfile.TemporaryDirectory() as folder:
        run.start_run(texts, NORMALISER, Path(folder), options)
        start = clock(threads)
        vectors, report = run.run(Path(folder), options, threads=threads)
        seconds = clock(threads) - start
    return Trained(vectors, options.epochs * report["words"] / seconds)


def train_gensim(texts: Sequence[Path], options: Word2VecOptions, threads: int) -> Trained:
    """Train with gensim's ``Word2Vec`` and the same options."""
    from gensim.models import Word2Vec

    sentences = list(read_sentences(texts, NORMALISER))
    negative = options.output_layer == "negative"
    model = Word2Vec(
        sg=int(options.model == "skip-gram"), hs=int(not negative), negative=options.negatives * negative,
        vector_size=options.dimensions, window=options.window, min_count=options.min_count,
        sample=options.subsample, ns_exponent=options.noise_exponent, alpha=options.initial_learning_rate,
        min_alpha=options.final_learning_rate, seed=options.seed, workers=threads,
    )  # fmt: skip
    model.build_vocab(sentences)
    start = clock(threads)
    model.train(sentences, total_examples=model.corpus_count, epochs=options.epochs)
    seconds = clock(threads) - start
    words = tuple(model.wv.index_to_key)
    n_words = sum(model.wv.get_vecattr(word, "count") for word in words)
    return Trained(WordVectors(words, model.wv.vectors), options.epochs * n_words / seconds)


TRAINERS: dict[str, Callable[[Sequence[Path], Word2VecOptions, int], Trained]] = {
    "rescorer-train": train_ours,
    "gensim": train_gensim,
}
HEADER = f"{'':15}{'seed':>6}{'words/s':>10}{'analogies %':>15}{'covered':>9}{'mean ρ':>9}"


@dataclass(frozen=True)
class Row:
    """What one program's vectors are worth; figures without questions or sets are nan."""

    words_per_second: float
    analogies: float
    """Right answers by 3CosAdd, in percent of the questions that are covered."""
    half_interval: float
    """Half of its interval over questions."""
    covered: float
    """Share of the questions whose words all have vectors, in percent."""
    similarity: float

    def write(self, name: str, seed: int) -> None:
        """Print the row."""
        analogies = f"{self.analogies:.1f} ± {self.half_interval:.1f}"
        values = f"{self.words_per_second:>10,.0f}{analogies:>15}{self.covered:>9.1f}{self.similarity:>9.3f}"
        print(f"{name:15}{seed:>6}{values}", flush=True)


def measure(trained: Trained, questions: Path | None, sets: Sequence[Path]) -> Row:
    """Answer the analogies and compare the similarities."""
    accuracy = half = covered = similarity = math.nan
    if questions is not None:
        total = sum_answers("total", answer_analogies(trained.vectors, read_analogies(questions)))
        covered = 100 * total.n_covered / total.n_questions
        interval = total.interval(Method.ADD)
        if total.n_covered and interval is not None:
            accuracy, half = (
                100 * total.n_right[Method.ADD] / total.n_covered,
                50 * (interval[1] - interval[0]),
            )
    if sets:
        similarity = measure_similarity(trained.vectors, [read_similarities(p) for p in sets]).mean
    return Row(trained.words_per_second, accuracy, half, covered, similarity)


def describe_difference(ours: Sequence[float], theirs: Sequence[float], decimals: int) -> str:
    """Difference of two means, with an interval of 95 % over the seeds where there are several."""
    difference = f"{np.mean(ours) - np.mean(theirs):+.{decimals}f}"
    if min(len(ours), len(theirs)) < 2:
        return f"{difference} (one seed)"
    low, high = ttest_ind(ours, theirs, equal_var=False).confidence_interval()
    return f"{difference} ({low:+.{decimals}f} to {high:+.{decimals}f})"


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line; options of training keep the names of ``Word2VecOptions``."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("texts", type=Path, nargs="+")
    parser.add_argument("--questions", type=Path, help="analogies in the format of Google's")
    parser.add_argument("--sets", type=Path, help="folder of pairs with the similarity that people gave")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--threads", type=int, default=1, help="threads of each program")
    parser.add_argument("--model", default="skip-gram", help="skip-gram or cbow")
    parser.add_argument("--output-layer", default="negative", help="negative or hierarchical")
    for name, default in (("dimensions", 100), ("window", 5), ("min-count", 5), ("epochs", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    values = vars(parse_arguments(arguments))
    names = ("texts", "questions", "sets", "seeds", "threads")
    texts, questions, folder, seeds, threads = (values.pop(name) for name in names)
    sets = sorted(folder.glob("*.txt")) if folder else []
    options = Word2VecOptions(**values)
    rows: dict[str, list[Row]] = {name: [] for name in TRAINERS}
    print(HEADER, flush=True)
    for seed in seeds:
        for name, train in TRAINERS.items():
            row = measure(train(texts, replace(options, seed=seed), threads), questions, sets)
            row.write(name, seed)
            rows[name].append(row)
    ours, theirs = rows.values()
    ratio = np.mean([a.words_per_second / b.words_per_second for a, b in zip(ours, theirs, strict=True)])
    print(f"words/s: {ratio:.2f} times gensim's")
    if questions is not None:
        difference = describe_difference(
            [row.analogies for row in ours], [row.analogies for row in theirs], 1
        )
        print(f"analogies: {difference} points from gensim's")
    if sets:
        difference = describe_difference(
            [row.similarity for row in ours], [row.similarity for row in theirs], 3
        )
        print(f"mean ρ: {difference} from gensim's")


if __name__ == "__main__":
    main()
