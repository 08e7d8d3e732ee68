"""Options of the commands that evaluate lists: inputs, references, counting, analyses and the score cache.

Options come in. Functions that read lists with their references, rules for counting errors, and loaded models
go out.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal

import typer

from rescorer.errors import ConfigError, FormatError, InputError, InvalidList
from rescorer.evaluation.error_rate import CountingSettings, Method, has_choices
from rescorer.evaluation.false_alarms import (
    DEFAULT_MAX_SHARE,
    PhraseBound,
    draw_distractors,
    find_false_alarms,
    has_phrases,
)
from rescorer.evaluation.folds import ALL
from rescorer.evaluation.list_errors import align_recordings
from rescorer.evaluation.scored_lists import (
    MeasuredList,
    describe_too_long,
    find_cache_folder,
    load_cached_rescorer,
    score_lists,
)
from rescorer.formats.inputs import open_references
from rescorer.formats.nist import Recording, is_stm, read_recordings, read_segments
from rescorer.formats.nist import reject_choices as reject_recording
from rescorer.formats.pieces import MAX_SAMPLE_LISTS, find_markup, join_text, tally_markup
from rescorer.models.bundle import BundleSource
from rescorer.phrases import MAX_PHRASES
from rescorer.pipeline import Rescorer
from rescorer.scoring.ranker import ListRanker
from rescorer.terminal.language_models import ImportOptions
from rescorer.terminal.list_options import (
    Input,
    ListInputOptions,
    Lists,
    rank_by_own_score,
    warn_of_pieces,
)
from rescorer.terminal.options import (
    N_CHECKED_LISTS,
    CandidateOptions,
    DeviceOption,
    FirstPassOption,
    PhraseOptions,
    SelectionOptions,
    TextOptions,
    WeightOptions,
    change_weight,
    check_streams,
    option,
    parse_first_pass,
)
from rescorer.terminal.program import Rejections, print_note, warn
from rescorer.types import ErrorUnit, NBestList, Weights
from rescorer.weights import PHRASES


@dataclass(frozen=True, slots=True)
class AnalysisOptions:
    """Further tables to print: errors of one system, a row per group, rows for all lists of each file."""

    errors: bool = option(
        False,
        "Add the commonest confusions, the words that rescoring fixed and broke, and error rates by "
        "word frequency, unknown words, length, and rank of the chosen hypothesis.",
    )
    alignments: bool = option(
        False, "Print the lists with errors: reference, first pass and rescored text, word under word."
    )
    system: str | None = option(
        None,
        "Row that --errors and --alignments are about; default: the last one whose models rank, "
        "with --tune the one with held-out weights.",
        metavar="ROW",
    )
    by_group: bool = option(False, "Add a table with one row per speaker or other group.")
    own_lists: bool = option(False, "With several files: add rows for all lists of each.")
    sweep: str | None = option(
        None,
        "Add a table like those of Kaldi's score.sh: error rates by the weight of the language models and "
        "the word insertion penalty (default: 0, 0.5 and 1). Without --bundle, the weight of the stream "
        "graph or lm varies.",
        metavar="FROM:TO[:STEP][xFROM:TO:STEP]",
    )
    columns: str = option(
        "",
        "Further columns of the table: gain-interval, p-uncorrected, accuracy, first-pass, oracle, worst, "
        "recovered, ser, errors, sub, del, ins, lists, words, or all.",
        metavar="NAME,…",
    )
    signature: str | None = option(
        None,
        "Fail if figures with this signature, which this command printed, cannot be compared with these: "
        "errors were counted differently, or on other references.",
        metavar="SIGNATURE",
    )


DEFAULT_PERCENT = 100 * DEFAULT_MAX_SHARE


@dataclass(frozen=True, slots=True)
class PhraseBoundOptions:
    """The permitted harm by phrases that were not said, which limits the weight that phrases can get."""

    max_false_alarms: float = option(
        DEFAULT_PERCENT,
        "Share of the lists that phrases which were not said may make worse.",
        min=0.0,
        max=100.0,
        metavar="PERCENT",
    )
    distractors: int = option(
        0,
        "Also give all lists N phrases of 1 to 3 words that occur in hypotheses but in no "
        "reference, drawn with seed 1, and bound the weight of phrases by them too.",
        min=0,
        max=MAX_PHRASES // 2,
        metavar="N",
    )

    def make_bound(
        self, rescorer: Rescorer, scored: Sequence[MeasuredList], weights: Weights, names: Collection[str]
    ) -> PhraseBound | None:
        """Make the upper bound of the phrase weight. Return None if no lists have phrases, or their weight is
        not tuned.

        Args:
            weights: the complete weights with which the lists were scored.
            names: names of the weights to tune.

        Raises:
            ConfigError: an option would be without effect.
        """
        is_free = PHRASES in names or ALL in names
        if is_free and (self.distractors or has_phrases(rescorer, scored)):
            normalise = rescorer.bundle.normaliser.normalise
            distractors = draw_distractors(scored, normalise, self.distractors) if self.distractors else []
            alarms = find_false_alarms(rescorer, scored, weights, distractors)
            return PhraseBound(alarms, self.max_false_alarms / 100)
        if self.max_false_alarms != DEFAULT_PERCENT or self.distractors:
            why = "no list has phrases" if is_free else "--free does not name it"
            raise ConfigError(
                f"--max-false-alarms and --distractors bound the weight of phrases, but {why}; give lists "
                "with phrases, --phrases or --phrase-list, and let it be free"
            )
        return None


@dataclass(frozen=True, slots=True)
class CacheOptions:
    """The place where language model scores are cached."""

    cache: Path | None = option(
        None,
        "Folder in which the scores of language models are cached by content; default: "
        "rescorer/scores in the user's cache folder.",
        metavar="DIR",
        envvar="RESCORER_CACHE",
        show_envvar=True,
    )
    no_cache: bool = option(False, "Neither read nor write cached scores.")

    def load_rescorer(self, bundle: BundleSource, device: str, dtype: str = "float32") -> Rescorer:
        """Load a bundle. If scores are cached, its models are loaded only when a score is missing."""
        if self.no_cache:
            return Rescorer.load(bundle, device, dtype=dtype)

        def note(line: str) -> None:
            print_note(f"note: {line}")

        return load_cached_rescorer(bundle, device, self.cache or find_cache_folder(), note, dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions(CacheOptions):
    """Further language models, the device that all run on, and the place where their scores are cached."""

    imports: ImportOptions
    device: DeviceOption = "cpu"

    def load(
        self, bundle: Path | None, files: Sequence[str], options: EvaluationOptions | RankedListOptions
    ) -> Rescorer:
        """Load a bundle with the models of ``--lm``; see ``ImportOptions.compose`` and ``load_rescorer``."""
        source = self.imports.compose(bundle, files, options, options.reference)
        return self.load_rescorer(source, self.device)


ReferenceOption = Annotated[
    str | None,
    typer.Option(
        help="Reference transcripts by id: lines `id words` (Kaldi's text), `words (id)`, id<TAB>text, a "
        "table with a header, or JSON; a NeMo manifest, by the names of audio files or, for lists without "
        "ids, by order; plain sentences, by order; or by time, if the name ends in .stm and FILE is a ctm."
    ),
]
ListReader = Callable[[str | Sequence[str]], Lists]
"""A function that reads the lists of one input, or of several inputs as if they were one."""
AlternationsOption = Annotated[
    Literal["on", "off"],
    typer.Option(
        help="on: { a / b / @ } is a choice, in references and hypotheses, and the reading that fits best "
        "counts; off: braces are ordinary characters, as in Buckwalter's transliteration."
    ),
]


@dataclass(frozen=True, slots=True)
class CountingOptions:
    """The way that errors are counted; see ``CountingSettings``."""

    counting: Method = option(
        "levenshtein",
        "levenshtein: fewest errors that explain a hypothesis; sclite: errors of the alignment by "
        "NIST's sclite, sometimes one more.",
    )
    unit: ErrorUnit | None = option(
        None,
        "What to count. word: words (WER); character: characters as people see them, without spaces "
        "(CER, sclite -c); mixed: characters of scripts without spaces such as Han, Kana and Thai, and "
        "words of all others (MER, sclite -c NOASCII). Default: word.",
    )
    characters: bool = option(False, "The same as --unit character.")
    optional_words: bool = option(False, "With sclite: allow (word) to be left out (its -D).")
    fragments: bool = option(False, "With sclite: match wo- with words that start with wo (its -F).")
    alternations: AlternationsOption = "on"

    def settings(self) -> CountingSettings:
        """Convert the options to the form that the evaluation takes; raise ConfigError if they clash."""
        if self.characters and self.unit not in (None, "character"):
            raise ConfigError(f"--characters and --unit {self.unit} contradict each other; omit one of them")
        unit = "character" if self.characters else self.unit or "word"
        marks = self.optional_words, self.fragments
        return CountingSettings(self.counting, unit, *marks, alternations=self.alternations == "on")


def make_list_reader(
    reference: str | None,
    options: ListInputOptions,
    *,
    warn_of_markup: bool = True,
    alternations: bool = False,
) -> ListReader:
    """Make a function that reads the lists of one input, or of several as one, and gives them references.

    The references of a manifest or plain text are found by id or line number, those of an stm by time, all
    others by id.

    Args:
        warn_of_markup: warn if markup of toolkits is left in texts.
        alternations: whether the alternatives of a ctm become ``{ a / b }`` in texts, which suits texts that
            are only counted. If not, recordings with alternatives are rejected.

    Raises:
        ConfigError: the references are an stm, and other options cannot be used with it.
    """
    if reference and is_stm(reference):
        if options.is_set:
            raise ConfigError(
                "an stm scores a ctm and names its speakers: omit --map, --stream, --groups, --format and "
                "--join-pieces"
            )
        segments = list(read_segments(reference))

        def read_channels(file: str) -> Iterator[Recording | FormatError]:
            for item in read_recordings(file):
                if isinstance(item, Recording) and item.has_choices and not alternations:
                    item = reject_recording(item, file)
                yield item

        def read_by_time(source: str | Sequence[str]) -> Lists:
            (file,) = [source] if isinstance(source, str) else source
            return align_recordings(read_channels(file), segments)

        return read_by_time
    references = open_references(reference) if reference else None
    if references is not None and options.join_pieces:
        kinds = find_markup(references.texts())
        references = references.edited(lambda text: join_text(text, kinds))
    elif references is not None and warn_of_markup:
        sample = islice(references.texts(), MAX_SAMPLE_LISTS)
        warn_of_pieces(str(reference), tally_markup(sample).found())

    def read(source: str | Sequence[str]) -> Lists:
        lists = options.read(source, reference=reference, warn_of_markup=warn_of_markup)
        if references is None:
            return lists
        name = source if isinstance(source, str) else ", ".join(source)
        numbered = bool(references.manifest) and options.has_numbers_as_ids(source, reference)
        return references.match(lists, name, partial(typer.echo, err=True), numbered=numbered)

    return read


def reject_choices(lists: Lists) -> Lists:
    """Yield the lists, with an error in place of each list whose hypotheses have alternatives.

    Without this check, commands that write words in sequence would write the words of all alternatives.
    """
    for item in lists:
        texts = (one.text for one in item.hypotheses) if isinstance(item, NBestList) else ()
        index = next((index for index, text in enumerate(texts) if has_choices(text)), None)
        if isinstance(item, NBestList) and index is not None:
            message = "has alternatives; expected one sequence of words, or --alternations off"
            yield InvalidList(message, list_id=item.id, hypothesis=index, field="text")
        else:
            yield item


def collect_lists(lists: Iterable[NBestList | InputError], rejected: Rejections) -> list[NBestList]:
    """Return the lists that could be read. Add the errors of all other lists to ``rejected``."""
    good: list[NBestList] = []
    for item in lists:
        if isinstance(item, NBestList):
            good.append(item)
        else:
            rejected.add(item)
    return good


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedTextOptions:
    """Options to read, normalise and count texts, for commands that score nothing with models."""

    text: TextOptions
    lists: ListInputOptions
    counting: CountingOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedListOptions:
    """Lists with references, and the weights that rank them."""

    reference: ReferenceOption = None
    text: TextOptions
    lists: ListInputOptions
    weights: WeightOptions

    def read(
        self, files: Sequence[str], rescorer: Rescorer, rejected: Rejections
    ) -> tuple[list[NBestList], Weights]:
        """Read lists and choose the weights that rank them. The bundle's weights fill in what is not given.

        Raises:
            ConfigError: ``--groups`` makes only one group, or the lists lack a stream of the weights.
        """
        self.text.apply(rescorer.ranker)
        weights = rescorer.ranker.effective_weights(self.weights.resolve(rescorer.bundle.weights))
        lists = collect_lists(make_list_reader(self.reference, self.lists)(files), rejected)
        self.lists.check_groups(lists)
        check_streams(lists, weights, self.lists, files[0])
        return lists, weights


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationOptions:
    """All options by which ``rescorer evaluate`` and ``rescorer report`` evaluate files."""

    reference: ReferenceOption = None
    bundle: Path | None = option(
        None,
        "Model bundle to re-rank with: adds rows for each of its models, for their mixture, for "
        "minimum Bayes risk (MBR), and for the word weight without models.",
        "--bundle",
        "-b",
    )
    tune: bool = option(
        False, "With --bundle: add rows with weights tuned on other folds, as by `rescorer tune`."
    )
    first_pass: FirstPassOption = None
    text: TextOptions
    lists: ListInputOptions
    weights: WeightOptions
    selection: SelectionOptions
    counting: CountingOptions
    phrases: PhraseOptions
    candidates: CandidateOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedListOptions:
    """Options to rank lists by one set of weights, and to count their errors."""

    reference: ReferenceOption = None
    first_pass: FirstPassOption = None
    text: TextOptions
    lists: ListInputOptions
    weights: WeightOptions
    counting: CountingOptions

    def make_reader(self, *, warn_of_markup: bool = True) -> ListReader:
        """Make a function that reads lists with references; see ``make_list_reader``."""
        return make_list_reader(self.reference, self.lists, warn_of_markup=warn_of_markup)

    def parse_first_pass(self) -> Weights | None:
        """Parse the recogniser's own weights; None if it ranked by the order of the lists."""
        return parse_first_pass(self.first_pass)

    def choose_start(self, lists: Sequence[NBestList], weights: Weights, source: str) -> Weights:
        """Return the weights from which tuning starts: those that were chosen.

        If none were, and the lists have other scores than the default weights need, tuning starts from the
        score by which the recogniser ranked, and says so.
        """
        if self.weights.are_given:
            return weights
        changes = rank_by_own_score(Input(lists[:N_CHECKED_LISTS], self.lists, source), weights)
        if changes:
            options = " ".join(f"-w {shlex.quote(change)}" for change in changes)
            print_note(f"note: tuning starts from the recogniser's own score: {options}")
        return reduce(change_weight, changes, weights)

    def check_streams(self, lists: Sequence[NBestList], weights: Weights, source: str) -> None:
        """Raise ConfigError if the lists lack a stream that the weights or an option names."""
        for some in (weights, self.parse_first_pass()):
            check_streams(lists, some, self.lists, source)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredListOptions(RankedListOptions):
    """Options to score lists by the models of a bundle, to rank them, and to count their errors."""

    selection: SelectionOptions
    phrases: PhraseOptions
    candidates: CandidateOptions

    def apply(self, ranker: ListRanker) -> None:
        """Set up a ranker by the options for text rules, phrases and generated hypotheses."""
        self.text.apply(ranker)
        self.phrases.apply(ranker)
        self.candidates.apply(ranker)

    def score(
        self, rescorer: Rescorer, lists: Sequence[NBestList], weights: Weights
    ) -> tuple[list[MeasuredList], list[InvalidList]]:
        """Score lists as the options say; see ``score_lists``."""
        settings = self.parse_first_pass(), self.counting.settings(), self.selection.selection()
        scored, errors = score_lists(rescorer, lists, weights, *settings, generate=self.candidates.generate)
        if too_long := describe_too_long(scored, rescorer.bundle):
            warn(too_long)
        return scored, errors
