"""The certificate that the tests' servers show, and the authority that vouches for it."""

from __future__ import annotations

import ssl
from pathlib import Path

_FOLDER = Path(__file__).parent
AUTHORITY_FILE = _FOLDER / "authority.pem"


def server_context() -> ssl.SSLContext:
    """Returns a TLS context for a server on localhost."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(_FOLDER / "server.pem")
    return context
