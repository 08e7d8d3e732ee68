"""Commands that measure language models: perplexity, sentence completion, sampled text."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from rescorer.errors import ConfigError, pluralise, quote
from rescorer.evaluation.list_errors import format_size
from rescorer.models.language_model import OpenVocabularyModel
from rescorer.terminal.options import expand_options
from rescorer.terminal.tables import FoldingTable, print_out
from rescorer_training import completion
from rescorer_training.cli.options import (
    DeviceOption,
    JsonOption,
    MixtureOptions,
    NormaliserOption,
    SeedOption,
    format_test,
    make_table,
    read_words,
    score_file,
)
from rescorer_training.corpus import choose_normaliser
from rescorer_training.evaluation.past_text import (
    SessionReport,
    fit_share,
    measure_sessions,
    read_text_sessions,
    score_past_texts,
)
from rescorer_training.evaluation.perplexity import (
    ModelSet,
    TextPerplexity,
    TokenScores,
    fit_mixture,
    measure,
)
from rescorer_training.evaluation.sample import Sampler, SamplingOptions
from rescorer_training.progress import option


@dataclass(frozen=True, slots=True)
class AnsweringModels(MixtureOptions):
    """Models that answer questions: language models, and word vectors."""

    vectors: list[str] | None = option(
        None,
        "Folder of a run of vectors train, or a file of word vectors, whose cosines are taken; "
        "repeat for more. The name is that of the row.",
        metavar="[NAME=]PATH",
    )

    @property
    def has_language_models(self) -> bool:
        """Whether to load language models. Also true if no models are given at all: loading reports that."""
        return bool(self.bundle or self.ngram or self.neural or not self.vectors)


@expand_options
def complete_command(
    questions: Annotated[
        Path,
        typer.Argument(
            help="CSV file with the columns question, a, b, c, d, e and answer; _____ marks the blank."
        ),
    ],
    *,
    models: AnsweringModels,
    learn: Annotated[
        bool,
        typer.Option(
            "--combine", help="Learn to combine all models, by nested cross-validation on the questions."
        ),
    ] = False,
    normaliser: NormaliserOption = None,
    seed: SeedOption = 1,
    device: DeviceOption = "cpu",
    as_json: JsonOption = False,
) -> None:
    """Answer sentence-completion questions by language models, word vectors, and their combination.

    Each of five words is put into the blank; the answer is the word that makes the sentence, including </s>,
    most likely, or that goes best with the words around it. Random guessing would be 20 % correct. Intervals
    are of 95 %, and p-values of McNemar's exact test, two-sided, against the combination. Its weights are
    learned in ten folds, always without the questions that they answer.

    Example: rescorer-train complete msr-dev.csv --bundle models/starter/1
    """
    asked = completion.read_questions(questions)
    scores: dict[str, completion.CandidateScores] = {}
    shares: Mapping[str, float] = {}
    chosen = choose_normaliser(normaliser)
    if models.has_language_models:
        opened = models.open(normaliser, device)
        scores, shares, chosen = completion.score_sentences(opened, asked), opened.shares, opened.normaliser
    scores |= completion.score_vectors(models.vectors or [], asked, chosen, taken=scores)
    combination = completion.combine(scores, asked, seed) if learn else None
    answers = completion.answer(scores, asked, combination)
    if as_json:
        facts = {name: _describe(row) for name, row in answers.items()}
        weights = dict(zip(combination.names, combination.mean_weights, strict=True)) if combination else None
        typer.echo(json.dumps({"shares": dict(shares), "models": facts, "weights": weights}))
    else:
        print_out(make_answer_table(answers))


def _describe(row: completion.Answers) -> dict[str, Any]:
    facts = asdict(row) | {"accuracy": round(row.accuracy, 2), "interval": row.interval}
    return facts if row.test else {name: value for name, value in facts.items() if name != "test"}


def make_answer_table(answers: Mapping[str, completion.Answers]) -> FoldingTable:
    """Make a table with one row per model."""
    compared = any(row.test for row in answers.values())
    paired = ("only it is right", "only the combination is right", "p") if compared else ()
    headings = ("model", "correct", "of", "accuracy", "interval", "candidates with unknown words", *paired)
    rows = [
        (
            name, f"{row.n_correct:,}", f"{row.n_questions:,}", f"{row.accuracy:.1f} %",
            "{:.1f} … {:.1f}".format(*row.interval), f"{row.n_unknown:,}",
            *(format_test(row.test) if compared else ()),
        )
        for name, row in answers.items()
    ]  # fmt: skip
    return make_table(headings, rows)


@dataclass(frozen=True, slots=True)
class FittingOptions:
    """The held-out text, and models with a memory that are fitted on it in addition to λ.

    Raises:
        ConfigError: such a model is asked for, but there is no held-out text.
    """

    validation: Path | None = option(
        None, "Held-out text on which to fit the interpolation weights λ; overrides --share."
    )
    cache_words: int = option(
        0,
        "Also report a neural cache of so many past words, fitted on --validation; 500 to 4,000 are usual.",
        min=0,
    )
    dynamic: bool = option(
        False,
        "Also report dynamic evaluation, which goes on training on the past of the text, fitted on "
        "--validation.",
        "--dynamic",
    )
    session: bool = option(
        False,
        "Also report the mixture with a cache of the lines before each line, as weights.cache adds "
        "it in rescoring; its λ is fitted on --validation.",
        "--session",
    )

    def __post_init__(self) -> None:
        if (self.cache_words or self.dynamic or self.session) and not self.validation:
            raise ConfigError(
                "--cache-words, --dynamic and --session need --validation, on which they are fitted"
            )


@expand_options
def perplexity_command(
    texts: Annotated[
        list[Path], typer.Argument(help="Texts to measure, one sentence per line; gzip or plain.")
    ],
    *,
    mixture: MixtureOptions,
    fitting: FittingOptions,
    normaliser: NormaliserOption = None,
    device: DeviceOption = "cpu",
    as_json: JsonOption = False,
) -> None:
    """Measure the perplexity of texts under models and their mixture, including </s>.

    The columns differ in how they treat words that a model does not know. shared: as in a bundle, a word that
    only another model knows gets a share of <unk>, so that all numbers of the table are comparable. counted:
    every unknown word counts as <unk>, as in KenLM's query and most papers. excluded: only tokens that all
    models know.

    Networks in pieces of words are measured per word, too, and know all words.

    Forward and backward models are not mixed; the row "both directions" is the geometric mean of their
    perplexities.

    A network that was trained to carry its state across sentence boundaries reads each text in order. With
    --cache-words or --dynamic, it also learns from what it has read: these figures stand apart, and are not
    to be compared with those of models that do not. So do those of --session, which reports perplexities
    without a cache, with one, and as a control with one of other lines, half the text away.

    Example: rescorer-train perplexity test.txt --ngram kn5.arpa.gz --neural runs/lstm --validation valid.txt
    """
    validation = fitting.validation
    models = mixture.open(normaliser, device, with_units=True)
    scores = {path: score_file(models, path) for path in dict.fromkeys((*texts, *filter(None, [validation])))}
    shares = models.shares
    if validation and shares:
        shares = fit_mixture(scores[validation].log_probs)
    measured = {str(path): measure(scores[path], shares) for path in texts}
    past = {}
    if validation and (fitting.cache_words or fitting.dynamic):
        past = measure_past_text(models, scores, validation, fitting.cache_words, dynamic=fitting.dynamic)
    sessions = None
    if validation and fitting.session:
        sessions = measure_text_sessions(models, scores, validation, shares, texts)
    show(measured, past, sessions, shares, as_json=as_json)


def show(
    measured: Mapping[str, TextPerplexity],
    past: Mapping[str, dict[str, Any]],
    sessions: SessionReport | None,
    shares: Mapping[str, float],
    *,
    as_json: bool,
) -> None:
    """Print tables, or one line of JSON."""
    if as_json:
        facts = {path: asdict(figures) for path, figures in measured.items()}
        session_facts = asdict(sessions) if sessions else {}
        shown = {"shares": dict(shares), "texts": facts, "past_text": past, "session": session_facts}
        typer.echo(json.dumps(_finite(shown)))
        return
    for path, figures in measured.items():
        print_out(make_perplexity_table(path, figures), *describe_impossible(figures))
    if past:
        print_out(make_past_table(past, measured))
    if sessions:
        print_out(make_session_table(sessions))
    if shares:
        print_out("λ: " + ", ".join(f"{name} {value:.3f}" for name, value in shares.items()))


def measure_past_text(
    models: ModelSet, scores: Mapping[Path, TokenScores], validation: Path, cache_words: int, *, dynamic: bool
) -> dict[str, dict[str, Any]]:
    """Measure the texts under each network that learns from the past of a text. Texts are named by path."""
    texts = {str(path): read_words(models, path) for path in scores}
    others = {str(path): of_text for path, of_text in scores.items()}
    found = score_past_texts(models.models, texts, str(validation), cache_words=cache_words, dynamic=dynamic)
    return {past.name: past.figures(others, str(validation)) for past in found}


def measure_text_sessions(
    models: ModelSet,
    scores: Mapping[Path, TokenScores],
    validation: Path,
    shares: Mapping[str, float],
    texts: Sequence[Path],
) -> SessionReport:
    """Measure each text with a cache of the lines before each line, added to the mixture or the only model.

    Args:
        shares: λ of the mixture.
    """
    columns = scores[validation].log_probs
    for name, model in models.models.items():
        if name in (shares or columns) and isinstance(model, OpenVocabularyModel) and model.reads_previous:
            raise ConfigError(
                f"--session measures a cache of words, but the model {quote(name)} reads the lines before a "
                "line itself; give the other models by --ngram and --neural, or measure on lists what "
                "conversations gain: `rescorer rescore --session`, then `rescorer evaluate`"
            )
    if scores[validation].backward or (len(columns) > 1 and not shares):
        raise ConfigError("--session needs a single forward model, or a mixture of forward models")
    chosen = shares or dict.fromkeys(columns, 1.0)
    log_probs = {path: scores[path].mix(chosen) for path in scores}
    words = {path: read_words(models, path) for path in scores}
    share = fit_share(read_text_sessions(words[validation]), log_probs[validation])
    measured = {str(path): measure_sessions(words[path], log_probs[path], share) for path in texts}
    return SessionReport(share, measured)


def make_session_table(report: SessionReport) -> FoldingTable:
    """Make a table with one row per text."""
    title = f"perplexity with a cache of the lines before each line, weights.cache = {report.share:g}"
    rows = [(path, *map(format_size, astuple(measured))) for path, measured in report.texts.items()]
    return make_table(("text", "without", "with", "other lines"), rows, title)


def describe_impossible(measured: TextPerplexity) -> Iterator[str]:
    """Yield a line for each model with impossible tokens: their number, and perplexities with and without."""
    for name, figures in measured.models.items():
        if not figures.n_impossible:
            continue
        if figures.n_impossible <= figures.n_unknown:
            what = pluralise(figures.n_impossible, "unknown word has", "unknown words have")
            what += " no probability, as it has none for <unk>"
        else:
            what = f"{pluralise(figures.n_impossible, 'token has', 'tokens have')} no probability"
        with_them = format_size(figures.shared if figures.counted is None else figures.counted)
        yield f"{name}: {what}: perplexity {with_them} with them, {_format_known(figures.possible)} without"


def _finite(values: Any) -> Any:
    """Replace numbers that are not finite by None, since JSON cannot hold them."""
    if isinstance(values, dict):
        return {key: _finite(value) for key, value in values.items()}
    return None if isinstance(values, float) and not math.isfinite(values) else values


def make_past_table(past: Mapping[str, dict[str, Any]], paths: Iterable[str]) -> FoldingTable:
    """Make a table with one row per text and network."""
    title = "networks that learn from the past of the text, alone and mixed with the other models"
    rows = [
        (name, path, format_size(facts["perplexity"][path]), _format_known(facts["mixture"].get(path)))
        for name, facts in past.items()
        for path in paths
    ]
    return make_table(("network", "text", "perplexity", "mixture"), rows, title)


def make_perplexity_table(path: str, measured: TextPerplexity) -> FoldingTable:
    """Make a table with one row per model and one column per treatment of unknown words."""
    title = f"{path}: {measured.n_sentences:,} sentences, {measured.n_tokens:,} tokens"
    title += f", {measured.n_excluded:,} excluded" if measured.n_excluded else ""
    rows = [
        (name, f"{row.n_unknown:,}", *map(_format_known, (row.shared, row.counted, row.excluded)))
        for name, row in measured.models.items()
    ]
    return make_table(("model", "unknown", "shared", "counted", "excluded"), rows, title)


def _format_known(perplexity: float | None) -> str:
    return "–" if perplexity is None else format_size(perplexity)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleOptions:
    """Number of sentences to sample, and the way to do it."""

    number: int = option(5, "Number of sentences.", "-n", "--number", min=1)
    prompt: str = option("", "Words at the beginning of every sentence.")
    sampling: SamplingOptions
    seed: SeedOption = 1


@expand_options
def sample_command(
    *,
    mixture: MixtureOptions,
    sentences: SampleOptions,
    normaliser: NormaliserOption = None,
    device: DeviceOption = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per sentence.")] = False,
) -> None:
    """Sample sentences word by word from an n-gram model, a network or a mixture.

    Example: rescorer-train sample --bundle models/starter/1 --prompt "the ship" --top-p 0.9 -n 3
    """
    models = mixture.open(normaliser, device)
    sampler = Sampler(models.models, models.shares, sentences.sampling)
    prompt_words = models.normaliser.normalise(sentences.prompt)
    random = np.random.default_rng(sentences.seed)
    for _ in range(sentences.number):
        text = " ".join([*prompt_words, *sampler.sample_sentence(random, prompt_words)])
        typer.echo(json.dumps({"text": text}, ensure_ascii=False) if as_json else text)
