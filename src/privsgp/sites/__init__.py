"""Learning between organisations: identities, an agreement that all sign, and messages over networks nobody owns.

identity.py: keys and cards. agreement.py, policy.py: what is signed, and what a site allows. frames.py: a message on
the wire and what is checked at the border. mailbox.py: the newest messages of each link. members.py: who is there.
server.py, client.py: gRPC with mutual TLS. transport.py, trainer.py: the same Trainer, which commits a step before it
is sent. join.py: a site's part in a run.
"""
