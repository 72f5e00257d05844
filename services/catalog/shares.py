"""Shares of users that stay the same: who is in a share stays in it when it grows."""

from __future__ import annotations

import hashlib


def in_share(share: float, name: str, tenant: str, user_id: str) -> bool:
    """Says whether a user belongs to a share.

    Args:
        share: of all users, 0 to 1.
        name: of what is shared out; each name cuts the users anew.
        tenant: whose user it is.
        user_id: the user.
    """
    if share >= 1:
        return True
    key = "".join(f"{len(part)}:{part}" for part in (name, tenant, user_id))
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64
