"""The local page of a site: what it shows, to whom, and what probes get."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
import time
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest
from consortium import PATIENCE, free_ports

from browser import CHROMIUM, browser
from privsgp.accounting.book import Book, Entry, Records
from privsgp.engine.folder import Folder
from privsgp.errors import Refused
from privsgp.report import site as site_page
from privsgp.sites import status, web
from privsgp.sites.run import wire

EVERYWHERE = "0.0.0.0"  # noqa: S104 - with a token
TOKEN = "t0ken"  # noqa: S105


@pytest.fixture
def place(three, tmp_path, monkeypatch):
    """Return the folder of a site that takes part, and whose records have a budget."""
    monkeypatch.setenv("PRIVSGP_STATE", str(tmp_path / "state"))
    folder = Folder(tmp_path / "run")
    folder.path.mkdir()
    folder.prepare()
    network = wire(three.sites[0], three.agreement, folder)
    network.audit.note("form", "basel", "<script>pwned = 1</script>")
    status._write(network, folder, 90.0)
    hashes = np.arange(5, dtype=np.uint64)[:, None]
    entry = Entry(
        run=three.agreement.run, node=0, ledger=three.agreement.run, command="join", name="x", data="x",
        folder=str(folder.path), simulation=False, relation="zero-out", trust="", epsilon=2.0001, delta=1e-5,
    )  # fmt: skip
    Book().enter([entry], [Records("d", hashes)])
    (three.sites[0].home / "policy.toml").write_text("epsilon_total = 5.0\n")
    yield folder.path
    (three.sites[0].home / "policy.toml").unlink()


@contextlib.contextmanager
def served(c, place, **options):
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    with web.served(address, site_page.pages(c.agreement, c.sites[0], place), **options):
        yield f"http://{address}"


def asked(url, **headers):
    try:
        with urlopen(Request(url, headers=headers), timeout=20) as answer:  # noqa: S310
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def stopped(place):
    """Make status.json as old as that of a process that ended."""
    told = json.loads((place / "status.json").read_text())
    (place / "status.json").write_text(json.dumps(told | {"at": time.time() - 60}))


def test_page_json_and_terminal_have_the_same_facts(three, place):
    with served(three, place) as url:
        code, page = asked(url + "/")
        told = json.loads(asked(url + "/status.json")[1])
    assert code == 200
    for word in (
        "basel",
        "cork",
        "aachen → basel",
        "about 2 min",
        "2.001",
        "2.999 left of 5",
        "1 × form",
        "step 0 of 22",
    ):
        assert word in page
    assert "<script>" not in page
    assert told["budget_book"] == {
        "epsilon_spent": 2.0001, "delta_spent": 1e-5, "epsilon_total": 5.0, "delta_total": None,
    }  # fmt: skip
    assert told["newest"][0]["kind"] == "form"


def test_a_probe_sees_a_process_that_is_gone(three, place):
    with served(three, place) as url:
        assert asked(url + "/healthz") == (200, "ok\n")
        stopped(place)
        assert asked(url + "/healthz") == (503, "no process takes part\n")
        assert asked(url + "/readyz")[0] == 503
        assert "Not running" in asked(url + "/")[1]


def test_a_clock_that_was_put_back_hides_no_process_that_is_gone(three, place):
    told = json.loads((place / "status.json").read_text())
    (place / "status.json").write_text(json.dumps(told | {"at": time.time() + 3600}))
    with served(three, place) as url:
        assert asked(url + "/healthz") == (503, "no process takes part\n")
        assert "not running" in asked(url + "/")[1]


def test_a_probe_is_told_why_there_is_no_status(three, place):
    with served(three, place) as url:
        (place / "status.json").unlink()
        for path in ("/", "/status.json", "/healthz"):
            code, text = asked(url + path)
            assert code == 503
            assert "has no status.json" in text


def test_a_request_that_never_ends_does_not_delay_the_end(three, place):
    with contextlib.ExitStack() as opened:
        url = opened.enter_context(served(three, place))
        slow = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])))
        slow.sendall(b"GET / HTTP/1.1\r\n")
        assert asked(url + "/healthz") == (200, "ok\n")
        began = time.monotonic()
        opened.close()
        slow.close()
    assert time.monotonic() - began < 3.0


def test_a_failing_link_is_alive_but_not_ready(three, place):
    told = json.loads((place / "status.json").read_text())
    told["links"][0]["error"] = "the wire is cut"
    (place / "status.json").write_text(json.dumps(told))
    with served(three, place) as url:
        assert asked(url + "/healthz")[0] == 200
        assert asked(url + "/readyz") == (503, "the wire is cut\n")


def test_only_known_paths_and_only_get(three, place):
    with served(three, place) as url:
        assert asked(url + "/../etc/passwd")[0] == 404
        assert asked(url + "/private/checkpoint.safetensors")[0] == 404
        with pytest.raises(HTTPError) as error:
            urlopen(Request(url + "/", data=b"x", method="POST"), timeout=20)  # noqa: S310
        assert error.value.code == 501
        error.value.close()


def test_a_page_of_the_internet_cannot_read_it_through_a_browser_here(three, place):
    with served(three, place) as url:
        assert asked(url + "/")[0] == 200
        assert asked(url + "/", Host="attacker.example:8080")[0] == 403
        assert asked(url + "/status.json", Host="attacker.example")[0] == 403
        with urlopen(url + "/status.json", timeout=20) as answer:  # noqa: S310
            headers = answer.headers
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"  # a page of another origin cannot embed it
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert headers["Access-Control-Allow-Origin"] is None


def test_beyond_this_machine_every_path_needs_the_token(three, place):
    with served(three, place, token=TOKEN) as url:
        for path in ("/", "/status.json", "/healthz", "/none"):
            assert asked(url + path)[0] == 401
            assert asked(url + path + "?token=t0kem")[0] == 401
        assert asked(url + "/?token=t0ken")[0] == 200
        assert asked(url + "/status.json", Authorization="Bearer t0ken")[0] == 200


@pytest.mark.parametrize(
    ("address", "here"),
    [("127.0.0.1:1", True), ("[::1]:1", True), ("localhost:1", True), ("0.0.0.0:1", False), ("10.1.2.3:1", False)],
)
def test_which_addresses_are_of_this_machine_alone(address, here):
    assert web.is_loopback(address) is here


def test_a_wrong_address_or_a_taken_port_is_refused(three, place):
    with pytest.raises(Refused, match="--serve 8080"), web.served("8080", {}):
        pass
    with (
        served(three, place) as url,
        pytest.raises(Refused, match="in use"),
        web.served(url.removeprefix("http://"), {}),
    ):
        pass


@pytest.mark.parametrize("host", ["127.0.0.1", EVERYWHERE])
def test_the_command_serves_until_it_is_stopped(three, place, host):
    (port,) = free_ports(1)
    args = ["status", three.study, "--home", three.sites[0].home, "--out", place, "--serve", f"{host}:{port}"]
    command = [sys.executable, "-m", "privsgp", *map(str, args)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            query = re.fullmatch(r"http://\S+/(\?token=\S+)? until Ctrl-C\n", line)[1] or ""
            assert bool(query) == (host == EVERYWHERE)
            assert asked(f"http://127.0.0.1:{port}/{query}")[0] == 200
            assert asked(f"http://127.0.0.1:{port}/")[0] == (401 if query else 200)
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE) in (0, 130)
        finally:
            process.kill()


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: `make browser` installs one")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_in_a_browser(three, place, width, scheme):
    with browser() as tab, served(three, place) as url:
        tab.open(url + "/", width=width, scheme=scheme)
        assert tab.complaints == []
        assert {one for one in tab.asked if not one.startswith("data:")} == {url + "/"}
        assert tab.value("document.documentElement.scrollWidth") <= width
        assert "pwned" in tab.value("document.body.innerText")
        assert tab.value("typeof pwned") == "undefined"
        stopped(place)
        tab.open(url + "/", width=width, scheme=scheme)
        assert tab.value("document.querySelector('.banner').offsetHeight") > 0
