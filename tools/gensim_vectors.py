"""Train word vectors with rescorer-train and with gensim on the same text, and compare quality and speed.

    python -m tools.gensim_vectors text.txt.gz --questions questions-words.txt --sets similarity/

Both take the same options, one thread and text that is already normalised. Speed is in words of the text per
second of training, without reading the text; on a shared machine, only the ratio of one run means anything.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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

    name: str
    vectors: WordVectors
    words_per_second: float


def train_ours(text: Path, options: Word2VecOptions) -> Trained:
    """Train with ``rescorer-train vectors train``."""
    with tempfile.TemporaryDirectory() as folder:
        run.start_run([text], NORMALISER, Path(folder), options)
        vectors, report = run.run(Path(folder), options, threads=1)
    return Trained("rescorer-train", vectors, report["words_per_second"] or 0)


def train_gensim(text: Path, options: Word2VecOptions) -> Trained:
    """Train with gensim's ``Word2Vec`` and the same options."""
    from gensim.models import Word2Vec

    sentences = list(read_sentences([text], NORMALISER))
    negative = options.output_layer == "negative"
    model = Word2Vec(
        sg=int(options.model == "skip-gram"), hs=int(not negative), negative=options.negatives * negative,
        vector_size=options.dimensions, window=options.window, min_count=options.min_count,
        sample=options.subsample, ns_exponent=options.noise_exponent, alpha=options.initial_learning_rate,
        min_alpha=options.final_learning_rate, seed=options.seed, workers=1,
    )  # fmt: skip
    model.build_vocab(sentences)
    start = time.perf_counter()
    model.train(sentences, total_examples=model.corpus_count, epochs=options.epochs)
    seconds = time.perf_counter() - start
    words = tuple(model.wv.index_to_key)
    n_words = sum(model.wv.get_vecattr(word, "count") for word in words)
    return Trained("gensim", WordVectors(words, model.wv.vectors), options.epochs * n_words / seconds)


def describe(trained: Trained, questions: Path | None, sets: Sequence[Path]) -> str:
    """Return a row of the table: speed, analogies, similarity."""
    analogies = similarity = "–"
    if questions is not None:
        total = sum_answers("total", answer_analogies(trained.vectors, read_analogies(questions)))
        accuracy, interval = total.accuracy(Method.ADD), total.interval(Method.ADD)
        if accuracy is not None and interval is not None:
            analogies = f"{100 * accuracy:.1f} ± {50 * (interval[1] - interval[0]):.1f}"
    if sets:
        similarity = f"{measure_similarity(trained.vectors, [read_similarities(p) for p in sets]).mean:.3f}"
    return f"{trained.name:15}{trained.words_per_second:>10,.0f}{analogies:>15}{similarity:>10}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", type=Path)
    parser.add_argument("--questions", type=Path, help="analogies in the format of Google's")
    parser.add_argument("--sets", type=Path, help="folder of pairs with the similarity that people gave")
    parser.add_argument("--model", default="skip-gram", help="skip-gram or cbow")
    parser.add_argument("--output-layer", default="negative", help="negative or hierarchical")
    for name, default in (("dimensions", 100), ("window", 5), ("min-count", 5), ("epochs", 5), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    values = vars(parser.parse_args(arguments))
    text, questions, folder = (values.pop(name) for name in ("text", "questions", "sets"))
    sets = sorted(folder.glob("*.txt")) if folder else []
    options = Word2VecOptions(**values)
    both = [train(text, options) for train in (train_ours, train_gensim)]
    print(f"{'':15}{'words/s':>10}{'analogies %':>15}{'mean ρ':>10}")
    for trained in both:
        print(describe(trained, questions, sets))
    print(f"words/s: {both[0].words_per_second / both[1].words_per_second:.2f} times gensim's")


if __name__ == "__main__":
    main()
