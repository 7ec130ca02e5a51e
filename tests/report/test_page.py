"""The page as text: what is in it, what must not be, and what it refuses."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from html import unescape
from html.parser import HTMLParser

import pytest
from harmful_words import HOSTILE, PLAN, saying
from jinja2 import UndefinedError

import runs
from privsgp import cli
from privsgp.errors import Refused
from privsgp.report import page
from privsgp.report.charts import Table
from privsgp.report.reading import read


def _html(*folders):
    return page.page([read(folder) for folder in folders])


def _prose(html):
    return unescape(re.sub(r"<[^>]+>", " ", html))


@pytest.fixture
def copied(secret, tmp_path):
    return shutil.copytree(secret, tmp_path / "copied")


def test_the_command_writes_into_the_run_folder_and_says_so(made):
    folder = made()
    (folder / "report.html").unlink()
    ran = runs.command("report", folder)
    assert (ran.code, ran.out) == (0, "")
    assert "report.html" in ran.err
    assert (folder / "report.html").read_text() == _html(folder)


def test_the_command_compares_several_runs_in_a_file_of_its_own(made, secret, tmp_path):
    out = tmp_path / "both.html"
    assert runs.command("report", made(), secret, "--out", out).code == 0
    assert "2 configurations compared" in out.read_text()


def test_the_same_run_twice_is_refused(made, tmp_path):
    copy = shutil.copytree(made(), tmp_path / "copy")
    for again in (made(), copy):
        ran = runs.command("report", made(), again, "--out", tmp_path / "both.html")
        assert ran.code == 2
        assert "are the same run" in ran.err
        assert not (tmp_path / "both.html").exists()


def test_training_leaves_a_page_and_resuming_a_finished_run_leaves_it_alone(tmp_path):
    config, out = runs.small(tmp_path), tmp_path / "x"
    runs.train(config, out)
    before = runs.contents(out)
    assert "report.html" in before
    runs.train(config, out, "--resume")
    assert runs.contents(out) == before


def test_a_run_with_too_many_ledger_lines_gets_its_page_by_command_only(tmp_path, monkeypatch):
    monkeypatch.setattr(page, "SOON", 4 * 30 - 1)
    runs.train(runs.small(tmp_path), tmp_path / "x")
    assert not (tmp_path / "x" / "report.html").exists()


def test_nothing_is_fetched_and_the_page_forbids_it(made, secret):
    html = _html(made(), secret)
    assert "default-src 'none'" in html
    assert re.findall(r"https?://[^\"'\s]+", html) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"\b(src|href)=\"(?!data:)", html)


def test_a_simulation_says_so_loudly_and_a_private_run_does_not(made, secret):
    assert '<p class="banner"' in _html(made())
    assert "Simulation, not private" in _html(made())
    assert "imulation" not in _prose(_html(secret)).split("use strict")[0]
    assert "1 of 2 runs" in _html(made(), secret)


def test_several_runs_say_which_are_private(made, secret):
    html = _html(made(), secret, made("unnoised", "--set=seed=", algorithm__name="sgp"))
    table = html[html.index("<table>") : html.index("</table>")]
    rows = [re.findall(r"<td>(.*?)</td>", row) for row in table.split("<tr>")[2:]]
    assert [row[0] for row in rows] == ["simulation", "private", "not private"]


def test_a_band_has_the_same_decimals_and_is_left_out_where_it_has_no_width(made):
    runs = [read(made()), read(made("other", seed=8))]
    for run, loss in zip(runs, (0.368, 0.38), strict=True):
        run.summary.update(test_loss=loss, seconds=0.6)
    groups = [page.Group("a", runs)]
    assert page._mean(groups[0], "test_loss", page._loss) == "0.374 (0.368–0.380)"
    assert page._mean(groups[0], "seconds", page._time) == "0.6 s"
    runs[0].summary["seconds"] = 0.4
    assert page._mean(groups[0], "seconds", page._time) == "0.5 s (0.4–0.6)"


def test_people_are_told_of_sites_not_of_nodes(made):
    shown = re.sub(r"<(pre|script|style)\b.*?</\1>", "", _html(made("pushed", graph__name="random")), flags=re.DOTALL)
    assert "node" not in _prose(shown)
    assert "worst site" in _prose(shown)


def test_private_runs_side_by_side_are_said_to_add_up(made, secret, copied):
    assert "add up, unless" in _html(secret, copied)
    assert "add up, unless" not in _html(secret, made())


def test_nothing_private_is_in_it_even_if_it_lies_in_the_folder(copied):
    before = _html(copied)
    marks = {"train_loss": 0.123456, "drawn_batch": 123457, "clipped_fraction": 0.123458, "gradient_norm": 12.3459}
    rows = [json.loads(line) for line in (copied / "metrics.jsonl").read_text().splitlines()]
    (copied / "metrics.jsonl").write_text("".join(json.dumps(row | marks) + "\n" for row in rows))
    summary = json.loads((copied / "summary.json").read_text())
    (copied / "summary.json").write_text(json.dumps(summary | marks))
    shutil.rmtree(copied / "private")
    html = _html(copied)
    assert html == before
    assert not any(key in html for key in marks)
    assert "training" not in _prose(html).split("Privacy")[0]


def test_a_plan_made_on_private_data_is_left_out_of_a_private_run(copied, made):
    (copied / "plan.json").write_text(json.dumps(PLAN))
    assert "The plan" not in _html(copied)
    made_up = {"kind": "synthetic", "words": "own samples"}
    (copied / "plan.json").write_text(json.dumps(PLAN | {"estimated_on": made_up}))
    said = _prose(_html(copied))
    assert "Planned: 30 steps; given: privsgp, step size 0.5, batch 16; estimated on own samples." in said
    assert "It does not minimise the bound, a worst case, which is smallest at K\u00a0=\u00a09." in said
    assert "its score is the average model's accuracy" in said


def test_a_tampered_ledger_is_no_report(copied):
    path = copied / "ledger" / "node-2.jsonl"
    path.write_text(path.read_text().replace('"epsilon":3.0', '"epsilon":9.0'))
    with pytest.raises(Refused, match=r"node-2\.jsonl, line 1"):
        read(copied)


def test_what_is_no_run_folder_is_refused(tmp_path):
    ran = runs.command("report", tmp_path)
    assert ran.code == 2
    assert "no run folder" in ran.err
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_is_refused(made, tmp_path):
    ran = runs.command("report", made(), "--out", tmp_path / "no" / "r.html")
    assert ran.code == 2
    assert "--out" in ran.err


class Elements(HTMLParser):
    """The elements of a page with the names of their attributes; its text; what charts say on hover."""

    def __init__(self, html):
        super().__init__()
        self.found, self.text, self.hover = [], "", []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, *(name for name, _ in attrs)))
        self.hover += [json.loads(value) for name, value in attrs if name == "data-hover"]

    def handle_data(self, data):
        self.text += data


@pytest.mark.parametrize("several", [False, True])
def test_words_from_outside_are_no_markup(made, several):
    found = [read(folder) for folder in (made("pushed", graph__name="random"), made())[: 1 + several]]
    words = "x" * len(HOSTILE), HOSTILE
    tame, hostile = (Elements(page.page([saying(run, word) for run in found])) for word in words)
    assert hostile.found == tame.found
    assert hostile.text.count(HOSTILE) > 10
    assert HOSTILE in {series["name"] for told in hostile.hover for series in told["series"]}


def test_data_for_the_script_cannot_end_it():
    told = {"steps": [0], "weights": None, HOSTILE: HOSTILE}
    sections = page.TEMPLATES.get_template("sections.html").module
    html = sections.network({"moving": told, "first": Table([], []), "agreed": None})
    inside = html[html.index("json") :].partition(">")[2].partition("<")[0]
    assert json.loads(inside) == told
    assert inside.isascii()
    assert Elements(html).found[-1] == ("script", "type")


def test_a_value_that_a_template_misses_is_an_error():
    with pytest.raises(UndefinedError, match="banners"):
        page.TEMPLATES.get_template("page.html").render(title="", style="")


def test_a_run_that_was_stopped_promises_its_budget(copied):
    (copied / "summary.json").unlink()
    prose = _prose(_html(copied))
    assert "The run is not finished" in prose
    assert "ε ≤ 8," in prose
    assert "unfinished" in prose


def test_a_method_without_noise_says_that_nothing_is_protected(made):
    prose = _prose(_html(made("open", algorithm__name="sgp")))
    assert "No protection: sgp adds no noise." in prose
    assert "ε spent" not in prose


def test_how_to_repeat_it(made, secret):
    faulty = made("faulty", "--drop=0.2", "--crash=1@3+4", "--leave=2@20", graph__name="exponential-static")
    html = _html(faulty)
    assert "--drop 0.2 --delay 0 --staleness 64 --crash 1@3+4 --leave 2@20" in html
    assert "none: secret" in _html(secret)
    assert "--data-dir" not in html
    assert read(faulty).config.toml().splitlines()[0] in _prose(html)


@pytest.mark.parametrize("given", [["--data-dir", "where/it/lies"], ["--data-dir=where/it/lies"]])
def test_a_run_with_data_of_its_own_is_repeated_with_them(copied, given):
    identity = json.loads((copied / "run.json").read_text())
    identity["command"] = ["privsgp", "train", "run.toml", *given]
    (copied / "run.json").write_text(json.dumps(identity))
    html = _html(copied)
    assert "privsgp train config.toml --out again --data-dir DATA " in html
    assert f"<pre>{identity['run'][:8]}  privsgp train run.toml {' '.join(given)}</pre>" in html


def test_a_page_is_small():
    assert len(page._file("page.css")) + len(page._file("page.js")) < 30_000
    assert cli.report.__doc__


def test_a_server_is_no_graph(made):
    page = (made("sees-ldp-svrg", algorithm__name="ldp-svrg", algorithm__steps=3) / "report.html").read_text()
    assert "ldp-svrg · 4 sites · a server · 3 steps" in page
    assert "exponential graph" not in page


def test_no_heading_stands_over_nothing(made):
    run = read(made("sees-ldp-svrg", algorithm__name="ldp-svrg", algorithm__steps=3))
    headings = [re.findall("<h2>(.*?)</h2>", page.page([r])) for r in (run, dataclasses.replace(run, metrics=[]))]
    tested = "The model on test data"
    assert headings == [["Training", tested, "Privacy", "Agreement", "Repeat it"], [tested, "Privacy", "Repeat it"]]
