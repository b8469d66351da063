"""What stands on the page: numbers of the runs, nothing that a name in them could run, and bounded in size."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dist_mp.errors import UserError
from dist_mp.experiments.report.page import render, write_report
from dist_mp.experiments.report.run import labels, read_runs
from tests.experiments import made_runs as made

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{ 7 * 7 }}"


class Page(HTMLParser):
    """Tags, texts and tables of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.rows: list[list[str]] = []
        self.data: list[Any] = []
        self._inside: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        while self._inside and self._inside.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if "script" in self._inside and data.startswith("{"):
            self.data.append(json.loads(data))
        if not {"script", "style"} & set(self._inside):
            self.text += data
            if {"td", "th"} & set(self._inside):
                self.rows[-1][-1] += data.strip()

    def row(self, first: str) -> list[str]:
        return next(row for row in self.rows if row[0] == first)


def page(*folders: Path) -> Page:
    return Page(render(read_runs(folders), now=made.BEGIN))


def test_one_run(tmp_path: Path) -> None:
    found = page(made.complete(tmp_path / "my-run", 100, config={"schedule": {"base": 0.5}}))
    for heading in ("Training loss", "Held-out auc", "Learning rate", "Gradient norm", "Loss scale", "Throughput"):
        assert heading in found.text
    assert "1 of 100 steps were skipped" in found.text and "1 value is not a finite number" in found.text
    assert found.row("schedule.base")[1:] == ["0.5", "0.01"]
    assert found.row("processor") == ["processor", "A processor"]
    loss = next(d for d in found.data if d["curves"] and d["x"] == "step")["curves"][0]
    recorded = [line["loss"] for line in made.lines(tmp_path / "my-run") if line["kind"] == "step"]
    np.testing.assert_allclose(loss["mean"], recorded, rtol=1e-4)
    assert len([tag for tag, attrs in found.tags if tag == "h1"]) == 1


def test_runs_side_by_side(tmp_path: Path) -> None:
    one = made.complete(tmp_path / "one", 100, 1, {"precision": "fp32"})
    two = made.complete(tmp_path / "two", 60, 2, {"precision": "bf16", "exchange": {"codec": "one_bit"}})
    found = page(one, two)
    assert found.row("precision")[1:] == ["fp32", "bf16(differs)"]
    assert found.row("exchange.codec")[1:] == ["auto", "one_bit(differs)"]
    differing = [row[0] for row in found.rows[: found.rows.index(found.row("exchange.codec")) + 1]]
    assert "seed" not in differing
    curves = [d for d in found.data if len(d["curves"]) == 2]
    assert [c["label"] for c in curves[0]["curves"]] == ["one", "two"]
    assert sum(tag == "input" for tag, _ in found.tags) == 2


def test_best_values_are_marked_at_their_better_end(tmp_path: Path) -> None:
    folders = []
    for name, loss, auc in (("a", 0.2, 0.9), ("b", 0.1, 0.8)):
        end = made.summary(1, metrics={"loss": loss, "auc": auc, "test_loss": loss, "other": loss})
        folders.append(made.write(tmp_path / name, [made.start(), made.step(0), end]))
    found = page(*folders)
    assert "0.9(best)" in found.row("a") and "0.1(best)" in found.row("b")
    assert sum("best" in cell for cell in found.row("a")) == 1 and sum("best" in cell for cell in found.row("b")) == 2


def test_nothing_that_a_run_says_becomes_markup(tmp_path: Path) -> None:
    folder = made.complete(tmp_path / "<img src=x onerror=alert(3)>&amp;")
    facts = {EVIL: EVIL, "model": EVIL}
    extra = [
        made.start(hosts=[EVIL] * 2, command=[EVIL], run=facts, software=facts, variables=facts, folder=EVIL, step=99),
        made.step(99), made.ranks(100, [0.1, 0.2]), made.epoch(1, 100, **{EVIL: 0.5}), made.summary(100, weights=EVIL),
    ]  # fmt: skip
    made.write(folder, extra)
    (folder / "config.yaml").write_text(json.dumps({"name": EVIL, EVIL: {EVIL: [EVIL]}, "data": EVIL}))
    sections = {"roc": {"false_positive_rate": [0, 1], "true_positive_rate": [0, 1]}, "deadlines": [{"auc": EVIL}]}
    (folder / "evaluation.json").write_text(json.dumps({"splits": {EVIL: sections}}))
    for folders in ([folder], [folder, made.complete(tmp_path / "other")]):
        found = page(*folders)
        assert found.text.count("alert(1)") > 5 and "{{ 7 * 7 }}" in found.text and "49" not in found.row(EVIL)
        assert not [tag for tag, _ in found.tags if tag in ("img", "iframe", "object")]
        assert not [name for _, attrs in found.tags for name in attrs if name.startswith("on")]
        scripts = [attrs for tag, attrs in found.tags if tag == "script"]
        assert sum(attrs.get("type") is None for attrs in scripts) == 1


def test_a_path_that_closes_a_script(tmp_path: Path) -> None:
    """Labels of runs stand within scripts as well; with its parent's name a run may close one."""
    folders = [made.complete(tmp_path / parent / "script><script>alert(9)", 10) for parent in ("<", "b")]
    found = page(*folders)
    assert found.data[0]["curves"][0]["label"] == "</script><script>alert(9)"
    assert sum(tag == "script" and "type" not in attrs for tag, attrs in found.tags) == 1


def test_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    html = render(read_runs([made.complete(tmp_path / "run")]))
    found = Page(html)
    for _, attrs in found.tags:
        for name in ("src", "href", "action", "data"):
            assert attrs.get(name) is None or str(attrs[name]).startswith(("#", "data:"))
    assert "default-src 'none'" in html and "@import" not in html and "url(" not in html


def test_hardly_anything_to_show(tmp_path: Path) -> None:
    empty = page(made.write(tmp_path / "empty", []))
    assert "No step has been recorded yet" in empty.text and "has not begun" in empty.text
    single = page(made.write(tmp_path / "single", [made.start(), made.step(0)]))
    circles = [attrs for tag, attrs in single.tags if tag == "circle"]
    assert circles and all(math.isfinite(float(attrs["cx"] or "nan")) for attrs in circles)
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "metrics.jsonl").write_text('{"kind": "step", "step": 3, "loss": 1}\n{"kind": "step", "step": 4}\n')
    assert "All settings have their defaults" in page(bare).text


def test_no_number_at_all(tmp_path: Path) -> None:
    bad = dict.fromkeys(("loss", "learning_rate", "gradient_norm", "samples_per_second"), math.nan)
    records = [made.start(), *(made.step(n, **bad, applied=False) for n in range(30))]
    found = page(made.write(tmp_path / "run", records))
    assert "30 of 30 steps were skipped" in found.text
    assert "Training loss" not in found.text and "Loss scale" in found.text


def test_huge_and_tiny_values(tmp_path: Path) -> None:
    values = [1e308, -1e308, 1e-308, 0.0, 5e-324, 1e38]
    records = [made.start(), *(made.step(n, loss=v, gradient_norm=abs(v)) for n, v in enumerate(values * 60))]
    html = render(read_runs([made.write(tmp_path / "run", records)]))
    drawings = "".join(re.findall(r'(?: d| x1| y1| cx| cy)="[^"]*"', html))
    assert "nan" not in drawings and "inf" not in drawings


def test_a_long_run_is_a_small_page(tmp_path: Path) -> None:
    steps, at = 100_000, 54_321
    folder = made.write(tmp_path / "long", [made.start(expected_steps=steps)])
    line = made.step(0).model_dump()
    with (folder / "metrics.jsonl").open("a") as file:
        for number in range(steps):
            line |= {"step": number, "time": made.BEGIN + 0.1 * number, "loss": 99.0 if number == at else 1.0}
            line["applied"] = number % 3 > 0
            file.write(json.dumps(line) + "\n")
    html = render(read_runs([folder]))
    assert len(html) < 400_000
    found = Page(html)
    loss = found.data[0]["curves"][0]
    assert max(loss["high"]) == 99.0 and sum(high == 99.0 for high in loss["high"]) == 1
    assert "smallest to its largest value" in found.text and "33,334 of 100,000 steps" in found.text


def test_a_restart_is_told_and_its_gap_left_out(tmp_path: Path) -> None:
    first = [made.start(), *map(made.step, range(10))]
    late = made.BEGIN + 10_000
    second = [made.start(step=8, time=late), *(made.step(n, time=late + 2 + n) for n in range(8, 12))]
    folder = made.write(tmp_path / "run", [*first, *second])
    assert "2 steps were done again" in page(folder).text
    elapsed = read_runs([folder])[0].elapsed
    assert elapsed[7] == pytest.approx(1.7) and elapsed[8] == pytest.approx(1.7 + 10) and len(elapsed) == 12


def test_evaluation(tmp_path: Path) -> None:
    folder = made.complete(tmp_path / "run")
    shots = {
        "kind": "shots",
        "roc": {"false_positive_rate": [0, 0.25, 1], "true_positive_rate": [0, 0.75, 1], "thresholds": [9, 1, None]},
        "warning_curve": {"milliseconds": [0, 30, 500], "detected": [0.9, 0.8, 0.1]},
        "calibration": {"predicted": [0.1, 0.9], "observed": [0.2, 0.8], "count": [5, 5]},
        "deadlines": [{"milliseconds": 30, "auc": 0.91, "detected": 0.75, "false_positive_rate": 0.25, "early": 1,
                       "correct": 2, "late": 3, "missed": 4, "false_alarms": 5, "clean": 6}],
    }  # fmt: skip
    classes = {"kind": "classes", "samples": 10, "accuracy": 0.8, "f1": [0.7, 0.9], "auc": [0.5, None]}
    (folder / "evaluation.json").write_text(json.dumps({"splits": {"valid": shots, "test": classes}}))
    found = page(folder)
    for title in ("ROC, held-out data", "Warning time, held-out data", "Calibration, held-out data", "Classes"):
        assert title in found.text
    roc = next(d for d in found.data if d["x"] == "false positive rate")["curves"][0]
    assert roc["x"] == [0, 0.25, 1] and roc["mean"] == [0, 0.75, 1]
    assert ["run", "valid", "30", "0.91", "75.0", "25.0", "1", "2", "3", "4", "5", "6"] in found.rows
    assert ["run", "test", "10", "0.8", "0.8", "0.5", "n/a"] in found.rows
    for text in ("", "[]", "{", '{"splits": 3}', '{"splits": {"valid": {"roc": [1], "deadlines": [3, {}]}}}'):
        (folder / "evaluation.json").write_text(text)
        assert "ROC" not in page(folder).text


def test_ranks(tmp_path: Path) -> None:
    compute = [0.1 + 0.001 * rank for rank in range(100)]
    compute[42] = 0.5
    hosts = [f"host{rank}" for rank in range(100)]
    folder = made.write(tmp_path / "run", [made.start(ranks=100, hosts=hosts), made.step(0), made.ranks(1, compute)])
    found = page(folder)
    ranks = [row for row in found.rows if len(row) == 9 and row[0] == "run" and row[1].isdigit()]
    assert [row[1] for row in ranks][:3] == ["42", "99", "98"] and len(ranks) == 12
    assert ranks[0][2] == "host42" and ranks[0][4] == "500.0" and "(differs)" in ranks[0][8]
    assert "Slow at the end: rank 42" in found.text and "own work of its 100 ranks" in found.text


def test_labels_tell_runs_apart(tmp_path: Path) -> None:
    same = [tmp_path / "a" / "run", tmp_path / "b" / "run"]
    assert labels(same) == ["a/run", "b/run"]
    assert labels([tmp_path / "x", tmp_path / "y"]) == ["x", "y"]
    assert labels([same[0], same[0]]) == ["run", "run"]
    assert len(labels([tmp_path / ("n" * 200)])[0]) == 60


def test_written_whole_or_not_at_all(tmp_path: Path) -> None:
    run = made.complete(tmp_path / "run", 10)
    out = tmp_path / "report.html"
    size = write_report([run], out)
    assert size == out.stat().st_size and [p.name for p in tmp_path.glob("*.partial")] == []
    with pytest.raises(UserError, match="cannot be written"):
        write_report([run], tmp_path / "missing" / "report.html")
    with pytest.raises(UserError, match="cannot be written"):
        write_report([run], run)  # a folder
    assert not list(tmp_path.glob("*.partial"))
    with pytest.raises(UserError, match="no such run folder"):
        write_report([tmp_path / "nothing"], out)
