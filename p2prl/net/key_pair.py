"""A CURVE key pair in memory: all that a process needs which is given its own. keys.py keeps them on disk."""

from __future__ import annotations

from dataclasses import dataclass, field

import zmq


@dataclass(frozen=True)
class KeyPair:
    """A CURVE key pair, in Z85 (40 characters each). The secret is kept out of `repr`, and so out of logs."""

    public: str
    secret: str = field(repr=False)


def new_key_pair() -> KeyPair:
    """A fresh key pair that is written nowhere."""
    public, secret = zmq.curve_keypair()
    return KeyPair(public.decode("ascii"), secret.decode("ascii"))
