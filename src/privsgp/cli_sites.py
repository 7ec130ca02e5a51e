"""The commands of sites: identities, agreements, and taking part in a run. Thin over `privsgp.sites`."""

from __future__ import annotations

import logging
import secrets
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privsgp import later
from privsgp.cli_data import Json, about, configured, show_sum, there
from privsgp.errors import Interrupted, Refused
from privsgp.report.terminal import LogFormat, bar, doing, out, show, show_log, show_run, tell

if TYPE_CHECKING:
    from privsgp.data import Dataset
    from privsgp.runs.config import Config
    from privsgp.runs.views import RunView
    from privsgp.sites.agreement import Agreement
    from privsgp.sites.identity import Site

_LOG = logging.getLogger(__name__)

site = typer.Typer(help="This site's identity: its keys, and its card for other sites.", no_args_is_help=True)
agree = typer.Typer(help="Agreements (*.study): propose, amend and show one.", no_args_is_help=True)

Home = Annotated[Path | None, typer.Option(help="The keys' folder; default PRIVSGP_SITE, else ~/.config/privsgp/site.")]
StudyPath = Annotated[Path, typer.Argument(help="The agreement, *.study", callback=there)]
Out = Annotated[Path | None, typer.Option("--out", help="Run folder; default runs/<name>-<run>.")]


def _logged(form: LogFormat) -> LogFormat:
    """Set up the log before any other argument is looked at: refusals are in its format too."""
    show_log(form)
    return form


LogFormatOption = Annotated[
    LogFormat, typer.Option(help="json: one JSON object a line on stderr.", is_eager=True, callback=_logged)
]


def add_to(app: typer.Typer) -> None:
    """Add the commands of sites to the command line."""
    for group, name in ((site, "site"), (agree, "agree")):
        app.add_typer(group, name=name, rich_help_panel="Between organisations")
    for command in (join, status, leave, doctor, relay):
        app.command(**about(command.__name__))(command)


@site.command("init", **about("site init"))
def init(
    name: Annotated[str, typer.Option(help="The site's name: small letters, digits, '-'.")],
    address: Annotated[str | None, typer.Option(help="HOST:PORT at which others can dial this site.")] = None,
    listen: Annotated[str | None, typer.Option(help="HOST:PORT to listen at, if it differs from --address.")] = None,
    outbound_only: Annotated[bool, typer.Option("--outbound-only", help="Other sites cannot dial this site.")] = False,
    proxy: Annotated[str | None, typer.Option(help="http://HOST:PORT of a proxy (HTTP CONNECT) to dial by.")] = None,
    home: Home = None,
) -> None:
    """Make this site's keys and its card."""
    from privsgp.sites.identity import Site

    if (address is None) != outbound_only:
        raise Refused(
            "give either --address or --outbound-only",
            "--address HOST:PORT if others can dial this site, else --outbound-only",
        )
    made = Site.create(_home(home), name, address=address, listen=listen, proxy=proxy)
    out.print(f"{name}: keys are in {made.home}, for you alone", soft_wrap=True)
    card(made.home)


@site.command("card", **about("site card"))
def card(home: Home = None) -> None:
    """Write this site's card into the working folder."""
    found = _site(home)
    path = Path(f"{found.name}.card")
    found.card.write(path)
    out.print(f"fingerprint {found.card.fingerprint}")
    out.print(f"next: send {path} to the site that proposes the study, and read the fingerprint out by telephone")


@site.command("rotate", **about("site rotate"))
def rotate(home: Home = None) -> None:
    """Make a new TLS certificate under the same identity; other sites trust it by the card they have."""
    found = _site(home)
    found.rotate()
    out.print(f"{found.name}: a new certificate, good until {found.certificate.not_valid_after_utc:%Y-%m-%d}")
    out.print("next: stop `privsgp join` and run it again, if it runs: it continues with the new certificate")


@site.command("show", **about("site show"))
def show_site(
    card_file: Annotated[Path | None, typer.Argument(help="Another site's card; default: this site.")] = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Show a site's name, fingerprint, address and policy."""
    from privsgp.sites.identity import Card

    own = None if card_file is not None else _site(home)
    shown = own.card if own is not None else Card.read(card_file or Path())
    values: dict[str, Any] = {
        "name": shown.name, "fingerprint": shown.fingerprint, "address": shown.address or "none: it dials out only",
    }  # fmt: skip
    if own is not None:
        until = own.certificate.not_valid_after_utc
        policy = own.home / "policy.toml"
        values |= {
            "home": str(own.home), "listens at": own.listen or "–", "proxy": own.proxy or "–",
            "certificate until": f"{until:%Y-%m-%d}", "policy": str(policy) if policy.exists() else "none",
        }  # fmt: skip
    tell(values, show, "site", [(key, str(value)) for key, value in values.items()], as_json=as_json)


@agree.command("propose", **about("agree propose"))
def propose(
    config: Annotated[Path, typer.Argument(help="run.toml, with data.sizes and data.classes")],
    cards: Annotated[list[Path], typer.Option("--site", help="A site's card, in the order of nodes.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The *.study to write.")],
    like: Annotated[Path | None, typer.Option("--data", help="A file of samples. Only their shape is used.")] = None,
    changes: Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE, as for train.")] = None,
    deadline: Annotated[float, typer.Option(help="Seconds to wait for a step's messages.")] = 10.0,
    staleness: Annotated[int, typer.Option(help="Steps after which all wait for a silent site.")] = 64,
    fewest: Annotated[int, typer.Option(help="Smallest number of sites online for a step.")] = 2,
    transfer: Annotated[float, typer.Option(help="Seconds that one message may take.")] = 120.0,
    max_update: Annotated[float | None, typer.Option(help="Largest distance of a model, in steps γ(C + σ√d).")] = None,
    relay_card: Annotated[Path | None, typer.Option("--relay", help="Card of the relay between closed sites.")] = None,
    days: Annotated[float, typer.Option(help="Days within which all must have joined.")] = 30.0,
    describe: Annotated[
        float | None, typer.Option(help="ε: agree on a noised description of the tables instead, as [sum] says.")
    ] = None,
    evaluate: Annotated[
        Path | None,
        typer.Option(help="A finished run of this site: agree on evaluating its model privately.", callback=there),
    ] = None,
) -> None:
    """Write an agreement. Other sites check it, and sign it by joining."""
    settings = configured(config, changes, data=False)
    from privsgp.sites import agreement as agreements
    from privsgp.sites.identity import Card
    from privsgp.sites.study import Limits

    limits = Limits(deadline=deadline, staleness=staleness, fewest=fewest, transfer=transfer, max_update=max_update)
    roster, carrier = [Card.read(path) for path in cards], None if relay_card is None else Card.read(relay_card)
    with doing("calibrating the noise of every site"):
        if describe is None and evaluate is None:
            samples, name = _like(settings, like), output.stem
        else:
            settings, samples, name = *_sum(settings, describe, evaluate, output), output.stem
            limits = limits.model_copy(update={"fewest": len(roster)})
        made = agreements.propose(settings, roster, samples, name=name, limits=limits, days=days, relay=carrier)
    made.write(output)
    _proposed(made, str(output))


@agree.command("amend", **about("agree amend"))
def amend_agreement(
    study: StudyPath,
    output: Annotated[Path, typer.Option("--output", "-o", help="The *.study to write.")],
    run: Annotated[Path | None, typer.Option(help="This site's folder of the ended run.", callback=there)] = None,
    revoke: Annotated[list[str] | None, typer.Option(help="NAME: its key is revoked, and it takes no part.")] = None,
    replace: Annotated[
        list[str] | None, typer.Option(help="NAME=CARD: its key is revoked; the site has this new card.")
    ] = None,
    lost: Annotated[
        list[str] | None, typer.Option(help="NAME: its ledger is lost, so all steps count as released.")
    ] = None,
    add: Annotated[list[str] | None, typer.Option(help="CARD=J: a new site with J samples.")] = None,
    releases: Annotated[
        int | None, typer.Option(help="Releases of each other site; default: the newest step known here.")
    ] = None,
    changes: Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE, as for train.")] = None,
    days: Annotated[float, typer.Option(help="Days within which all must have joined.")] = 30.0,
    home: Home = None,
) -> None:
    """Continue a stopped run with other sites. All of them sign the new agreement by joining."""
    from privsgp.sites import amend as amending
    from privsgp.sites.agreement import Agreement
    from privsgp.sites.identity import Card

    ended = Agreement.read(study)
    wanted = amending.Changes(
        revoked=revoke or [], lost=lost or [], releases=releases, settings=changes or [],
        replaced={name: Card.read(Path(card)) for name, card in _pairs("--replace", "NAME=CARD", replace)},
        added=[(Card.read(Path(card)), _count(J)) for card, J in _pairs("--add", "CARD=J", add)],
    )  # fmt: skip
    with doing("calibrating the noise of every site"):
        made = amending.amend(ended, _site(home), run or ended.default_folder, wanted, output, days)
    model = f" and {output.with_suffix('.safetensors')}" if made.continues and made.continues.starts_from_model else ""
    _proposed(made, f"{output}{model}")


def _proposed(agreement: Agreement, files: str) -> None:
    _show(agreement)
    out.print(f"next: send {files} to all; each looks at it (agree show) and joins with its data", soft_wrap=True)


def _pairs(option: str, form: str, given: list[str] | None) -> list[tuple[str, str]]:
    parts = [one.rpartition("=") for one in given or []]
    if wrong := [f"{name}{right}" for name, equals, right in parts if not (name and equals and right)]:
        raise Refused(f"{option} {wrong[0]} is not of the form {form}", f"write {option} {form}")
    return [(name, right) for name, _, right in parts]


def _count(text: str) -> int:
    if not text.isdecimal():
        raise Refused(f"--add …={text} is no number", "write --add CARD=J, with the number of the site's samples")
    return int(text)


def _sum(settings: Config, epsilon: float | None, run: Path | None, output: Path) -> tuple[Config, Dataset]:
    """Return the configuration of a noised sum; the model that it evaluates is copied beside the study."""
    from privsgp.runs import evaluation
    from privsgp.sites import sums

    if (epsilon is None) == (run is None) or settings.data.sizes is None:
        raise Refused(
            "--describe and --evaluate were given together, or data.sizes is missing",
            "give one of the two, and write data.sizes: how many persons each site counts",
        )
    if run is not None:
        shutil.copyfile(evaluation.agreed_model(run), output.with_suffix(".safetensors"))
    return sums.like(settings, run, settings.data.sizes, epsilon or settings.evaluation.epsilon)


def _like(settings: Config, path: Path | None) -> Dataset:
    from privsgp import data, models
    from privsgp.data.loading import like
    from privsgp.sites.agreement import refuse_counted

    task = models.task(settings.model.loss)
    if settings.data.schema is not None:
        return like(settings.data.schema)
    if path is not None:
        found = data.load(str(path), task=task, classes=settings.data.classes, form=settings.data.form)
        refuse_counted(settings, path, found)
        return found
    if not settings.data.published:
        raise Refused("--data is missing", "name a file with samples of the agreed shape, which fixes the model")
    return data.load(settings.data.name, task=task)


@agree.command("show", **about("agree show"))
def show_agreement(study: StudyPath, home: Home = None, as_json: Json = False) -> None:
    """Show an agreement, and this site's part in it."""
    from privsgp.sites.agreement import Agreement

    agreement = Agreement.read(study)
    tell({"run": agreement.run} | agreement.values, _show, agreement, home, as_json=as_json)
    if not as_json:
        out.print(f"next: compare fingerprints by telephone, then privsgp doctor {study}", soft_wrap=True)


def _show(agreement: Agreement, home: Path | None = None) -> None:
    from privsgp.runs.views import labelled
    from privsgp.sites.continuing import counted_lines, revoked_cards

    try:
        own: str | None = _site(home).card.identity
    except Refused:
        own = None
    rows = labelled(
        "agreement.txt", a=agreement, own=own, not_private=_not_private(agreement), counted_lines=counted_lines,
        revoked_cards=revoked_cards,
    )  # fmt: skip
    show(agreement.name, rows)


def _not_private(agreement: Agreement) -> list[str]:
    """Say why a run protects nobody, if it does not."""
    noise = [] if agreement.config.private else [f"{agreement.config.algorithm.name} adds no noise"]
    return noise + (["it has a seed: a simulation that anyone can repeat"] if agreement.config.seed is not None else [])


def join(
    study: StudyPath,
    data: Annotated[Path, typer.Option(help="This site's own file: a table or .npz.", callback=there)],
    test: Annotated[Path | None, typer.Option(help="Public data on which the model is tested.", callback=there)] = None,
    home: Home = None,
    folder: Out = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, …")] = "cpu",
    moved: Annotated[bool, typer.Option("--moved", help="The run folder was moved here; it is no copy.")] = False,
    ended: Annotated[
        Path | None, typer.Option(help="After amend: this site's folder of the ended run; default runs/<name>-<run>.")
    ] = None,
    log_format: LogFormatOption = "text",
    as_json: Json = False,
) -> None:
    """Sign an agreement and take part in its run. After a crash, the same command continues."""
    own = _site(home)
    with later.package("torch"):
        from privsgp.sites.net.causes import refuse_own_certificate
        from privsgp.sites.study import Study

    refuse_own_certificate(own)
    proposed = Study.read(study)
    proposed.node(own)
    run_folder = folder or proposed.default_folder
    if not run_folder.exists():  # a site that has begun may continue after the expiry: `run.join` decides
        proposed.refuse_expired()
    from privsgp.report import page
    from privsgp.runs import views
    from privsgp.sites import run
    from privsgp.sites.agreement import Agreement

    agreement = Agreement.read(study)
    for reason in _not_private(agreement):
        _LOG.warning("WARNING: this run is not private: %s", reason)
    options: dict[str, Any] = {"device": device, "moved": moved, "test": test, "ended": ended}
    try:
        with bar(agreement.rounds, quiet=log_format == "json") as watch:
            summary = run.join(study, data, home=own.home, out=run_folder, watch=watch, say=_say, **options)
    except Interrupted as stopped:
        _say(f"{stopped}; every step is kept: unless this site has left, the same command continues")
        raise typer.Exit(130) from None
    if "sum" in summary:
        show_sum(summary["sum"], as_json=as_json)
        return
    page.leave(run_folder, summary)
    tell(summary, _show_run, views.of(summary, run_folder), as_json=as_json)


def _show_run(view: RunView) -> None:
    show_run(view)
    model = view.folder / "nodes" / f"{view.summary['site']['node']}.safetensors"
    out.print(f"next: the model is {model}; privsgp report {view.folder} writes what to show others", soft_wrap=True)


def status(
    study: StudyPath,
    home: Home = None,
    folder: Out = None,
    serve: Annotated[str | None, typer.Option(help="HOST:PORT of a local page, for example 127.0.0.1:8080.")] = None,
    as_json: Json = False,
) -> None:
    """Show each site and link, the cause of a failure, and this site's spending."""
    from privsgp.report import site as site_page
    from privsgp.sites import status as states
    from privsgp.sites.agreement import Agreement

    agreement, own = Agreement.read(study), _site(home)
    run_folder = folder or agreement.default_folder
    values = states.read(agreement, own, run_folder)
    if serve is not None:
        _serve(serve, agreement, own, run_folder)
        return
    tell(values, show, agreement.name, site_page.rows(agreement, agreement.node(own), values), as_json=as_json)
    if not as_json and site_page.stopped(values):
        out.print("next: privsgp join goes on with the same options; nothing is charged twice")


def _serve(address: str, agreement: Agreement, own: Site, run_folder: Path) -> None:
    """Serve the page until Ctrl-C; beyond this machine only to those that have the token."""
    from privsgp.engine.stopping import Stopping
    from privsgp.report import site as site_page
    from privsgp.sites import web

    token = None if web.is_loopback(address) else secrets.token_urlsafe(24)
    query = "" if token is None else f"?token={token}"
    pages, stopping = site_page.pages(agreement, own, run_folder, query), Stopping()
    with stopping, web.served(address, pages, token):
        out.print(f"http://{address}/{query} until Ctrl-C", soft_wrap=True)
        while not stopping.asked:
            time.sleep(0.2)


def leave(study: StudyPath, home: Home = None, folder: Out = None) -> None:
    """Leave a run permanently, and inform the others. Spent budget stays spent."""
    from privsgp.sites.run import leave as go

    others_know = go(study, home=_home(home), out=folder)
    out.print(
        "this site has left. The others know" if others_know else "the running process informs the others, and ends"
    )


def relay(
    study: StudyPath,
    home: Home = None,
    audit: Annotated[Path, typer.Option(help="The log of refused messages.")] = Path("relay-audit.jsonl"),
    log_format: LogFormatOption = "text",
) -> None:
    """Relay sealed messages between closed sites, on the machine that the study names."""
    from privsgp.engine.stopping import Stopping
    from privsgp.sites.run import relay as carry

    del log_format  # `_logged` has set up the log
    stopping = Stopping()
    with stopping:
        carry(study, home=_home(home), audit=audit, ended=lambda: stopping.asked, say=_say)


def doctor(study: StudyPath, home: Home = None) -> None:
    """Check policy, names, ports, certificates, clock and proxy before joining. Status 3 if a check fails."""
    from privsgp.sites.agreement import Agreement
    from privsgp.sites.doctor import examine

    found = examine(_site(home), Agreement.read(study))
    show("doctor", [(one.what, ("" if one.fine else "✗ ") + one.text) for one in found])
    if not all(one.fine for one in found):
        raise typer.Exit(3)
    out.print(f"next: privsgp join {study} --data FILE", soft_wrap=True)


def _home(given: Path | None) -> Path:
    from privsgp.accounting.policy import default_home

    return given or default_home()


def _site(home: Path | None) -> Site:
    from privsgp.sites.identity import Site

    return Site.open(_home(home))


def _say(text: str) -> None:
    _LOG.info("%s", text)
