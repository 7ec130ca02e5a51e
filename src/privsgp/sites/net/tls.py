"""gRPC as sites use it: TLS 1.3 only, and quiet.

gRPC for Python has no setting for the lowest version of TLS. Its list of ciphers is for TLS 1.2 alone. So this module
allows one cipher there that needs a key shared in advance, which no site has: a handshake in TLS 1.2 always fails.
"""

import os
import sys

from privsgp.errors import Refused

_UNUSABLE = "ECDHE-PSK-CHACHA20-POLY1305"
if "grpc" in sys.modules and os.environ.get("GRPC_SSL_CIPHER_SUITES") != _UNUSABLE:  # gRPC has read its settings
    raise Refused(
        "grpc was imported before privsgp.sites: it would accept TLS 1.2", "import privsgp.sites.net.tls first"
    )
os.environ["GRPC_SSL_CIPHER_SUITES"] = _UNUSABLE
os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # privsgp reports failures in its own words

try:
    import grpc
except ImportError as missing:
    raise Refused("sites need grpcio, which is not installed", "pip install 'privsgp[sites]'") from missing

__all__ = ["grpc"]
