"""The commands ``rescorer-train vectors …``."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from rescorer.errors import ConfigError, pluralise
from rescorer.formats.io import text_io
from rescorer.formats.io.folders import list_files
from rescorer.formats.io.text_io import check_not_input, check_target, is_stream, make_folder
from rescorer.models.bundle import TEXT, read_bundle
from rescorer.runtime import count_cpus
from rescorer.safe_input import Folder
from rescorer.terminal.options import expand_options
from rescorer.terminal.program import PLAIN_HELP, check_not_an_input, print_results_apart
from rescorer.terminal.tables import print_out
from rescorer_training.cli.options import (
    JsonOption,
    NormaliserOption,
    ResumeOption,
    SeedOption,
    TextsArgument,
    ThreadsOption,
    check_run_output,
    make_table,
    train_in,
)
from rescorer_training.corpus import choose_normaliser, read_sentences
from rescorer_training.evaluation.perplexity import resolve_model_folder
from rescorer_training.ngram.backoff_model import open_output
from rescorer_training.ngram.estimate import staged_output
from rescorer_training.pipes import keep_pipes
from rescorer_training.progress import option
from rescorer_training.vectors import counts, glove, judgement, phrases, plots, runs, word2vec
from rescorer_training.vectors.files import Encoding, VectorFormat, WordVectors, read_vectors, write_vectors


def prepare_output(output: Path, option: str = "-o") -> None:
    """Create the folder of an output, and check before any work that the file can be written.

    Raises:
        ConfigError: the output is an input of the command.
        FormatError: the folder cannot be created, or the file cannot be written there.
    """
    check_not_an_input(option, output)
    if str(output) == "-":
        return
    make_folder(output.parent)
    check_target(output)


def save_vectors(output: Path, vectors: WordVectors, to: VectorFormat, note: str = "") -> None:
    """Write a file of vectors, and print its size."""
    write_vectors(output, vectors, to)
    with print_results_apart(output):
        typer.echo(f"{output}: {len(vectors):,} words, {vectors.dimensions} dimensions{note}")


@contextmanager
def open_temporary_folder(output: Path) -> Iterator[Path]:
    """Open a folder for temporary files, which is removed afterwards.

    It is on the same disk as the output, or in the system's temporary folder if the output is a device or
    pipe.
    """
    place = None if is_stream(output) else output.parent
    with tempfile.TemporaryDirectory(dir=place, prefix=".vectors-") as folder:
        yield Path(folder)


VectorsArgument = Annotated[
    Path,
    typer.Argument(
        metavar="VECTORS", help="File of word vectors: word2vec's text or binary, or GloVe's; gzip or plain."
    ),
]
MinCountOption = Annotated[int, typer.Option(min=1, help="Leave out words that occur less often.")]
MemoryOption = Annotated[
    int,
    typer.Option(
        help="Memory in MB for counting and shuffling co-occurrences; what does not fit is sorted on disk."
    ),
]
DimensionsOption = Annotated[int, typer.Option(help="Number of values per vector.")]
VectorsOutputOption = Annotated[
    Path, typer.Option("-o", "--output", help="File of vectors to write, gzip if the name ends in .gz.")
]
OutputFormatOption = Annotated[VectorFormat, typer.Option("--to", help="Format of the vectors.")]


@dataclass(frozen=True, slots=True)
class VectorReadingOptions:
    """Reading of a file of word vectors."""

    format: VectorFormat | None = option(
        None,
        "Format of VECTORS. Default: word2vec if the first line is two whole numbers, binary if the "
        "second line does not then end in as many numbers as the first announces; otherwise glove.",
    )
    limit: int | None = option(
        None, "Read only the first N words, usually the most frequent ones.", metavar="N", min=1
    )
    encoding: Encoding = option(
        Encoding.UTF_8, "Encoding of the words of VECTORS; try cp1252 if a file is not UTF-8."
    )

    def read(self, vectors: Path) -> WordVectors:
        """Read a file; raises FormatError if it cannot be read."""
        return read_vectors(vectors, self.format, limit=self.limit, encoding=self.encoding)


@dataclass(frozen=True, slots=True)
class VectorsTarget:
    """The file of vectors to write."""

    output: VectorsOutputOption
    to: OutputFormatOption = VectorFormat.WORD2VEC


@dataclass(frozen=True, slots=True)
class VectorRunOptions:
    """Settings of a training run: its normaliser and threads, and whether it is resumed."""

    normaliser: NormaliserOption = None
    threads: ThreadsOption = None
    resume: ResumeOption = False

    def check_folder(self, folder: Path, texts: Sequence[Path]) -> None:
        """Check the folder of the run before any work is done.

        Raises:
            ConfigError: a new run would overwrite an input, or the run to continue has other texts.
        """
        if self.resume:
            chosen = choose_normaliser(self.normaliser) if self.normaliser else None
            runs.check_sources(folder, texts, chosen)
        else:
            files = (TEXT, runs.SOURCES_FILE, runs.IDS_FILE, runs.VOCABULARY_FILE)
            check_run_output("--run", folder, files)


@expand_options
def analogy_command(
    vectors: VectorsArgument,
    questions: Annotated[
        Path,
        typer.Argument(
            metavar="QUESTIONS",
            help="Questions in the format of Google's: ': category', then four words per line.",
        ),
    ],
    *,
    reading: VectorReadingOptions,
    as_json: JsonOption = False,
) -> None:
    """Answer analogies, "Athens is to Greece as Oslo is to …", by category, with 3CosAdd and 3CosMul.

    The answer is the nearest word other than the three. Words are compared in lower case. A question with a
    word that has no vector is left out: "covered" is the share that is not. Categories whose name begins with
    "gram" are syntactic, the others semantic. After ± is half of the 95 % interval that a bootstrap over the
    questions gives.

    Example: rescorer-train vectors analogy vectors.bin questions-words.txt
    """
    categories = judgement.read_analogies(questions)
    answers = judgement.answer_analogies(reading.read(vectors), categories)
    sums = judgement.summarise(categories, answers)
    if as_json:
        typer.echo(
            json.dumps({"categories": list(map(describe, answers)), "sums": list(map(describe, sums))})
        )
        return
    headings = ("category", "questions", "covered %", *(f"{method} %" for method in judgement.Method))
    rows = [
        (
            item.name,
            f"{item.n_questions:,}",
            f"{100 * item.n_covered / item.n_questions:.1f}",
            *(format_accuracy(item, method) for method in judgement.Method),
        )
        for item in (*answers, *sums)
    ]
    print_out(make_table(headings, rows))


def describe(item: judgement.Answers) -> dict[str, Any]:
    """Convert the answers of a category to JSON data."""
    return {
        "name": item.name,
        "questions": item.n_questions,
        "covered": item.n_covered,
        **{
            method.value: {
                "right": item.n_right[method],
                "accuracy": item.accuracy(method),
                "interval": item.interval(method),
            }
            for method in judgement.Method
        },
    }


def format_accuracy(item: judgement.Answers, method: judgement.Method) -> str:
    """Format the accuracy in percent, with half of its interval if there is one."""
    accuracy, interval = item.accuracy(method), item.interval(method)
    if accuracy is None or interval is None:
        return "–"
    half = (interval[1] - interval[0]) / 2
    return f"{100 * accuracy:.1f}" + (f" ±{100 * half:4.1f}" if half else " " * 6)


@expand_options
def convert_command(
    vectors: VectorsArgument,
    output: Annotated[
        Path, typer.Argument(metavar="OUTPUT", help="File to write, gzip if the name ends in .gz.")
    ],
    to: Annotated[VectorFormat, typer.Option(help="Format to write.")],
    *,
    reading: VectorReadingOptions,
) -> None:
    """Convert a file of word vectors to another format; every value stays the same float32.

    Example: rescorer-train vectors convert glove.6B.50d.txt.gz glove.bin --to word2vec-binary
    """
    prepare_output(output, "output")
    content = reading.read(vectors)
    write_vectors(output, content, to)
    typer.echo(f"{output}: {len(content):,} words, {content.dimensions} dimensions", err=True)


def export_command(
    output: VectorsOutputOption,
    neural: Annotated[
        Path | None, typer.Option(help="Folder of a trained network or of its run, of any kind.")
    ] = None,
    bundle: Annotated[
        Path | None, typer.Option(help="Bundle folder instead: NAME/VERSION, or NAME for its newest version.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Network of the bundle, if it has several.")
    ] = None,
    output_layer: Annotated[
        bool, typer.Option(help="Word vectors of the output layer instead of the input embedding.")
    ] = False,
    to: OutputFormatOption = VectorFormat.WORD2VEC,
) -> None:
    """Export the embeddings of a language model as word vectors.

    Works for log-bilinear, feed-forward, recurrent and transformer networks alike. The words are in the order
    of the network's vocabulary, without <s>, </s> and <unk>.

    Example: rescorer-train vectors export --neural runs/lstm -o lstm-embeddings.txt
    """
    prepare_output(output)
    folder = _choose_folder(neural, bundle, model)
    if isinstance(folder, Path):
        check_not_input("-o", output, list_files(folder))
    save_vectors(output, runs.export_embeddings(folder, output=output_layer), to)


def _choose_folder(neural: Path | None, bundle: Path | None, model: str | None) -> Path | Folder:
    """Return the folder of the network to export.

    Raises:
        ConfigError: not exactly one of network and bundle is given, or the bundle's network is not clear.
    """
    if (neural is None) == (bundle is None):
        raise ConfigError("expected either --neural or --bundle")
    if neural is not None:
        if model is not None:
            raise ConfigError("--model names a network of a bundle; give it with --bundle")
        return resolve_model_folder(neural)
    assert bundle is not None
    content = read_bundle(bundle)
    names = [name for name, kind in content.model_kinds.items() if kind == "neural"]
    if not names:
        raise ConfigError(f"{content.folder}: the bundle has no network")
    if model is None and len(names) == 1:
        model = names[0]
    if model not in names:
        raise ConfigError(f"{content.folder}: expected --model with one of {', '.join(names)}, got {model}")
    return content.files.subfolder(content.manifest["models"][model]["path"].rstrip("/"))


@expand_options
def glove_command(
    texts: TextsArgument,
    output: VectorsOutputOption,
    folder: Annotated[
        Path, typer.Option("--run", help="Folder of the run: text as ids, co-occurrences, and state.")
    ],
    *,
    to: OutputFormatOption = VectorFormat.WORD2VEC,
    memory_mb: MemoryOption = 1024,
    settings: VectorRunOptions,
    options: glove.GloveOptions,
) -> None:
    """Train GloVe vectors, whose products approximate the logarithms of co-occurrences.

    A pair of words at distance d counts 1/d. With one thread the same seed gives the same vectors, also after
    an interruption; several threads change the same vectors without waiting, so that results vary a little.

    Example: rescorer-train vectors glove books.txt.gz --run runs/glove -o glove.txt --dimensions 300
    """
    prepare_output(output)
    settings.check_folder(folder, texts)
    with train_in(folder, runs.VECTORS_STATE_FILE, resume=settings.resume):
        if not settings.resume:
            normaliser = choose_normaliser(settings.normaliser)
            glove.start_run(texts, normaliser, folder, options, memory_mb=memory_mb)
        vectors, state = glove.run(folder, options, settings.threads or count_cpus())
        note = f"; loss {state.losses[-1]:.4f} per pair; trained in {state.seconds:,.0f} s"
        save_vectors(output, vectors, to, note)


@expand_options
def lsa_command(
    texts: TextsArgument,
    target: VectorsTarget,
    *,
    dimensions: DimensionsOption = 300,
    document_sentences: Annotated[
        int, typer.Option(help="Number of consecutive sentences that are one document.")
    ] = 1,
    min_count: MinCountOption = 5,
    seed: SeedOption = 1,
    normaliser: NormaliserOption = None,
) -> None:
    """Compute word vectors by latent semantic analysis: words that occur in the same documents.

    Counts are weighted by the entropy of their words. The matrix of words and documents is held in memory,
    about 50 bytes per word of the text.

    Example: rescorer-train vectors lsa books.txt.gz -o lsa.txt --dimensions 300
    """
    chosen = choose_normaliser(normaliser)
    prepare_output(target.output)
    with open_temporary_folder(target.output) as folder:
        text = runs.prepare_text(texts, chosen, folder, min_count)
        vectors = counts.analyse(text, dimensions, document_sentences, seed)
    save_vectors(target.output, vectors, target.to)


@expand_options
def neighbours_command(
    vectors: VectorsArgument,
    words: Annotated[
        list[str],
        typer.Argument(metavar="WORD…", help="Words, or sums of words in quotes: 'king - man + woman'."),
    ],
    number: Annotated[int, typer.Option("-n", "--number", min=1, help="Number of neighbours to show.")] = 10,
    *,
    reading: VectorReadingOptions,
    as_json: JsonOption = False,
) -> None:
    """Show the words whose vectors are nearest, by the cosine, to that of a word or a sum of words.

    Vectors are added at length 1. The words themselves are not shown. Upper and lower case are different
    words here.

    Example: rescorer-train vectors neighbours vectors.bin house 'king - man + woman'
    """
    content = reading.read(vectors)
    terms = [judgement.parse_sum(text, content) for text in words]
    found = {
        text: judgement.find_neighbours(content, sum_, number)
        for text, sum_ in zip(words, terms, strict=True)
    }
    if as_json:
        typer.echo(json.dumps({text: [asdict(item) for item in rows] for text, rows in found.items()}))
        return
    for text, neighbours in found.items():
        rows = [(item.word, f"{item.cosine:.3f}") for item in neighbours]
        print_out(make_table((text, "cosine"), rows), "")


MAX_SHOWN = 5


@dataclass(frozen=True, slots=True)
class DrawnWords:
    """Which words to draw."""

    number: Annotated[
        int,
        typer.Option(
            "-n",
            "--number",
            min=plots.MIN_WORDS,
            max=plots.MAX_WORDS,
            help="Number of words, the most frequent.",
        ),
    ] = 500
    words: Path | None = option(
        None,
        "File of the words to draw instead: one per line, and after a tab, optionally, the name of "
        "its group, which chooses the colour.",
    )

    def select(self, vectors: WordVectors) -> plots.Selection:
        """Select the words; raises FormatError if their file cannot be read."""
        if self.words:
            return plots.select_from_file(vectors, self.words)
        return plots.select_most_frequent(vectors, self.number)


@expand_options
def plot_command(
    vectors: VectorsArgument,
    output: Annotated[
        Path,
        typer.Option("-o", "--output", help="File to write: a picture (.png), or a page to explore (.html)."),
    ],
    *,
    drawn: DrawnWords,
    projection: Annotated[
        list[plots.Projection] | None,
        typer.Option(
            help="How vectors become points. A page can have both, which is the default; a picture has one, "
            "by default t-SNE."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Random seed of t-SNE.")] = 0,
    title: Annotated[str | None, typer.Option(help="Title. Default: the name of VECTORS.")] = None,
    reading: VectorReadingOptions,
) -> None:
    """Draw words as points of a plane, those with similar vectors close together.

    The page needs no network: it has a search box, zooms and moves, and lists the nearest words of each.
    Labels that would cover others are left out until there is room.

    Example: rescorer-train vectors plot vectors.bin -o vectors.html -n 1000
    """
    plots.check_libraries()
    is_page = output.suffix == ".html"
    chosen = projection or (
        [plots.Projection.TSNE, plots.Projection.PCA] if is_page else [plots.Projection.TSNE]
    )
    if output.suffix not in (".html", ".png"):
        raise ConfigError(f"{output}: expected a name that ends in .png or .html")
    if len(chosen) > 1 and not is_page:
        raise ConfigError(f"a picture shows one projection, got {len(chosen)}; write a page (.html) for more")
    prepare_output(output)
    content = reading.read(vectors)
    selection = drawn.select(content)
    picture = plots.make_picture(content, selection, chosen, seed, vectors.name if title is None else title)
    if is_page:
        text_io.write_text(output, plots.render_page(picture))
    else:
        with text_io.open_binary_output(output) as stream:
            plots.draw_png(picture, chosen[0], stream)
    typer.echo(f"{output}: {len(picture.words):,} words", err=True)
    if selection.missing:
        more = " …" if len(selection.missing) > MAX_SHOWN else ""
        shown = ", ".join(selection.missing[:MAX_SHOWN]) + more
        typer.echo(f"{len(selection.missing)} words without a vector: {shown}", err=True)


@expand_options
def similarity_command(
    vectors: VectorsArgument,
    sets: Annotated[
        list[Path],
        typer.Argument(
            metavar="SET…",
            help="Files of pairs with the similarity that people gave: two words and a number per line. Of a "
            "folder, all files that end in .txt or .txt.gz.",
        ),
    ],
    *,
    reading: VectorReadingOptions,
    seed: Annotated[int, typer.Option(min=0, help="Random seed of the bootstrap.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Correlate cosines with the similarities that people gave, by Spearman's ρ.

    Words are compared in lower case. A pair with a word that has no vector is left out: "covered" is the
    share that is not. A set whose pairs are all in a larger one, such as the two halves of WordSim-353, is
    shown but does not count in the mean. Intervals have 95 %, from a bootstrap over the pairs.

    Example: rescorer-train vectors similarity vectors.bin similarity/
    """
    read = read_sets(sets)
    result = judgement.measure_similarity(reading.read(vectors), read, seed)
    if as_json:
        typer.echo(json.dumps(asdict(result)))
        return
    rows = [
        (
            f"{row.name} (in {row.part_of})" if row.part_of else row.name,
            f"{row.n_pairs:,}",
            f"{100 * row.n_covered / row.n_pairs:.1f}",
            "–" if row.spearman is None else f"{row.spearman:.3f}",
            format_interval(row.interval),
        )
        for row in result.sets
    ]
    mean = f"mean of {sum(row.counts for row in result.sets)}"
    rows.append((mean, "", "", f"{result.mean:.3f}", format_interval(result.interval)))
    print_out(make_table(("set", "pairs", "covered %", "Spearman's ρ", "95 % interval"), rows))


def read_sets(paths: Sequence[Path]) -> list[judgement.SimilaritySet]:
    """Read files of pairs, and all files of pairs in folders, in the order of their names.

    Raises:
        ConfigError: a folder has no file of pairs, or two sets have the same name.
    """
    sets: dict[str, judgement.SimilaritySet] = {}
    for path in paths:
        files = sorted([*path.glob("*.txt"), *path.glob("*.txt.gz")]) if path.is_dir() else [path]
        if not files:
            raise ConfigError(f"{path}: no files that end in .txt or .txt.gz; expected sets of pairs")
        for file in files:
            item = judgement.read_similarities(file)
            if item.name in sets:
                raise ConfigError(f"{file}: another set has the name {item.name!r} too; rename one")
            sets[item.name] = item
    return list(sets.values())


def format_interval(interval: tuple[float, float] | None) -> str:
    return "–" if interval is None else f"{interval[0]:.3f} … {interval[1]:.3f}"


@expand_options
def svd_command(
    texts: TextsArgument,
    target: VectorsTarget,
    *,
    options: counts.SvdOptions,
    normaliser: NormaliserOption = None,
) -> None:
    """Compute word vectors by singular value decomposition of pointwise mutual information (PPMI).

    Pairs of words are counted on disk within --memory-mb. The matrix of all distinct pairs is then held in
    memory for the decomposition, about 50 bytes per pair.

    Example: rescorer-train vectors svd books.txt.gz -o svd.txt --dimensions 300 --window 5
    """
    chosen = choose_normaliser(normaliser)
    prepare_output(target.output)
    with open_temporary_folder(target.output) as folder:
        text = runs.prepare_text(texts, chosen, folder, options.min_count)
        cells = folder / "cells"
        counts.count_cooccurrences(
            text, cells, window=options.window, by_distance=False, memory_mb=options.memory_mb
        )
        vectors = counts.decompose(text.words, counts.load_matrix(cells, len(text.words)), options)
    save_vectors(target.output, vectors, target.to)


@expand_options
def train_command(
    texts: TextsArgument,
    output: VectorsOutputOption,
    folder: Annotated[Path, typer.Option("--run", help="Folder of the run: text as ids, state, report.")],
    *,
    to: OutputFormatOption = VectorFormat.WORD2VEC,
    settings: VectorRunOptions,
    as_json: JsonOption = False,
    options: word2vec.Word2VecOptions,
) -> None:
    """Train word vectors by skip-gram or CBOW (word2vec).

    Contexts end at the ends of sentences. With one thread the same seed gives the same vectors, also after
    an interruption; several threads change the same vectors without waiting, so that results vary a little.

    Example: rescorer-train vectors train books.txt.gz -o books.txt --run runs/books --model cbow
    """
    prepare_output(output)
    settings.check_folder(folder, texts)
    with train_in(folder, runs.VECTORS_STATE_FILE, resume=settings.resume):
        if not settings.resume:
            word2vec.start_run(texts, choose_normaliser(settings.normaliser), folder, options)
        vectors, report = word2vec.run(folder, options, settings.threads or count_cpus())
        if not as_json:
            return save_vectors(output, vectors, to, f"; trained in {report['seconds']:,.0f} s")
        write_vectors(output, vectors, to)
    with print_results_apart(output):
        typer.echo(json.dumps(report))


@expand_options
def phrases_command(
    texts: TextsArgument,
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", help="Text to write, with phrases as words; gzip if the name ends in .gz."
        ),
    ],
    *,
    found: Annotated[Path | None, typer.Option(help="File to write the phrases to.")] = None,
    known: Annotated[
        Path | None, typer.Option(help="File of phrases to join, from --found, instead of finding some.")
    ] = None,
    normaliser: NormaliserOption = None,
    options: phrases.PhraseOptions,
) -> None:
    """Find pairs of words that belong together, and write the text with such phrases as single words.

    A pair ab scores (count(ab) - min count) · words / (count(a) · count(b)), as in word2phrase. Vectors and
    n-grams are trained from the text with --normaliser raw, since its words are normalised already.

    Example: rescorer-train vectors phrases books.txt.gz -o joined.txt.gz --found phrases.tsv
    """
    for name, file in (("-o", output), ("--found", found)):
        if file is not None:
            prepare_output(file, name)
    chosen = choose_normaliser(normaliser)
    with keep_pipes():
        joined = (
            phrases.read_phrases(known)
            if known
            else phrases.find_phrases(lambda: read_sentences(texts, chosen, "finding phrases"), options)
        )
        with (
            staged_output(output) as file,
            text_io.explain_write_errors(file),
            text_io.replace_file(file) as partial,
            open_output(partial) as stream,
        ):
            for line in phrases.join_sentences(read_sentences(texts, chosen, "joining phrases"), joined):
                stream.write(line.encode())
    if found is not None:
        phrases.write_phrases(found, joined)
    best = ", ".join("_".join(pair) for pairs in joined for pair in list(pairs)[:3])
    with print_results_apart(output):
        typer.echo(f"{pluralise(sum(map(len, joined)), 'phrase')}{f', such as {best}' if best else ''}")


vectors_app = typer.Typer(
    **PLAIN_HELP,
    help="Train, measure and look at word vectors.\n\n"
    "Example: rescorer-train vectors train text.txt.gz -o vectors.txt --run runs/vectors",
    no_args_is_help=True,
)
vectors_app.command("glove")(glove_command)
vectors_app.command("svd")(svd_command)
vectors_app.command("lsa")(lsa_command)
vectors_app.command("export")(export_command)
vectors_app.command("train")(train_command)
vectors_app.command("phrases")(phrases_command)
vectors_app.command("convert")(convert_command)
vectors_app.command("neighbours")(neighbours_command)
vectors_app.command("analogy")(analogy_command)
vectors_app.command("plot")(plot_command)
vectors_app.command("similarity")(similarity_command)
