"""The secret of a job: from a file that only its owner may read, or from the environment."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import stat
from pathlib import Path

from starprof.errors import TransportError
from starprof.model import env

MIN_SECRET_BYTES = 8
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def secret_of(token_file: str | os.PathLike[str] | None) -> bytes:
    """The secret in a file, or else in STARPROF_TOKEN.

    Raises:
        TransportError: there is none, it is too short, or others may read the file.
    """
    text = os.environ.get(env.TOKEN, "")
    if token_file:
        try:
            with Path(token_file).open() as file:
                if os.fstat(file.fileno()).st_mode & _OTHERS:
                    raise TransportError(f"others may read the secret in {token_file}: chmod 600 {token_file}")
                text = file.read(1 << 16)
        except (OSError, UnicodeDecodeError) as error:
            raise TransportError(f"the secret in {token_file} can't be read: {error}") from error
    secret = text.strip().encode()
    if len(secret) < MIN_SECRET_BYTES:
        raise TransportError(f"the secret is too short: use at least {MIN_SECRET_BYTES} characters, random ones")
    return secret


def reader_token(secret: bytes) -> str:
    """What allows to read metrics of jobs with this secret, and nothing else: the secret can't be got from it."""
    return hmac.digest(secret, b"starprof metrics reader", hashlib.sha256).hex()


def is_loopback(host: str) -> bool:
    """Whether an address is of this machine only; names but `localhost` are not trusted to be."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
