"""The command ``rescorer compare``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, get_args

import typer

from rescorer.cli.options.dataclass_options import expand_options
from rescorer.cli.options.evaluation.inputs import CountedTextOptions
from rescorer.cli.options.evaluation.scoring import (
    ReferenceOption,
    collect_lists,
    make_list_reader,
)
from rescorer.cli.options.lists import ListInputOptions, Lists
from rescorer.cli.options.weights import FirstPassOption, check_streams, parse_first_pass
from rescorer.cli.output import SEE_JSON, SOME_REJECTED, Rejections, shorten_names
from rescorer.cli.render.evaluation.pairs import export_pairs, print_comparison
from rescorer.cli.render.exports import ExportOption, check_export
from rescorer.cli.render.tables import print_out
from rescorer.errors import ConfigError, FormatError, InvalidList, did_you_mean
from rescorer.evaluation.error_rate.counting import CountingSettings
from rescorer.evaluation.error_rate.oracle import find_first_pass
from rescorer.evaluation.error_rate.shared_lists import ListKey, find_shared_lists, index_lists
from rescorer.evaluation.significance.pairwise import (
    PairwiseComparison,
    RankTestName,
    RecognisedText,
    compare_pairwise,
    recognise_text,
)
from rescorer.formats.rescored import is_rescored
from rescorer.text import Normaliser, remark_on_spacing
from rescorer.types import Weights

Unit = Literal["list", "group"]
RecognisedLists = Mapping[ListKey, tuple[RecognisedText, str]]
"""What a system recognised in each list, with the group of the list."""


@dataclass(frozen=True, slots=True)
class SignificanceOptions:
    """Which test tells differences from chance."""

    by: Annotated[
        Unit | None,
        typer.Option(
            help="What the bootstrap draws: single lists, or all lists of a speaker or other group; default: "
            "groups if they are known."
        ),
    ] = None
    tests: Annotated[
        str,
        typer.Option(
            metavar="NAME,…",
            help="Further tests: sign, wilcoxon; over groups if they are known, else over lists.",
        ),
    ] = ""


@expand_options
def compare(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="Systems: output of `rescorer rescore`, n-best lists whose first hypothesis counts, or "
            "transcripts (trn, ctm, Kaldi's text, id<TAB>text, plain sentences).",
        ),
    ],
    *,
    reference: ReferenceOption = None,
    first_pass: FirstPassOption = None,
    options: CountedTextOptions,
    significance: SignificanceOptions,
    export: ExportOption = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print JSON: lists `systems` and `pairs`; rates and gains in percent."),
    ] = False,
) -> None:
    """Tell differences between the error rates of systems from chance.

    Example: rescorer compare a.jsonl b.jsonl --groups '^(\\d+)-'

    Every system is compared with every later one, on the lists that all files have: the same id and
    reference. The gain is the first one's error rate minus the second one's, with a bootstrap interval of
    95 %. Two tests ask how often chance alone would give such a gain: a paired bootstrap and NIST's matched
    pairs (MAPSSWE; with --counting sclite, that of sc_stats). With more than two systems, p-values are also
    corrected for the number of pairs (Holm), and verdicts rest on the corrected ones.

    Every file is one row. For the first pass, give the lists themselves as a file; `rescorer evaluate` has
    the oracle, rules such as leaving out empty hypotheses, and the gain of each model.
    """
    names = list(dict.fromkeys(files))
    if len(names) < 2:
        raise ConfigError("expected two files or more, one per system, got one")
    check_export(export)
    by, test_names = significance.by, parse_tests(significance.tests)
    weights = parse_first_pass(first_pass)
    normaliser, counting = options.text.make_normaliser(), options.counting.settings()
    read_lists = make_list_reader(reference, options.lists, alternations=counting.alternations)
    rejected = Rejections()
    systems = [
        recognise_file(file, read_lists(file), options.lists, normaliser, counting, weights, rejected)
        for file in names
    ]
    rejected.report(SEE_JSON)
    shared = find_shared_lists(systems)
    short_names = shorten_names(names)
    comparison = compare_shared(dict(zip(short_names, systems, strict=True)), shared, by, test_names)
    texts = (key[1] for key in shared)
    remark = remark_on_spacing(texts) if counting.unit == "word" else ""
    others = {name: len(lists) - len(shared) for name, lists in zip(short_names, systems, strict=True)}
    if export:
        export_pairs(comparison, export)
    if as_json:
        report = comparison.to_dict(len(shared), others)
        report |= {"rejected": len(rejected), "rejected_lists": rejected.reasons}
        report |= {"counting": counting.method, "unit": counting.unit}
        report["normaliser"] = normaliser.settings.describe()
        report |= {"notes": [remark] if remark else []}
        typer.echo(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        print_comparison(comparison, counting.unit, len(shared), others)
        print_out(f"words are compared by {normaliser.settings.describe()}")
        if remark:
            print_out(remark)
    if rejected:
        raise typer.Exit(SOME_REJECTED)


def compare_shared(
    systems: Mapping[str, RecognisedLists],
    shared: Sequence[ListKey],
    by: Unit | None,
    tests: Sequence[RankTestName],
) -> PairwiseComparison:
    """Compare systems on their shared lists.

    Raises:
        ConfigError: no list is shared, or groups are to be drawn, but there are fewer than two.
    """
    if not shared:
        examples = ", ".join(f"{name} {next(iter(lists))[0]!r}" for name, lists in systems.items())
        raise ConfigError(
            "the files share no list with the same id and reference: nothing to compare; the first ids are: "
            + examples
        )
    groups = find_groups([[lists[key][1] for key in shared] for lists in systems.values()])
    if by == "group" and groups is None:
        raise ConfigError("--by group: the lists have fewer than two groups; name them with --groups")
    texts = {name: [lists[key][0] for key in shared] for name, lists in systems.items()}
    by_group = groups is not None and by != "list"
    return compare_pairwise(texts, groups, by_group=by_group, tests=tests)


def parse_tests(tests: str) -> tuple[RankTestName, ...]:
    """Parse ``--tests sign,wilcoxon``.

    Raises:
        ConfigError: a test is unknown.
    """
    known = get_args(RankTestName)
    names = tuple(dict.fromkeys(name.strip() for name in tests.split(",") if name.strip()))
    for name in names:
        if name not in known:
            raise ConfigError(
                f"--tests {name!r}: expected {' or '.join(known)}{did_you_mean(name, known)}; the bootstrap "
                "and matched pairs are always there"
            )
    return tuple(name for name in known if name in names)


def recognise_file(
    file: str,
    lists: Lists,
    options: ListInputOptions,
    normaliser: Normaliser,
    counting: CountingSettings,
    first_pass: Weights | None,
    rejected: Rejections,
) -> RecognisedLists:
    """Count the errors of the text that a system chose in each list of a file; with the group of the list.

    Raises:
        ConfigError: weights of the first pass name a score that the lists do not have.
        FormatError: no list can be evaluated; reports the rejected ones first.
    """
    normalise = normaliser.normalise
    good = collect_lists(lists, rejected)
    if first_pass and (unordered := [nbest for nbest in good if not is_rescored(nbest)]):
        check_streams(unordered, first_pass, options, file)
    recognised = []
    for nbest in good:
        try:
            is_ordered = first_pass is None or is_rescored(nbest)
            chosen = 0 if is_ordered else find_first_pass(nbest, normalise, first_pass)
            text = recognise_text(nbest, chosen, normalise, counting)
        except InvalidList as error:
            rejected.add(error)
            continue
        recognised.append((nbest.id, normalise(nbest.reference or ""), (text, nbest.group)))
    if not recognised:
        rejected.report(SEE_JSON)
        raise FormatError("no list could be evaluated", file=file)
    return index_lists(recognised)


def find_groups(groups_by_system: Sequence[Sequence[str]]) -> list[str] | None:
    """The group of each list, from the first system that names it; None if there are fewer than two groups.

    A list without a group is a group of its own.
    """
    named = [next(filter(None, groups), "") for groups in zip(*groups_by_system, strict=True)]
    if len(set(named)) < 2:
        return None
    return [group or f"\0{number}" for number, group in enumerate(named)]
