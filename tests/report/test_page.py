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
from privsgp import __version__
from privsgp.accounting.statements import statements
from privsgp.errors import Refused
from privsgp.report import page
from privsgp.runs.views import read


def _html(folder):
    return page.page(read(folder))


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
    """The elements of a page with the names of their attributes, and its text."""

    def __init__(self, html):
        super().__init__()
        self.found, self.text = [], ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, *(name for name, _ in attrs)))

    def handle_data(self, data):
        self.text += data


def test_a_value_that_a_template_misses_is_an_error():
    with pytest.raises(UndefinedError, match="name"):
        page.TEMPLATES.get_template("page.html").render(title="", style="")


def test_a_method_without_noise_says_that_nothing_is_protected(made):
    prose = _prose(_html(made("open", algorithm__name="sgp")))
    assert "none: this method adds no noise" in prose
    assert "Treat messages and the model as you treat the records" in prose
    assert "ε spent" not in prose


def test_nothing_is_fetched_no_script_runs_and_the_page_forbids_both(made):
    html = _html(made())
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:\"" in html
    assert "<script" not in html
    assert "://" not in html
    assert not re.search(r"\b(src|href)=\"(?!data:)", html)


def test_a_simulation_says_so_loudly_and_a_private_run_does_not(made, secret):
    assert '<p class="banner"' in _html(made())
    assert "simulation, not private" in _html(made())
    assert "without a seed it would be ε = " in _prose(_html(made()))
    assert "imulation" not in _prose(_html(secret))


def test_each_site_has_its_epsilon_rounded_up(secret):
    rows = re.findall(
        r'<th scope="row">(site \d)</th><td>([\d.]+)</td><td>([\d.]+)</td><td>([^<]+)</td>', _html(secret)
    )
    spent = [statement.epsilon for statement in statements(secret)]
    assert [row[0] for row in rows] == ["site 0", "site 1", "site 2", "site 3"]
    assert [row[2:] for row in rows] == [(budget, "1e-5") for budget in "1238"]
    assert all(epsilon <= float(row[1]) <= 1.001 * epsilon for row, epsilon in zip(rows, spent, strict=True))
    said = _prose(_html(secret))
    assert "for each record of a site (zero-out, certified)" in said
    assert "against anyone who reads every message and model of a site" in said
    assert "whether a record took part" in said


def test_people_are_told_of_sites_not_of_nodes(made):
    shown = re.sub(r"<(pre|style)\b.*?</\1>", "", _html(made("pushed", graph__name="random")), flags=re.DOTALL)
    assert "node" not in _prose(shown)
    assert "worst site" in _prose(shown)


@pytest.mark.parametrize("named", ["pushed", "small"])
def test_words_from_outside_are_no_markup(made, named):
    view = read(made(named, **({"graph__name": "random"} if named == "pushed" else {})))
    tame, hostile = (Elements(page.page(saying(view, word))) for word in ("x" * len(HOSTILE), HOSTILE))
    assert hostile.found == tame.found
    assert hostile.text.count(HOSTILE) > 10


def test_a_plan_made_on_private_data_is_left_out_of_a_private_run(copied):
    (copied / "plan.json").write_text(json.dumps(PLAN))
    assert "The plan" not in _html(copied)
    made_up = {"kind": "synthetic", "words": "own samples"}
    (copied / "plan.json").write_text(json.dumps(PLAN | {"estimated_on": made_up}))
    said = _prose(_html(copied))
    assert "Planned: 30 steps; estimated on own samples." in said


def test_a_run_that_is_not_finished_is_refused(copied):
    (copied / "summary.json").unlink()
    with pytest.raises(Refused, match="is not finished"):
        read(copied)


def test_a_ledger_that_was_not_closed_has_spent_its_budget(copied):
    path = copied / "ledger" / "node-0.jsonl"
    *lines, _ = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines))
    assert not statements(path)[0].complete
    assert read(copied).sites[0].epsilon == 1.0  # its budget


def test_how_to_repeat_it(made):
    ran = made("repeated", graph__name="exponential-static")
    said = _prose(_html(ran))
    assert "--set=graph.name=exponential-static" in said or "exponential-static" in said
    assert f"privsgp {__version__}, torch " in said
    assert read(ran).config.toml().splitlines()[0] in said


def test_a_server_is_no_graph_and_no_heading_stands_over_nothing(made):
    folder = made("sees-ldp-svrg", algorithm__name="ldp-svrg", algorithm__steps=3)
    view = read(folder)
    bare = dataclasses.replace(view, rows=[], summary=view.summary | dict.fromkeys(("roc", "calibration", "confusion")))
    assert "ldp-svrg, a server, 4 sites, 3 steps" in (folder / "report.html").read_text()
    assert "exponential graph" not in (folder / "report.html").read_text()
    headings = [re.findall("<h2>(.*?)</h2>", page.page(v)) for v in (view, bare)]
    assert headings == [
        ["Privacy", "Model and training", "Charts", "Repeat it"],
        ["Privacy", "Model and training", "Repeat it"],
    ]
