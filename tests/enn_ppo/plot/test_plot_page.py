"""The page of a comparison: what its tables and curves say, and that nothing of a run is more than text."""

from __future__ import annotations

import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from enn_ppo.plot.config import PlotConfig
from enn_ppo.plot.page import LONGEST_TEXT, MOST_POINTS
from enn_ppo.plot.plot import main, plot
from enn_ppo.training.tracking.logger import Row
from tests.enn_ppo.rows import log_all

HOSTILE = '<script>document.title="pwned"</script>"\'&\u202eabc'


class Reader(HTMLParser):
    """The texts of the cells of every table, the addresses of links, and the names of elements."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.links: list[str] = []
        self.tags: set[str] = set()
        self._in_cell = False
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self._in_cell = True
        elif tag == "a":
            self.links.append(str(dict(attributes)["href"]))

    def handle_endtag(self, tag: str) -> None:
        self._in_cell &= tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._in_cell:
            self.tables[-1][-1][-1] += data


def make_run(path: Path, rewards: list[float], **settings: Any) -> str:
    rows: list[Row] = [
        {"step": 100.0 * (i + 1), "seconds": 2.0 * (i + 1), "episodic_reward": reward}
        for i, reward in enumerate(rewards)
    ]
    path.mkdir(parents=True)
    log_all(path / "metrics.jsonl", rows)
    (path / "config.yaml").write_text(yaml.safe_dump(settings, allow_unicode=True), "utf-8")
    return str(path)


def page_of(tmp_path: Path, *runs: str, **settings: Any) -> str:
    output = tmp_path / "page.html"
    plot(PlotConfig(runs=runs, output=(str(output),), **settings))
    return output.read_text("utf-8")


def polylines(page: str, axis: str) -> list[list[tuple[float, float]]]:
    """Pixels of the lines of the first panel over an axis."""
    (panels,) = re.findall(rf'<div class="panels {axis}">(.*?)</div>', page)
    found = re.findall(r'class="mean"[^>]* points="([^"]*)"', panels)
    return [[(float(x), float(y)) for x, y in (pair.split(",") for pair in line.split())] for line in found]


def test_tables_have_the_settings_that_differ_the_final_metrics_and_the_interval_over_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = [
        make_run(Path("a1"), [0, 1], seed=1, optim={"lr": 0.1, "epochs": 3}),
        make_run(Path("a2"), [2, 3], seed=2, optim={"lr": 0.1, "epochs": 3}),
        make_run(Path("b"), [0] * 5 + [4] * 10, seed=1, optim={"lr": 0.2, "epochs": 3}),
    ]
    results, table = Reader(page_of(tmp_path, *runs)).tables
    # means 0.5 and 2.5: their mean is 1.5, their deviation sqrt(2); of two seeds the quantile is 12.7062
    assert results == [
        ["settings", "runs", "episodic_reward"],
        ["optim.lr=0.1", "2", "1.5 ± 13"],
        ["optim.lr=0.2", "1", "4"],
    ]
    assert table == [
        ["run", "seed", "optim.lr", "steps", "seconds", "episodic_reward", "replay"],
        ["a1", "1", "0.1", "200", "4", "0.5", "-"],
        ["a2", "2", "0.1", "200", "4", "2.5", "-"],
        ["b", "1", "0.2", "1,500", "30", "4", "-"],
    ]


def test_curves_are_there_over_every_axis_and_the_one_that_was_asked_for_is_chosen(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", [0, 1, 0])
    page = page_of(tmp_path, run, x="seconds")
    assert re.findall(r'id="x-(\w+)" checked', page) == ["seconds"]
    for axis in ("step", "seconds", "updates"):
        (line,) = polylines(page, axis)
        (x1, y1), (x2, y2), (x3, y3) = line
        assert x3 == 760 - 24  # the last value is at the right border
        assert x2 - x1 == pytest.approx(x3 - x2, abs=0.2)
        assert y1 == y3 > y2  # pixels are counted from the top


def test_a_long_curve_is_thinned_out_and_keeps_its_ends(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", [float(i % 7) for i in range(5000)])
    page = page_of(tmp_path, run)
    (line,) = polylines(page, "step")
    assert len(line) == MOST_POINTS
    assert len(page) < 100_000
    assert line[0][0] == pytest.approx(62, abs=0.5) and line[-1][0] == 736


def test_a_link_leads_from_the_page_to_the_newest_replay(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs" / 'a "b" & #1', [1])
    (tmp_path / "runs" / 'a "b" & #1' / "replays").mkdir()
    for name in ("step_000000000900.html", "step_000000012000.html", "step_9.html", "step_999999999999.html.part"):
        (tmp_path / "runs" / 'a "b" & #1' / "replays" / name).touch()
    (tmp_path / "pages").mkdir()
    page = Reader(page_of(tmp_path / "pages", run))
    assert page.links == ["./../runs/a%20%22b%22%20%26%20%231/replays/step_000000012000.html"]
    assert page.tables[1][1][-1] == "step 12,000"
    (tmp_path / "runs" / 'a "b" & #1' / "replays" / "watched_000000020000.html").touch()
    page = Reader(page_of(tmp_path / "pages", run))
    assert page.links == ["./../runs/a%20%22b%22%20%26%20%231/replays/watched_000000020000.html"]


def test_the_last_evaluation_is_shown_with_its_interval(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", [1])
    rows: list[Row] = [
        {"step": 100, "eval/step": 100.0, "eval/episodic_reward": 0.75, "eval/episodic_reward_ci95": 0.0625}
    ]
    log_all(Path(run) / "metrics.jsonl", rows)
    _, (header, row) = Reader(page_of(tmp_path, run)).tables
    assert row[header.index("last evaluation")] == "0.75 ± 0.062"


def hostile_page(tmp_path: Path) -> Path:
    runs = [
        make_run(
            tmp_path / str(i), [1, 2], seed=HOSTILE, env={"id": f"{HOSTILE}{i}", "kwargs": {HOSTILE: "x" * i * 10_000}}
        )
        for i in (1, 2)
    ]
    page_of(tmp_path, *runs)
    return tmp_path / "page.html"


def test_names_and_values_of_runs_are_text_and_cut(tmp_path: Path) -> None:
    page = hostile_page(tmp_path).read_text("utf-8")
    assert "<script" not in page and "http" not in page
    assert len(page) < 20_000
    read = Reader(page)
    header, row, _ = read.tables[1]
    assert row[1] == HOSTILE
    assert f"env.kwargs.{HOSTILE}" in header
    assert row[header.index(f"env.kwargs.{HOSTILE}")] == "x" * (LONGEST_TEXT - 1) + "…"
    assert read.tags <= set(
        "html head meta title style body h1 h2 h3 p div span table tr th td bdi a input label svg path text polygon "
        "polyline".split()
    )


def test_a_page_that_cannot_be_replaced_is_an_error_and_leaves_nothing_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "a", [1])
    (tmp_path / "page.html").mkdir()
    assert main([run, f"output={tmp_path / 'page.html'}"]) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert sorted(os.listdir(tmp_path)) == ["a", "page.html"]
