"""Every table of the commands on a terminal of 80 columns: no number is cut, and no line is longer."""

from __future__ import annotations

import gzip
import json
import re
import runpy
from functools import partial

import pytest

from rescorer.bench.load import StageResult
from rescorer.cli.measure import HEADER, format_stage
from rescorer.terminal.tables import FoldingTable, print_out
from rescorer_training.cli import main as train
from rescorer_training.cli.networks import print_report
from rescorer_training.recipe.report import MeasuredModel, Report
from tests.conftest import REPOSITORY

WIDTH = 80
STARTER = REPOSITORY / "models" / "starter" / "1"
WEIGHTED = ("--bundle", STARTER, "--weights", "pocketsphinx")
TABLE_USERS = {
    "tune", "compare", "inspect", "evaluate", "convert", "measure",
    "evaluation", "classification", "tagging", "networks", "bundles", "imports", "ngrams", "vectors",
    "reranking",
}  # fmt: skip
"""Modules that make tables; rendered below, and in ``cli/test_shards``, ``training/adaptation``,
``training/classification`` and ``training/cli/test_vectors``."""


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """Two files of lists from the demo, with the first hypotheses, texts and questions."""
    folder = tmp_path_factory.mktemp("demo")
    lines = gzip.decompress((REPOSITORY / "demo" / "lists.jsonl.gz").read_bytes()).splitlines()
    lists = list(map(json.loads, lines))
    short = [json.dumps(item | {"hypotheses": item["hypotheses"][:12]}) + "\n" for item in lists]
    (folder / "lists.jsonl").write_text("".join(short[:24]))
    (folder / "other.jsonl").write_text("".join(short[12:30]))
    references = "".join(item["reference"] + "\n" for item in lists)
    (folder / "text.txt").write_text(references)
    (folder / "questions.csv").write_text(
        "id,question,a,b,c,d,e,answer\n1,the old man _____ slowly,walked,gate,silver,the,see,a\n"
    )
    return folder


@pytest.fixture
def narrow(run, monkeypatch):
    """Run a command on 80 columns, and check its output against the cells of its tables."""
    cells: list[str] = []
    add_row = FoldingTable.add_row

    def record(table, name, *numbers):
        cells.extend(number for number in numbers if number)
        add_row(table, name, *numbers)

    monkeypatch.setattr(FoldingTable, "add_row", record)
    monkeypatch.setenv("COLUMNS", str(WIDTH))

    def check(*arguments, command=None):
        cells.clear()
        code, out, err = run(*arguments, command=command)
        assert code in (0, 1), err
        assert not re.search(r"\d…|…\d", out), out
        lines = [line for line in out.splitlines() if not line.startswith("next: ")]  # commands to copy
        assert max(map(len, lines)) <= WIDTH, out
        words = f" {' '.join(out.split())} "
        assert [cell for cell in cells if f" {cell} " not in words] == [], out
        return len(cells)

    return check


def test_every_module_that_makes_tables_is_tested():
    folders = REPOSITORY / "rescorer" / "cli", REPOSITORY / "training" / "rescorer_training" / "cli"
    files = [file for folder in folders for file in folder.rglob("*.py") if file.stem != "tables"]
    users = [
        file
        for file in files
        if re.search("FoldingTable|make_table", file.read_text(encoding="utf-8")) and file.stem != "options"
    ]
    assert {file.stem for file in users} == TABLE_USERS
    assert [file for file in files if "rich.table" in file.read_text(encoding="utf-8")] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("evaluate", (*WEIGHTED, "--tune", "--groups", r"demo-0(\d)", "--by-group")),
        ("evaluate", ("{folder}/other.jsonl", "--columns", "all", "--sweep", "7:9")),
        ("evaluate", (*WEIGHTED, "--errors", "--alignments")),
        ("explain", WEIGHTED),
        ("explain", ("demo-003", *WEIGHTED, "--merge")),
        ("inspect", WEIGHTED),
        ("calibrate", (*WEIGHTED, "-o", "{folder}/calibrated.json")),
        ("compare", ("{folder}/other.jsonl", "--tests", "sign,wilcoxon")),
        ("tune", (*WEIGHTED, "--groups", r"demo-0(\d)", "-o", "{folder}/weights.json")),
    ],
)
def test_tables_of_lists_fit(narrow, demo, command, options):
    n_cells = narrow(command, demo / "lists.jsonl", *(str(option).format(folder=demo) for option in options))
    assert n_cells >= 10


@pytest.mark.slow
def test_error_rates_are_one_table(run, demo, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    other = f"a system with a name that is long={demo / 'other.jsonl'}"
    for arguments in ((*WEIGHTED, "--tune"), (other,)):
        _, out, _ = run("evaluate", demo / "lists.jsonl", *arguments)
        heads = [line for line in out.splitlines() if line.startswith("system")]
        assert [re.split(r"  +", head.strip()) for head in heads] == [
            ["system", "WER %", "interval", "gain", "p", "sub/del/ins"]
        ]


@pytest.mark.slow
def test_tables_of_combinations_fit(narrow, demo):
    for name in ("lists", "other"):  # their references as the texts of two systems
        lists = map(json.loads, (demo / f"{name}.jsonl").read_text().splitlines())
        lines = [f"{item['reference']} ({item['id']})\n" for item in lists]
        (demo / f"{name}.trn").write_text("".join(lines))
    files = demo / "lists.trn", demo / "other.trn"
    assert narrow("combine", *files, "--reference", demo / "lists.trn", "-o", demo / "combined.jsonl") >= 10


@pytest.mark.slow
def test_tables_of_texts_and_speeds_fit(narrow, demo):
    n_cells = narrow("score", demo / "text.txt", "--bundle", STARTER, "--words")
    assert n_cells > 3 * 1000
    shape = ("--network", "lstm", "--hidden", "8", "--classes", "10", "--repetitions", "1")
    n_cells = narrow("bench", "--synthetic", "4x4x5", *shape, "--peer-seconds", "0")
    assert n_cells > 40
    assert narrow("convert", "--formats") == 0


@pytest.mark.slow
def test_tables_of_training_fit(narrow, demo, monkeypatch):
    fit = partial(narrow, command=train)
    text, model = demo / "text.txt", demo / "model.arpa"
    as_starter = ("--normaliser", STARTER / "text.json")  # whose models it is compared with
    fit("ngram", text, "-o", model, "--order", "3", "--validation", text, *as_starter)
    fit("perplexity", text, "--bundle", STARTER, "--ngram", model, "--validation", text)
    fit("interpolate", text, "--bundle", STARTER, "--ngram", model)
    fit("complete", demo / "questions.csv", "--bundle", STARTER)
    write_toy = runpy.run_path(str(REPOSITORY / "examples" / "make_toy_llm.py"))["write_toy"]
    write_toy(demo / "toy", text)
    with pytest.raises(SystemExit, match="toy exists already: delete it, or give the name of a new folder"):
        write_toy(demo / "toy", text)
    with monkeypatch.context() as patch:
        patch.chdir(demo)  # the output names the folder, which must fit
        fit("import", "hf", "toy", "-o", "units", "--validation", "text.txt")
    fit("bundle", demo / "b" / "1", "--ngram", model, "--validation", text, "--test", text)
    sizes = ("--vocabulary-size", "100", "--size", "8", "--classes", "10", "--noise-samples", "8")
    n_cells = fit("bench", *sizes, "--seconds", "0.05", "--rounds", "1")
    assert n_cells > 20


@pytest.mark.slow
def test_tables_of_rerankers_fit(narrow, demo):
    training = ("--bundle", STARTER, "--weights", "pocketsphinx", "-o", demo / "reranked" / "1")
    assert narrow("reranker", demo / "lists.jsonl", *training, command=train) >= 30


def test_the_report_of_a_recipe_fits(narrow, tmp_path):
    facts = json.loads((REPOSITORY / "docs" / "ptb" / "report.json").read_text(encoding="utf-8"))
    models = [MeasuredModel(**model) for model in facts["models"]]
    report = Report(**facts | {"models": models})
    n_cells = narrow(command=lambda: print_report(report, tmp_path / "report.md"))
    assert n_cells == 8 * len(models)


def test_stages_of_a_load_test_fit():
    stage = StageResult("library, one thread", 9999999, {}, 99999.9, 99999.9, 99999.9, 99999.9)
    lines = (HEADER + "\n" + format_stage(stage)).splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert len({len(line) for line in lines}) == 1


def test_folds_what_does_not_fit(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "20")
    table = FoldingTable("model", "words/s", "share", title="speeds")
    table.add_row("a name that is long", "1,234,567", "12.5 %")
    print_out(table)
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "speeds"
    assert lines[1] == "model     words/s"
    assert "1,234,567" in lines[2] or any(line.endswith("1,234,567") for line in lines)
    assert any(line.endswith("12.5 %") for line in lines)


def test_pipes_are_wide_and_do_not_wrap_text(monkeypatch, capsys):
    monkeypatch.delenv("COLUMNS", raising=False)
    print_out("word " * 60)
    assert len(capsys.readouterr().out.splitlines()) == 1


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        ("−18,904,574,813,251,603,322,872.50", "−1.89e+22"),
        ("1" * 97 + ".25", "1.11e+96"),
        ("1,234,567,890", "1234567890"),
        ("999,999,999", "999,999,999"),
        ("+123456789012.5 ± 3.10", "+123456789012 ± 3.10"),
        ("20240101123456789", "20240101123456789"),
        ("u1,234,567,890,123", "u1,234,567,890,123"),
    ],
)
def test_numbers_of_any_size_fit_into_a_column(cell, shown, capsys):
    table = FoldingTable("name", "value")
    table.add_row("a", cell)
    print_out(table)
    assert capsys.readouterr().out.split("\n")[1].removeprefix("a").strip() == shown
