"""Three sites, three processes: undisturbed, killed and restarted, closed, leaving, restored from a backup."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from consortium import PATIENCE, copied
from oracle import flat, lockstep, replayed
from safetensors.numpy import load_file

from privsgp.sites.run import leave
from privsgp.sites.study import Limits
from runs import command, unwrapped


@pytest.mark.parametrize(("algorithm", "local", "bits"), [("privsgp", 1, 32), ("privsgp-vr", 4, 4)])
def test_undisturbed_a_run_of_sites_is_the_simulated_one_to_the_last_bit(consortium, algorithm, local, bits):
    c = consortium(seed=3, closed=(2,), algorithm={"name": algorithm, "local_steps": local}, transport={"bits": bits})
    c.start()
    summaries = c.end()
    z, w = lockstep(c)
    for i, summary in enumerate(summaries):
        assert summary["releases"][i] == 20 == c.ledger(i).charged == c.sent(i)
        np.testing.assert_array_equal(c.model(i), z[i])
        assert summary["site"]["w"] == w[i]
        assert not c.audited(i)
        count, size = summary["site"]["messages"]["posted"], c.agreement.increment_bytes or c.agreement.message_bytes
        # nothing was lost; the last may be on their way
        assert (count - 2) * size < summary["bytes_sent"] < 1.3 * count * (size + 300)
        assert {path.stat().st_mode & 0o777 for path in (c.out(i) / "private").iterdir()} == {0o600}


@pytest.mark.parametrize(("algorithm", "local", "bits"), [("privsgp", 1, 32), ("privsgp-sag", 4, 4)])
def test_killed_and_restarted_nobody_is_charged_twice_and_a_replay_gives_the_same_bytes(
    consortium, algorithm, local, bits
):
    c = consortium(
        seed=11,
        limits=Limits(deadline=1.0, staleness=6 * local),  # the others go on while one is away
        algorithm={"name": algorithm, "steps": 40, "final_mixing": 12, "local_steps": local},
        transport={"bits": bits},
    )
    c.start(loss=0.2, twice=0.07)
    c.until_step(1, 8)
    c.kill(1)
    ran = command("status", c.study, "--home", c.sites[1].home, "--out", c.out(1))
    assert (more := c.ledger(1).charged - c.sent(1)) > 0
    assert f"{c.sent(1)} of 40 sent, {more} more are reserved; without a budget" in unwrapped(ran.out)
    c.until_step(0, 12)
    c.start(1, loss=0.2, twice=0.07)
    summaries = c.end()
    z, w = replayed(c)
    for i, summary in enumerate(summaries):
        np.testing.assert_array_equal(c.model(i), z[i])
        assert summary["site"]["w"] == w[i]
    for i, summary in enumerate(summaries):
        assert summary["releases"][i] == 40 == c.ledger(i).charged == c.sent(i)
        assert summary["site"]["w"] > 0
        assert not c.audited(i)
    assert summaries[1]["site"]["incarnation"] == 2
    missed = [s["site"]["messages"]["missed"] for s in summaries]
    assert sum(missed) > 0  # something went wrong, and was made good
    models = np.stack([c.model(i) for i in range(3)])
    assert np.abs(models - models.mean(0)).max() < 0.05 * np.abs(models).max()


@pytest.mark.parametrize(("moments", "algorithm"), [(3, "privsgp"), (17, "privsgp-vr")])
def test_killed_at_any_moment_nothing_is_sent_that_was_not_committed_nor_charged_twice(consortium, moments, algorithm):
    """Two of the moments; `make test-faults` tries fifty."""
    killed_at(consortium, moments, algorithm)


def killed_at(consortium, moments, algorithm):
    c = consortium(
        limits=Limits(deadline=1.0, staleness=4), algorithm={"name": algorithm, "steps": 12, "final_mixing": 4}
    )
    c.start(0, 2)
    c.start(1, moments=moments)
    c.processes[1].join(PATIENCE)
    assert c.processes[1].exitcode == -9, c.log(1)
    c.start(1)
    for i, summary in enumerate(c.end()):
        assert summary["releases"][i] == 12 == c.ledger(i).charged == c.sent(i)
        assert summary["site"]["w"] > 0
        assert not c.audited(i)  # no equivocation: what was sent before is sent again as it was


@pytest.mark.parametrize("moments", [4, 11])
def test_a_full_disk_stops_a_site_before_it_sends_and_costs_nothing(consortium, moments):
    c = consortium(limits=Limits(deadline=1.0, staleness=4), algorithm={"steps": 8, "final_mixing": 2})
    c.start(0, 2)
    c.start(1, moments=moments, full=True)
    c.processes[1].join(PATIENCE)
    assert c.processes[1].exitcode in (1, 2), c.log(1)
    assert "No space left" in c.log(1)
    c.start(1)
    for i, summary in enumerate(c.end()):
        assert summary["releases"][i] == 8 == c.ledger(i).charged == c.sent(i)
        assert not c.audited(i)


@pytest.mark.slow
@pytest.mark.parametrize("moments", range(0, 100, 2))
def test_fifty_moments(consortium, moments):
    killed_at(consortium, moments, ("privsgp", "privsgp-vr", "privsgp-sag")[moments // 2 % 3])


@pytest.mark.slow
def test_two_sites_at_once_and_again(consortium):
    c = consortium(limits=Limits(deadline=1.0, staleness=6), algorithm={"steps": 60, "final_mixing": 12})
    c.start()
    for k in (5, 15, 25):
        c.until_step(0, k)
        for i in (1, 2):
            c.kill(i)
        c.start(1, 2)
    for i, summary in enumerate(c.end()):
        assert summary["releases"][i] == 60 == c.ledger(i).charged == c.sent(i)
        assert summary["site"]["w"] > 0


def test_an_older_copy_of_a_folder_does_not_go_on(consortium):
    c = consortium(seed=5, limits=Limits(deadline=1.0, staleness=4), algorithm={"steps": 400})
    c.start()
    c.until_step(1, 3)
    assert c.ask_to_stop(1) == 130
    shutil.copytree(c.out(1), c.folder / "copy")
    c.start(1)
    c.until_step(1, 9)
    assert c.ask_to_stop(1) == 130
    shutil.rmtree(c.out(1))
    shutil.copytree(c.folder / "copy", c.out(1))
    c.start(1)
    c.processes[1].join(PATIENCE)
    assert c.processes[1].exitcode == 2
    assert "older copy" in c.log(1)


def test_an_older_copy_of_all_that_a_site_has_is_noticed_by_peers_that_were_restarted_too(consortium):
    c = consortium(limits=Limits(deadline=1.0, staleness=4), algorithm={"steps": 400})
    home, state = c.sites[1].home, Path(os.environ["PRIVSGP_STATE"])
    c.start()
    c.until_step(1, 3)
    assert c.ask_to_stop(1) == 130
    kept = [(place, c.folder / f"copy-{at}") for at, place in enumerate((c.out(1), home, state)) if place.exists()]
    for place, copy in kept:
        copied(place, copy)
    c.start(1)
    c.until_step(1, 9)
    c.kill(1)
    for i in (0, 2):
        c.kill(i)
    for place, copy in kept:
        shutil.rmtree(place)
        shutil.copytree(copy, place)
    messages = c.sent(1)
    c.start(0, 1)  # cork stays away
    c.processes[1].join(PATIENCE)
    assert c.processes[1].exitcode == 2
    assert "older copy" in c.log(1)
    assert c.sent(1) == messages  # no step was made again
    assert [(line["kind"], line["peer"]) for line in c.audited(1)] == [("copy", "basel")]


def test_an_older_copy_that_went_on_unnoticed_is_noticed_when_an_honest_peer_comes_back(consortium):
    c = consortium(limits=Limits(deadline=1.0, staleness=40), algorithm={"steps": 400})
    c.start()
    c.until_step(1, 3)
    assert c.ask_to_stop(1) == 130
    places = [c.out(1), Path(os.environ["PRIVSGP_STATE"]), c.out(2)]
    shutil.copytree(c.out(1), c.folder / "copy")
    copied(places[1], c.folder / "copy-state")
    assert c.ask_to_stop(2) == 130
    shutil.copytree(c.out(2), c.folder / "forgets")
    c.start(1, 2)
    c.until_step(1, 9)
    for i in range(3):
        c.kill(i)
    for place, copy in zip(places, ("copy", "copy-state", "forgets"), strict=True):
        shutil.rmtree(place)
        shutil.copytree(c.folder / copy, place)
    c.start(1, 2)  # aachen, which could tell, is away; cork was put back too, or lies
    c.until_step(1, 14)
    assert "older copy" not in c.log(1)
    c.start(0)
    c.processes[1].join(PATIENCE)
    assert c.processes[1].exitcode == 2
    assert "this folder is an older copy" in c.log(1)


def test_a_site_leaves_for_good_and_a_third_of_the_messages_is_lost(consortium):
    c = consortium(limits=Limits(deadline=0.3, staleness=20), algorithm={"steps": 30, "final_mixing": 20})
    c.start(loss=0.3)
    c.until_step(2, 4)
    (c.out(2) / "private" / "leaving").touch()  # what `privsgp leave` does while the site is in the run
    c.processes[2].join(PATIENCE)
    assert c.processes[2].exitcode == 130, c.log(2)
    summaries = c.end(0, 1)
    for i, summary in enumerate(summaries):
        assert summary["site"]["messages"]["left"] == ["cork"]
        assert summary["releases"][i] == 30 == c.ledger(i).charged == c.sent(i)
        assert not c.audited(i)
    one, other = c.model(0), c.model(1)
    assert np.abs(one - other).max() < 0.05 * np.abs(one).max()
    assert c.ledger(2).charged == c.sent(2) < 30  # what it had not used was given back
    c.start(2)
    c.processes[2].join(PATIENCE)
    assert c.processes[2].exitcode == 2
    assert "left the run, and cannot join it again" in c.log(2)


def test_with_fewer_sites_left_than_agreed_on_nobody_goes_on(consortium):
    c = consortium(limits=Limits(deadline=0.3, staleness=20, fewest=3), algorithm={"steps": 3000})
    c.start()
    c.until_step(2, 4)
    (c.out(2) / "private" / "leaving").touch()
    c.processes[2].join(PATIENCE)
    for i in (0, 1):
        c.processes[i].join(PATIENCE)
        assert c.processes[i].exitcode == 2, c.log(i)
        assert "2 of at least 3 sites" in c.log(i)
        assert c.ledger(i).charged < 3000


@pytest.mark.parametrize("running", [True, False])
def test_who_leaves_takes_its_own_part_and_the_rest_agree_on_the_average_of_theirs(consortium, running):
    """While sites only mix, Σx and Σw stay what they are; what the one that left held is in its last commit."""
    c = consortium(
        seed=7, sizes=(60, 70, 80, 90), graph={"name": "ring"},
        algorithm={"name": "sgp", "steps": 6, "final_mixing": 120, "step_size": 2.0},
    )  # fmt: skip
    c.start()
    c.until_step(3, 6)
    if running:
        assert not leave(c.study, home=c.sites[3].home, out=c.out(3))  # the process in the run does
        c.processes[3].join(PATIENCE)
        assert c.processes[3].exitcode == 130, c.log(3)
    else:
        assert c.ask_to_stop(3) == 130
        assert leave(c.study, home=c.sites[3].home, out=c.out(3))
    ends = c.end(0, 1, 2)
    z, w = lockstep(c)  # nobody leaves there: its sums are those of the run until the goodbye
    held = load_file(c.out(3) / "private" / "checkpoint-3-3.safetensors")
    kept = 1 - float(held["memory.links.given"].sum())
    rest = sum(w) - kept * float(held["w"][0])
    np.testing.assert_allclose(sum(end["site"]["w"] for end in ends), rest, rtol=1e-12)
    own = flat(c, held["x"])[0] * kept
    right = (np.einsum("i,id->d", w, z) - own) / rest
    for i in range(3):
        np.testing.assert_allclose(c.model(i), right, atol=2e-6 * np.abs(right).max())
    returned = [line["returned"] for i in range(3) for line in c.steps(i).values() if line.get("returned")]
    assert [target for ((target, _),) in returned] in ([3], [3, 3])  # else there was nothing to check


def test_who_comes_back_after_all_have_finished_is_served_by_who_joins_again(consortium):
    c = consortium(limits=Limits(deadline=0.3), algorithm={"steps": 15, "final_mixing": 3}, privacy={"sigma": 0.001})
    c.start()
    c.until_step(1, 5)
    c.kill(1)
    c.end(0, 2)
    before = [c.summary(0), c.model(0).tobytes()]
    assert c.summary(0)["epsilon_spent"] == [None] * 3  # so little noise has no finite ε
    c.start(0)  # it has finished: it serves its last message again, and makes no step
    c.start(1)
    for i, summary in zip((0, 1), c.end(0, 1), strict=True):
        assert summary["releases"][i] == 15 == c.ledger(i).charged == c.sent(i)
    assert [c.summary(0), c.model(0).tobytes()] == before
    last = max(k for k, line in c.steps(0).items() if 1 in line["sent"])  # later ones knew that basel is not there
    assert any(step == last for taken in c.taken(1).values() for _, step in taken)
