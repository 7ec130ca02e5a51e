"""A site gets another release of privsgp while a run goes on."""

from __future__ import annotations

from privsgp import __version__
from privsgp.sites.study import PROTOCOL, Limits


def test_a_site_is_upgraded_in_mid_run_and_one_with_another_protocol_is_refused(consortium):
    """The study and the other sites stay as they are; nobody is charged twice."""
    c = consortium(limits=Limits(deadline=1.0, staleness=6), algorithm={"steps": 30, "final_mixing": 4})
    c.start(0, 2)
    c.start(1, release="0.9.9")
    c.until_step(1, 5)
    assert c.ask_to_stop(1) == 130, c.log(1)
    sent = c.sent(1)
    c.start(1, release="2.0.0", protocol=PROTOCOL + 1)
    c.processes[1].join(60.0)
    assert c.processes[1].exitcode == 2, c.log(1)
    both = f"protocol {PROTOCOL} (privsgp {__version__}), and this site has protocol {PROTOCOL + 1} (privsgp 2.0.0)"
    assert both in c.log(1)
    assert c.sent(1) == sent
    c.start(1, release="1.9.9")
    for i, summary in enumerate(c.end()):
        assert summary["releases"][i] == 30 == c.ledger(i).charged == c.sent(i)
        assert not c.audited(i)
