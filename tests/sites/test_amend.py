"""A run that has ended goes on with other sites: after a lost disk, a stolen key, or with one site more."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import jsonschema
import numpy as np
import pytest
import yaml
from consortium import Consortium, digits, free_ports
from safetensors.numpy import load_file

from privsgp import data
from privsgp.accounting import accountant
from privsgp.accounting.book import Book
from privsgp.accounting.compound import Composed
from privsgp.accounting.mechanisms import described
from privsgp.accounting.pairwise import PairwiseCovariance
from privsgp.errors import Refused
from privsgp.report.dossier import write_dossier
from privsgp.runs import config as configs
from privsgp.sites import amend, continuing
from privsgp.sites.agreement import Agreement, propose
from privsgp.sites.identity import Site
from privsgp.sites.run import join
from privsgp.sites.study import Continues, Limits, Study

RUN = {
    "privacy": {"sigma": None, "epsilon": 4.0, "delta": 1e-5},
    "algorithm": {"name": "privsgp", "batch": 20, "steps": 30, "step_size": 0.2, "final_mixing": 6},
}
REGISTRY = Path(__file__).parents[1] / "report" / "registry-schema.yaml"
PAIRED = RUN | {"privacy": RUN["privacy"] | {"noise": "pairwise", "honest": 3}}


def ended(consortium, run=RUN, **more):
    """Make three sites take some steps of a run, and stop."""
    c = consortium(limits=Limits(deadline=2.0, staleness=4), **run | more)
    c.start()
    for i in range(3):
        c.until_step(i, 5)
    for i in range(3):
        assert c.ask_to_stop(i) == 130, c.log(i)
    return c


def amended(c, changes, who=0):
    """Write the study that continues a run, at a site of that run."""
    study = c.folder / "b.study"
    amend.amend(c.agreement, c.sites[who], c.out(who), changes, study)
    return Agreement.read(study)


@pytest.fixture
def joined():
    """Return a function that starts the sites of an amended run; they are stopped whatever happens."""
    made = []

    def start(c, agreement, **more):
        (c.folder / "second").mkdir()
        before = {i: c.out(i) for i in range(3)} | more.pop("before", {})
        values = {"folder": c.folder / "second", "study": c.folder / "b.study", "processes": {}, "before": before}
        again = dataclasses.replace(c, agreement=agreement, **values | more)
        made.append(again)
        again.start()
        return again

    yield start
    for one in made:
        one.stop()


def released(c):
    """Return the most releases that a site's ledger of the ended run counts."""
    return max(c.ledger(i).charged for i in range(3) if c.out(i).exists())


def counted(header, steps):
    """Return ε of both runs together, by way of a plain list of what was released."""
    earlier = [(described(values), count) for values, count in header.mechanism["earlier"]]
    own = described(header.mechanism | {"earlier": []})
    both = Composed(((own, steps), *earlier))
    return accountant.profile(both, 1, header.relation).epsilon(header.budget["delta"])


def test_a_site_without_its_disk_rejoins_and_all_that_it_had_reserved_is_spent(consortium, joined):
    c = ended(consortium)
    shutil.rmtree(c.out(1))
    count = released(c)
    changes = amend.Changes(lost=["basel"], releases=count, settings=["privacy.epsilon=8.0"])
    made = amended(c, changes)
    assert made.continues.releases == [count, 30, count]
    assert made.steps == 30 - count
    assert made.sigma[1] * 120 > made.sigma[0] * 100  # it has spent more
    again = joined(c, made)
    for i, summary in enumerate(again.end()):
        header = again.ledger(i).header
        ((earlier, before),) = header.mechanism["earlier"]
        assert (before, earlier["sigma"]) == (made.continues.releases[i], c.agreement.sigma[i])
        assert summary["releases"][i] == made.steps == again.ledger(i).charged
        assert summary["epsilon_spent"][i] == pytest.approx(counted(header, made.steps), rel=0.03)
        assert 7.5 < summary["epsilon_spent"][i] <= 8.0
    models = np.stack([again.model(i) for i in range(3)])
    assert np.abs(models - models.mean(0)).max() < 0.2 * np.abs(models).max()
    book = Book()
    for entry in book.entries():  # one budget for both runs, not two that add up
        (sets,) = [sets for node, sets in book.sets_of({entry.run}).items() if node == entry.node]
        assert book.spent_by(sets[-1], "zero-out").epsilon == 8.0
    write_dossier(again.out(0), c.folder / "dossier")
    filed = yaml.safe_load((c.folder / "dossier" / "registry.yaml").read_text())
    jsonschema.validate(filed, yaml.safe_load(REGISTRY.read_text()))
    assert filed["deployment"]["privacy_loss"]["privacy_parameters"]["epsilon"] >= max(
        again.summary(i)["epsilon_spent"][i] for i in range(3)
    )
    assert "those of the runs that it continues" in filed["deployment"]["deployment_model"]["release_type_details"]
    annex = (c.folder / "dossier" / "assessment.md").read_text()
    assert "basel: 30 releases of an earlier run count too" in annex
    assert "This organisation's process was started 1 time(s)" in annex
    other = c.folder / "fork.study"
    changes = amend.Changes(lost=["basel"], releases=count, settings=["privacy.epsilon=9.0"])
    amend.amend(c.agreement, c.sites[2], c.out(2), changes, other)
    with pytest.raises(Refused, match=r"has spent \d+ releases, and fork counts 0"):
        join(other, c.files[0], home=c.sites[0].home, out=c.folder / "fork", ended=c.out(0))
    c.start(0)  # the ended run: nothing is released there any more
    c.processes[0].join(5.0)
    c.stop()
    assert c.ledger(0).closed
    assert c.ledger(0).charged <= count


def test_a_stolen_key_is_revoked_and_counts_as_dishonest_from_the_first_step_on(consortium, joined):
    c = ended(consortium, PAIRED)
    count = released(c)
    new = Site.create(c.folder / "home-new", "basel", address=c.sites[1].card.address)
    settings = ["privacy.epsilon=30.0"]
    with pytest.raises(Refused, match="a revoked key of basel is used again"):
        amended(c, amend.Changes(replaced={"basel": c.sites[1].card}, releases=count, settings=settings))
    made = amended(c, amend.Changes(replaced={"basel": new.card}, releases=count, settings=settings), who=2)
    noise = c.agreement.shared_noise
    before = PairwiseCovariance(tuple(noise.own), noise.pair)
    again = joined(c, made, sites=[c.sites[0], new, c.sites[2]])
    summaries = again.end()
    for i, honest in enumerate((2, 1, 2)):  # of basel's own noise others may know all but its own
        header = again.ledger(i).header
        ((earlier, spent),) = header.mechanism["earlier"]
        assert (earlier["honest"], spent) == (honest, count)
        assert earlier["sigma"] == before.effective(honest)[i] < c.agreement.sigma[i]
        assert summaries[i]["epsilon_spent"][i] == pytest.approx(counted(header, made.steps), rel=0.03)
        assert summaries[i]["epsilon_spent"][i] <= 30.0
        if_honest = header.mechanism | {"earlier": [[earlier | {"honest": 3, "sigma": c.agreement.sigma[i]}, spent]]}
        assert counted(dataclasses.replace(header, mechanism=if_honest), made.steps) < summaries[i]["epsilon_spent"][i]
    with pytest.raises(Refused, match="is not on the roster"):
        made.node(c.sites[1])


def test_a_site_is_added_and_the_run_continues_from_the_model_that_it_had(consortium, joined):
    c = ended(consortium)
    count = released(c)
    (port,) = free_ports(1)
    new = Site.create(c.folder / "home-delft", "delft", address=f"127.0.0.1:{port}")
    (c.folder / "more").mkdir()
    file = digits(c.folder / "more", [100, 120, 140, 90])[3]
    held = load_file(c.out(0) / "private" / "checkpoint-0-0.safetensors")
    made = amended(c, amend.Changes(added=[(new.card, 90)], releases=count, settings=["privacy.epsilon=6.0"]))
    assert made.continues.nodes == [0, 1, 2, None]
    start = load_file(c.folder / "b.safetensors")
    z = (held["x"] / held["w"][:, None])[0].astype(np.float32)
    assert sorted(np.concatenate([one.ravel() for one in start.values()])) == sorted(z)
    again = joined(c, made, sites=[*c.sites, new], files=[*c.files, file])
    for i, summary in enumerate(again.end()):
        header = again.ledger(i).header
        assert ("earlier" in header.mechanism) == (i < 3)
        assert summary["epsilon_spent"][i] <= 6.0
        assert summary["releases"][i] == made.steps
    models = np.stack([again.model(i) for i in range(4)])
    assert np.abs(models - models.mean(0)).max() < 0.2 * np.abs(models).max()


def test_a_site_that_has_released_more_than_is_counted_signs_nothing(consortium):
    c = ended(consortium)
    made = amended(c, amend.Changes(releases=1, settings=["privacy.epsilon=8.0"]))
    with pytest.raises(Refused, match=rf"counts {c.ledger(2).charged} releases of study"):
        amend.close(made, 2, c.out(2))
    with pytest.raises(Refused, match=r"(?s)does not hold this site's ledger of study.*--lost cork"):
        amend.close(made, 2, c.folder / "nothing")


CHANGED = {
    "the relation": ({"set": ["privacy.relation=replace-one"]}, "privacy.relation is 'replace-one'"),
    "the model": ({"set": ["model.name=mlp"]}, "model is"),
    "a seed": ({"set": ["seed=1"]}, "a seed is True"),
    "the budget": ({"set": ["privacy.epsilon=0.01"]}, "earlier runs on these records have spent"),
}


@pytest.mark.parametrize("what", CHANGED)
def test_what_could_not_be_counted_together_is_refused(three, what):
    options, words = CHANGED[what]
    with pytest.raises(Refused, match=words):
        amended_by_hand(three, settings=options["set"])


def amended_by_hand(c, *, settings=(), **values):
    """Propose a successor of a study that nobody has run."""
    told = {
        "study": c.agreement.values, "signatures": [c.agreement.sign(site) for site in c.sites],
        "nodes": [0, 1, 2], "releases": [3, 3, 3], "revoked": [], "starts_from_model": False,
    }  # fmt: skip
    continues = Continues.model_validate(told | values)
    cards = [site.card for site in c.sites]
    config = configs.parse(c.agreement.config.model_dump(), ["privacy.epsilon=5.0", "privacy.sigma=", *settings])
    like = data.load(str(c.files[0]), classes=10)
    return propose(config, cards, like, name="next", limits=c.agreement.limits, continues=continues)


def test_what_a_graphics_card_rounds_by_counts_in_the_ended_run(three):
    """Its sites may have clipped with TF32, whatever the new run is made on."""
    made = amended_by_hand(three, settings=["privacy.epsilon=9.0"])
    mechanism = made.spec(data.load(str(three.files[0]), classes=10), 0).protection.mechanisms[0]
    ((earlier, _),) = mechanism.earlier
    assert earlier.kappa >= 2.0**-8 > mechanism.kappa


TRUSTED = {  # of the new run: what is trusted, whose key is new, and how many of the ended run are honest by it
    "all": ("pairwise", 4, (), 3),
    "fewer": ("pairwise", 2, (), 2),
    "nobody": ("independent", None, (), 1),
    "all, one of whom is new": ("pairwise", 4, (3,), 3),
    "three, one of whom is new": ("pairwise", 3, (3,), 2),
}


@pytest.mark.parametrize("what", TRUSTED)
def test_the_ended_run_is_counted_by_the_trust_that_the_new_run_names(tmp_path, what):
    """Of the sites that the new run takes to be honest, those that it has added were not in the ended run."""
    noise, honest, added, implied = TRUSTED[what]
    c = Consortium.make(tmp_path / "c", sizes=[90] * 4, **PAIRED)
    trusted = [f"privacy.noise={noise}", f"privacy.honest={honest or ''}", "privacy.epsilon=22.0"]
    trusted += [] if honest else ["privacy.pair_ratio="]
    for i in added:
        c.sites[i] = Site.create(tmp_path / f"home-{i}", c.sites[i].name, address=c.sites[i].card.address)
    nodes = [None if i in added else i for i in range(4)]
    made = amended_by_hand(
        c, settings=trusted, nodes=nodes, releases=[0 if i in added else 3 for i in range(4)],
        signatures=[c.agreement.sign(Site(c.folder / f"home-{name}")) for name in ("aachen", "basel", "cork", "delft")],
    )  # fmt: skip
    noise = PairwiseCovariance(tuple(c.agreement.shared_noise.own), c.agreement.shared_noise.pair)
    mechanism = made.spec(data.load(str(c.files[0]), classes=10), 0).protection.mechanisms[0]
    ((earlier, count),) = mechanism.earlier
    assert (earlier.honest, earlier.sigma, count) == (implied, noise.effective(implied)[0], 3)
    assert (f"if {implied} of its 4 sites" in continuing.counted_lines(made)[0]) == (implied > 1)


FORGED = {
    "another one's signature": ({"signatures": None}, "has no right signature of aachen"),
    "a site that is counted as new": ({"nodes": [None, 1, 2], "releases": [0, 3, 3]}, "was node 0"),
    "a site counted as another": ({"nodes": [1, 0, 2]}, "was node 0"),
    "more releases than steps": ({"releases": [3, 3, 99]}, "of a run of 20 steps"),
    "a key of nobody": ({"revoked": ["0" * 64]}, "keys of nobody"),
    "a revoked key": ({"revoked": [0]}, "a revoked key of aachen is used again"),
}


@pytest.mark.parametrize("what", FORGED)
def test_a_study_that_counts_sites_as_others_is_refused(three, what):
    values, words = FORGED[what]
    if "signatures" in values:
        other = three.agreement.sign(three.sites[1])
        values = {"signatures": [other, other, three.agreement.sign(three.sites[2])]}
    if values.get("revoked") == [0]:
        values = {"revoked": [three.sites[0].card.identity]}
    with pytest.raises(Refused, match=words):
        amended_by_hand(three, **values)


def test_keys_that_were_revoked_later_count_in_all_runs_before(three):
    """Of three runs in a row the first one counts the keys that the last study revokes."""
    shared = [{"own": [1.0, 1.0, 1.0], "pair": 4.0}]
    first = three.agreement.values | {
        "config": configs.parse(
            three.agreement.config.model_dump() | {"privacy": three.agreement.config.privacy.model_dump()},
            ["privacy.noise=pairwise", "privacy.honest=3"],
        ).shared(),
        "shared_noise": shared[0],
    }  # fmt: skip
    cards = [card["identity"] for card in first["roster"]]

    def after(study, revoked):
        told = {
            "study": study, "signatures": ["0" * 128] * 3, "nodes": [0, 1, 2], "releases": [2, 2, 2],
            "revoked": revoked, "starts_from_model": False,
        }  # fmt: skip
        return first | {"continues": told}

    last = Study.of(after(after(first, [cards[2]]), [cards[1]]), "last")
    assert [[one.honest for one in continuing.phases(last, node)] for node in range(3)] == [[1, 2], [1, 1], [1, 2]]
