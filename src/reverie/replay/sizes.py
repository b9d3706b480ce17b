"""Parsing sizes: a number of rows, or an amount of memory."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from reverie.core.errors import ConfigError

PREFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12,
            "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}  # fmt: skip
MOST = 10**18
EXAMPLES = "rows such as 1000000 or 5e6, or bytes such as 20GB or 512MiB"


@dataclass(frozen=True, slots=True)
class Size:
    """A number of rows or of bytes."""

    amount: int
    is_bytes: bool

    def rows(self, row_bytes: float) -> int:
        """Return this size in rows of ``row_bytes`` bytes, rounded down."""
        return int(self.amount // row_bytes) if self.is_bytes else self.amount


def parse_size(value: int | str, name: str) -> Size:
    """Return the size that ``value`` means: ``1000000``, ``5e6`` (rows), ``20GB``, ``512 MiB`` (powers of 1000, 1024).

    Raises:
        ConfigError: it is neither rows nor bytes, or less than 1. The message calls it ``name``.
    """
    text = str(value).strip().replace("_", "").lower()
    match = re.fullmatch(r"([0-9.]+(?:e[+]?[0-9]+)?)\s*([kmgt]?i?)(b?)", text)
    try:
        number = Decimal(match[1]) if match else Decimal(0)
    except InvalidOperation:
        number = Decimal(0)
    if match is None or match[2] not in PREFIXES or number <= 0 or number > MOST:
        raise ConfigError(f"{name} = {value!r}: expected {EXAMPLES}, at least 1.")
    if match[2] and not match[3]:
        raise ConfigError(f"{name} = {value!r}: rows or bytes? Expected {EXAMPLES}.")
    amount = number * PREFIXES[match[2]]
    if amount < 1 or (not match[3] and amount % 1):
        raise ConfigError(f"{name} = {value!r}: expected {EXAMPLES}, at least 1 and a whole number of rows.")
    return Size(int(amount), bool(match[3]))
