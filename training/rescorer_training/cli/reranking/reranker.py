"""The command ``rescorer-train reranker``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rescorer.cli.options.dataclass_options import expand_options
from rescorer.cli.options.evaluation.inputs import RankedListOptions
from rescorer.cli.options.evaluation.score_cache import CacheOptions
from rescorer.cli.options.evaluation.scoring import collect_lists, make_list_reader
from rescorer.cli.options.lists import ListInputOptions
from rescorer.cli.options.models import BundleOption, DeviceOption
from rescorer.cli.output import SOME_REJECTED, Rejections, check_output_path
from rescorer.cli.render.tables import print_out
from rescorer.errors import ConfigError, FormatError
from rescorer.evaluation.comparison.scored_lists import score_lists
from rescorer.evaluation.error_rate.counting import CountingSettings
from rescorer.formats.io.text_io import write_text
from rescorer.pipeline import Rescorer
from rescorer.types import NBestList, Weights
from rescorer_training.cli.options import JsonOption, SeedOption
from rescorer_training.cli.reranking.render_reranker import make_page, make_tables

if TYPE_CHECKING:
    from rescorer_training.reranker.training import TrainingLists


@dataclass(frozen=True, slots=True)
class RerankerOptions:
    """The reranker to train: where it is written, and what it learns from."""

    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            metavar="NAME/VERSION",
            help="Folder of the bundle to write: a copy of --bundle with the reranker.",
        ),
    ]
    name: Annotated[str, typer.Option(help="Name of the reranker, and of the weights set that uses it.")] = (
        "reranker"
    )
    force: Annotated[
        bool, typer.Option("--force", help="Write the reranker even if its gain may be chance.")
    ] = False
    share_references: Annotated[
        bool,
        typer.Option(
            "--share-references",
            help="Divide the lists by group alone: also train on lists whose reference the held-out lists "
            "have too, as where everybody says the same few sentences.",
        ),
    ] = False
    prior_lists: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="Lists of another kind, with references: made ones, or without some stream; repeat for "
            "more. A first reranker is trained on them, and its weights are a further start to choose from. "
            "--map, --stream, --format, --join-pieces and --groups are not for them: apply these by "
            "`rescorer convert`.",
        ),
    ] = None
    seed: SeedOption = 0


@expand_options
def reranker_command(
    files: Annotated[list[str], typer.Argument(metavar="LISTS…", help="N-best lists with references.")],
    bundle: BundleOption,
    *,
    wanted: RerankerOptions,
    options: RankedListOptions,
    cache: CacheOptions,
    device: DeviceOption = "cpu",
    as_json: JsonOption = False,
) -> None:
    """Train a reranker: a small model that scores hypotheses by features of their whole list.

    Example: rescorer-train reranker lists.jsonl --bundle models/starter/1 -o models/starter/2

    The base weights (--weights, -w) are where training starts from. Features, model, objective and penalty
    are chosen by cross-validation inside each fold, and judged outside. The reranker is written only if it
    beats the best simple rule there by more than chance: first pass, empty hypotheses left out, equal ones
    merged, a tuned word weight, tuned weights, minimum Bayes risk.
    """
    # deferred, because importing SciPy takes a second
    from rescorer_training.reranker.encoding import encode_lists
    from rescorer_training.reranker.export import check_output, publish_with_reranker
    from rescorer_training.reranker.training import compare_rules, train_reranker

    counting = options.counting.settings()
    rescorer = cache.load_rescorer(bundle, device)
    check_output(wanted.output, rescorer.bundle, wanted.name)
    page_file = wanted.output.with_suffix(".md")
    check_page_path(page_file)
    base = rescorer.ranker.effective_weights(options.weights.resolve(rescorer.bundle.weights))
    first_pass = options.parse_first_pass()
    rejected = Rejections()
    lists = read_files(files, options.reference, options.lists, rejected)
    options.check_streams(lists, base, files[0])
    training_lists = score_files(files, lists, rescorer, base, first_pass, counting, rejected)
    prior = None
    if wanted.prior_lists:
        prior = read_prior_lists(wanted.prior_lists, rescorer, base, counting, rejected)
    rejected.report()
    training_lists.check()
    if prior:
        check_prior_lists(prior)
    share = wanted.share_references
    rules = compare_rules(training_lists, rescorer, first_pass, share_references=share)
    words = encode_lists(rescorer, [item.nbest for item in training_lists.scored])
    training = train_reranker(
        training_lists,
        rules,
        wanted.name,
        seed=wanted.seed,
        share_references=share,
        prior=prior,
        encoded=words,
    )
    report = training.report
    is_written = report.is_better or wanted.force
    page = make_page(report, f"Reranker {wanted.name!r}: {', '.join(Path(file).name for file in files)}")
    if is_written:
        publish_with_reranker(rescorer.bundle, training.reranker, page, wanted.output)
    write_text(page_file, page)
    if as_json:
        facts = {**report.to_dict(), "written": is_written, "rejected": len(rejected)}
        typer.echo(json.dumps(facts, indent=2, ensure_ascii=False))
    else:
        use = f"written to {wanted.output}: use it with --weights {wanted.name}"
        what = use if is_written else "not written (see --force)"
        outcome = f"reranker {what}; figures in {page_file}; {len(rejected)} lists rejected"
        print_out(*make_tables(report), outcome)
    if rejected:
        raise typer.Exit(SOME_REJECTED)


def check_page_path(page: Path) -> None:
    """Raise ConfigError, before any work is done, if the page of figures and what lies beside it cannot be
    written; makes their folder."""
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"-o: the folder {page.parent} cannot be made: {error.strerror}") from None
    check_output_path("-o", page)


def read_files(
    files: Sequence[str], reference: str | None, options: ListInputOptions, rejected: Rejections
) -> list[NBestList]:
    """Read the lists of all files; those that cannot be read are rejected."""
    read_lists = make_list_reader(reference, options)
    lists = [nbest for file in dict.fromkeys(files) for nbest in collect_lists(read_lists(file), rejected)]
    options.check_groups(lists)
    return lists


def read_prior_lists(
    files: Sequence[str],
    rescorer: Rescorer,
    base: Weights,
    counting: CountingSettings,
    rejected: Rejections,
) -> TrainingLists:
    """Read and score lists of another kind; base weights of streams that they lack do not count."""
    lists = read_files(files, None, ListInputOptions(), rejected)
    known = {name for nbest in lists for name in nbest.streams}
    streams = {name: weight for name, weight in base.streams.items() if name in known}
    return score_files(files, lists, rescorer, replace(base, streams=streams), None, counting, rejected)


def check_prior_lists(prior: TrainingLists) -> None:
    """Raise ConfigError if nothing can be learnt from the prior lists."""
    try:
        prior.check_scores()
    except ConfigError as error:
        raise ConfigError(f"--prior-lists: {error}") from None


def score_files(
    files: Sequence[str],
    lists: Sequence[NBestList],
    rescorer: Rescorer,
    base: Weights,
    first_pass: Weights | None,
    counting: CountingSettings,
    rejected: Rejections,
) -> TrainingLists:
    """Score the lists of files; those that cannot be scored are rejected.

    Raises:
        FormatError: no list is left.
    """
    from rescorer_training.reranker.training import TrainingLists  # deferred: imports SciPy

    scored, errors = score_lists(rescorer, lists, base, first_pass, counting)
    for error in errors:
        rejected.add(error)
    if not scored:
        rejected.report()
        raise FormatError("no list could be used for training", file=", ".join(files))
    return TrainingLists(scored, base, list(rescorer.models))
