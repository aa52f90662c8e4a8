"""A report on the terminal: the verdict first, and tables that fit."""

import io
import subprocess
import sys

import pytest
from rich.console import Console

from fedbudget.report import show as shown
from fedbudget.report.load import find_runs
from fedbudget.report.sheets import Sheet
from fedbudget.report.tables import comparison
from fedbudget.report.verdict import verdict
from fedbudget.report.write import write_report
from made_runs import a_record, a_run


def printed(table, width):
    console = Console(width=width, file=io.StringIO())
    console.print(table)
    return console.file.getvalue()


def long_names(folder):
    for seed in (0, 1):
        a_run(folder / f"s{seed}", "planner with a rather long name", seed)
    over = [a_record(i, level=1.5) for i in range(1, 13)]
    a_run(folder / "o", "other", rounds=12, records=over)
    return find_runs([folder])


@pytest.mark.parametrize("width", [160, 100, 80, 60])
def test_names_and_numbers_are_never_cut(width, tmp_path):
    sheet = comparison(long_names(tmp_path))
    text = printed(sheet.terminal(width), width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    head = next(line.split() for line in text.splitlines() if line.startswith(" run"))
    words = set(text.split())
    for row in sheet.rows:
        for column, cell in zip(sheet.columns, row, strict=True):
            if column in head:
                assert set(cell.split()) <= words
    assert {"run", "loss", "energy", "uplink", "memory", "heat"} <= set(head)
    left_out = [column for column in sheet.columns if column not in head]
    assert ("A wider terminal or --out shows more" in " ".join(text.split())) == bool(left_out)
    assert (left_out == []) == (width == 160)
    if width >= 100:  # below, it breaks between words
        assert "planner with a rather long name" in text


def test_tables_of_other_kinds_break_at_words():
    sheet = Sheet(("run", "a heading of words", "b"), [["some name", "12345 ± 67890", "1/2, 3/4"]])
    words = set(printed(sheet.terminal(24), 24).split())
    assert {"some", "name", "12345", "67890", "heading", "1/2,", "3/4"} <= words


def test_the_verdict_comes_first_on_the_terminal_and_in_markdown(tmp_path, capsys):
    runs = long_names(tmp_path)
    sentences = verdict(runs)
    shown.show([tmp_path], None)
    lines = capsys.readouterr().out.splitlines()
    assert lines[: len(sentences)] == sentences  # whole lines, in a pipe
    write_report(runs, tmp_path / "r.md")
    assert (tmp_path / "r.md").read_text().startswith(f"- {sentences[0]}\n- {sentences[1]}\n")


def test_files_are_written_even_if_nobody_reads_the_tables(tmp_path):
    a_run(tmp_path / "a")
    command = [sys.executable, "-m", "fedbudget.cli", "report", "a", "--out", "a.html"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.close()  # as `head` does
    process.communicate()
    assert (tmp_path / "a.html").stat().st_size > 10_000
