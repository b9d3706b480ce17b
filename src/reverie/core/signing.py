"""Signatures of this user's files, to distinguish untrusted pickles: HMAC-SHA256 with the user's own key."""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
from collections.abc import Iterable

from reverie.core.files import user_folder

KEY_BYTES = 32


def sign(parts: Iterable[bytes]) -> str:
    """Return the signature of a file's ``parts``; "" if the user has no writable home."""
    if (key := _key()) is None:
        return ""
    signed = hmac.new(key, digestmod="sha256")
    for part in parts:
        signed.update(len(part).to_bytes(8, "little") + part)
    return signed.hexdigest()


def is_mine(parts: Iterable[bytes], claimed: str) -> bool:
    """Return whether ``claimed`` is this user's signature of ``parts``."""
    expected = sign(parts)
    return bool(expected) and hmac.compare_digest(expected, claimed)


def _key() -> bytes | None:
    """Return the user's key, created on first use by the first of several processes."""
    folder = user_folder("XDG_STATE_HOME", "~/.local/state")
    if folder is None:
        return None
    path, new = folder / "key", folder / f"key.{os.getpid()}"
    with contextlib.suppress(OSError):
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            # of mode 0o600 from the first moment
            with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(secrets.token_bytes(KEY_BYTES))
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(FileExistsError):
                os.link(new, path)
            new.unlink()
        key = path.read_bytes()
        return key if len(key) == KEY_BYTES else None
    return None
