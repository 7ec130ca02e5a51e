"""Learning between organisations: identities, an agreement that all sign, and messages over networks nobody owns.

identity.py: keys and cards. agreement.py: what is signed, and whether a site's policy allows it. protocol/: state
machines without connections. net/: gRPC with mutual TLS. transport.py, trainer.py: the same Trainer, which commits a
step before its messages leave. run.py: a site's part in a run, wired in one function.
"""
