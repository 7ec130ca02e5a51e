"""A run folder that is put back by a few steps is noticed by the site itself, whoever else is there."""

from __future__ import annotations

import shutil

from privsgp.sites.agreement import Limits


def test_a_folder_alone_that_was_put_back_by_a_few_steps_makes_none_again(consortium):
    c = consortium(limits=Limits(deadline=1.0, staleness=40), algorithm={"steps": 400})
    c.start()
    c.until_step(1, 3)
    for i in (1, 2):
        assert c.ask_to_stop(i) == 130
        shutil.copytree(c.out(i), c.folder / f"copy-{i}")
    c.start(1, 2)
    c.until_step(1, 9)
    for i in range(3):
        c.kill(i)
    for i in (1, 2):
        shutil.rmtree(c.out(i))
        shutil.copytree(c.folder / f"copy-{i}", c.out(i))
    messages = c.sent(1)
    c.start(1, 2)  # aachen, which could tell, is away; cork was put back too, or lies
    c.processes[1].join(15)
    assert c.processes[1].exitcode == 2, c.log(1)
    assert c.sent(1) == messages
