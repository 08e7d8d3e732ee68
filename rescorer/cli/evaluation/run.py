"""Read the files of a command that compares systems, score them, and collect what can be evaluated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import typer

from rescorer.cli.evaluation.evaluation import OWN_LISTS, Evaluation
from rescorer.cli.options.candidates import CandidateOptions
from rescorer.cli.options.evaluation.inputs import EvaluationOptions
from rescorer.cli.options.evaluation.scoring import collect_lists, make_list_reader
from rescorer.cli.options.phrases import PhraseOptions
from rescorer.cli.options.selection import warn_if_tuned_otherwise
from rescorer.cli.options.weights import (
    WeightOptions,
    check_streams,
    parse_first_pass,
    warn_if_untuned,
    warn_of_unread_lists,
)
from rescorer.cli.output import SEE_JSON
from rescorer.cli.render.evaluation.false_alarms import describe_over_boosting
from rescorer.errors import ConfigError, FormatError, did_you_mean, pluralise
from rescorer.evaluation.comparison.baselines import drop_models
from rescorer.evaluation.comparison.false_alarms import (
    DEFAULT_MAX_SHARE,
    find_false_alarms,
    has_phrases,
)
from rescorer.evaluation.comparison.scored_lists import (
    ScoredList,
    count_lists,
    score_lists,
    score_references,
)
from rescorer.evaluation.comparison.systems import (
    compare_file,
    compare_rules,
    compare_systems,
    name_possible_rows,
    weights_by_system,
)
from rescorer.evaluation.error_analysis.breakdown import find_unknown_words
from rescorer.evaluation.error_rate.oracle import Selection
from rescorer.evaluation.inspection.equal_texts import describe_equated, find_equated
from rescorer.evaluation.perplexity import sum_scores
from rescorer.evaluation.tuning.fingerprint import count_tuning_lists
from rescorer.extensions.rerankers import used_rerankers
from rescorer.pipeline import Rescorer
from rescorer.reranking.reranker import replace_by_base
from rescorer.score_combination import phrase_weight
from rescorer.text import Normaliser
from rescorer.types import NBestList, Weights


def check_bundle_options(options: EvaluationOptions) -> None:
    """Raise ConfigError if an option would be without effect, with or without a bundle."""
    if options.bundle is not None:
        return
    if options.phrases != PhraseOptions():
        raise ConfigError("--phrases and --phrase-list change the scores of a --bundle: give one")
    if options.candidates != CandidateOptions():
        raise ConfigError("--generate makes hypotheses that a --bundle scores: give one")
    if options.tune:
        raise ConfigError("--tune compares language models: give --bundle")
    if options.weights.weight or options.weights.weights != WeightOptions().weights:
        raise ConfigError(
            "--weights and -w choose the weights of a --bundle: give one, or name the weights that the "
            "recogniser ranked by with --first-pass"
        )


def check_system(
    system: str | None,
    files: Sequence[str],
    rescorer: Rescorer | None,
    options: EvaluationOptions,
) -> None:
    """Raise ConfigError, before any list is read, if no row can have the name that ``--system`` gives.

    Args:
        files: names of the files in the names of rows.
    """
    if system is None:
        return
    weights = options.weights.resolve(rescorer.bundle.weights) if rescorer else None
    systems = weights_by_system(rescorer, weights, options.tune) if rescorer and weights else {}
    rows = [*name_possible_rows(systems, options.tune, options.candidates.generate), *files]
    names = [system.removeprefix(f"{file}: ").removesuffix(OWN_LISTS) for file in files]
    if not any(name in rows for name in names):
        raise ConfigError(
            f"--system {system!r}: the rows can be {', '.join(map(repr, rows))}{did_you_mean(names[0], rows)}"
        )


def evaluate_files(files: Sequence[str], options: EvaluationOptions, rescorer: Rescorer | None) -> Run:
    """Read and score files under the same options; lists that cannot be evaluated are reported on stderr.

    Raises:
        ConfigError: the options contradict each other or the lists.
        FormatError: no list can be evaluated.
    """
    first_pass, selection = parse_first_pass(options.first_pass), options.selection.selection()
    if selection.merge and rescorer is None and first_pass is None:
        raise ConfigError("--merge adds up probabilities: give the scores with --first-pass, or a --bundle")
    read_lists = make_list_reader(
        options.reference, options.lists, alternations=options.counting.settings().alternations
    )
    normaliser = options.text.make_normaliser(rescorer.bundle if rescorer else None)
    if rescorer is not None:
        rescorer.ranker.text_normaliser = normaliser
        options.phrases.apply(rescorer.ranker)
        options.candidates.apply(rescorer.ranker)
    generate = options.candidates.generate
    run = Run(Evaluation(options.counting.settings(), normaliser), selection, first_pass, generate)
    files, printed = list(dict.fromkeys(files)), set[str]()
    for file in files:
        lists = collect_lists(read_lists(file), run.evaluation.rejected)
        check_streams(lists, first_pass, options.lists, file)
        if rescorer is None:
            warn_of_unread_lists(lists, options.lists, file)
            run.add_file(file, lists, normaliser, is_only_file=len(files) == 1)
            continue
        weights = options.weights.resolve(rescorer.bundle.weights)
        printed.add(check_streams(lists, weights, options.lists, file, printed))
        warn_if_tuned_otherwise(weights, selection)
        if not any(run.warnings.values()) and (line := warn_if_untuned(lists, weights)):
            run.warnings[file] = line
        if options.tune:
            options.lists.check_groups(lists)
        run.add_scored_file(file, lists, rescorer, weights, with_tuning=options.tune)
    run.evaluation.rejected.report(SEE_JSON)
    if not run.evaluation.files:
        raise FormatError("no list could be evaluated", file=", ".join(files))
    return run


@dataclass(frozen=True)
class Run:
    """Adds files to an evaluation under the same options."""

    evaluation: Evaluation
    selection: Selection
    first_pass: Weights | None
    generate: bool = False
    """Whether hypotheses are generated from phrases."""
    warnings: dict[str, str] = field(default_factory=dict)
    """What was printed on stderr about the weights, by file."""

    def add_file(
        self, file: str, lists: Sequence[NBestList], normaliser: Normaliser, *, is_only_file: bool
    ) -> None:
        """Add the lists of a file as they are, apart from hypotheses to merge or drop."""
        counting = self.evaluation.counting
        normalise = normaliser.normalise
        scored, errors = count_lists(normalise, lists, self.first_pass, counting, self.selection)
        for error in errors:
            self.evaluation.rejected.add(error)
        compare = compare_rules if is_only_file else compare_file
        self.evaluation.add(file, scored, partial(compare, name=file), normalise)

    def add_scored_file(
        self,
        file: str,
        lists: Sequence[NBestList],
        rescorer: Rescorer,
        weights: Weights,
        *,
        with_tuning: bool,
    ) -> None:
        """Add the lists of a file with the scores of all models."""
        evaluation = self.evaluation
        scored, errors = score_lists(
            rescorer,
            lists,
            weights,
            self.first_pass,
            evaluation.counting,
            self.selection,
            generate=self.generate,
        )
        for error in errors:
            evaluation.rejected.add(error)
        if not scored:
            return
        _warn_about_false_alarms(file, scored, weights, rescorer)
        _warn_about_equated_texts(file, lists, rescorer)
        rerankers = used_rerankers(rescorer.bundle, weights)
        if n_seen := count_tuning_lists(weights, lists, rerankers):
            overlap = f"{n_seen} of these {pluralise(len(lists), 'list')}"
            message = f"weights {weights.name!r} were tuned on {overlap}: errors are optimistic"
            typer.echo(f"{file}: {message}", err=True)
            self.warnings[file] = message
        references = score_references(rescorer, scored, weights)
        evaluation.perplexity[file] = sum_scores(references).to_dict()
        read = {
            word for text in references for word, flag in zip(text.words, text.unknown, strict=True) if flag
        }
        counted = rescorer.ranker.text_normaliser.normalise
        texts = [" ".join(item.readings[0]) for item in scored]
        unknown = find_unknown_words(texts, read, rescorer.bundle.normaliser.normalise, counted)
        compare = partial(
            compare_systems,
            systems=weights_by_system(rescorer, weights, with_tuning),
            with_tuning=with_tuning,
            word_only=drop_models(replace_by_base(weights, rerankers), self.first_pass),
            rescorer=rescorer,
        )
        evaluation.add(file, scored, compare, counted, unknown)


def _warn_about_equated_texts(file: str, lists: Sequence[NBestList], rescorer: Rescorer) -> None:
    """Print a line to stderr if the bundle's normaliser hides differences from its models."""
    texts = ([hypothesis.text for hypothesis in nbest.hypotheses] for nbest in lists)
    found = find_equated(texts, rescorer.bundle.normaliser, rescorer.ranker.text_normaliser)
    if found.beyond:
        typer.echo(f"{file}: warning: {describe_equated(found)}", err=True)


def _warn_about_false_alarms(
    file: str, scored: Sequence[ScoredList], weights: Weights, rescorer: Rescorer
) -> None:
    """Print a line to stderr if phrases that were not said make too many lists worse."""
    if not has_phrases(rescorer, scored):
        return
    weights = rescorer.ranker.effective_weights(weights)
    n_worse = find_false_alarms(rescorer, scored, weights).count(scored, weights)
    if n_worse > DEFAULT_MAX_SHARE * len(scored):
        over_boosts = describe_over_boosting(n_worse, len(scored), phrase_weight(weights))
        typer.echo(f"{file}: warning: {over_boosts}; `rescorer tune` finds one that does not", err=True)
