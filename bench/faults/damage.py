"""Files of every format, damaged at random places: each is read, or refused in a sentence."""

from __future__ import annotations

import itertools
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

from kills import Servers

LONGEST = 60.0
"""Seconds for a command, or for some that take little time."""
AT_ONCE = 20
"""How many files one process reads, of those with one format."""


def flip(data: bytearray, at: int, drawn: random.Random) -> bytes:
    """One bit is another one."""
    data[at] ^= 1 << drawn.randrange(8)
    return bytes(data)


def overwrite(data: bytearray, at: int, drawn: random.Random) -> bytes:
    """Up to 64 bytes are others."""
    noise = drawn.randbytes(drawn.randrange(1, 65))
    data[at : at + len(noise)] = noise
    return bytes(data)


def zero(data: bytearray, at: int, drawn: random.Random) -> bytes:
    """A block is empty, as after a power failure."""
    size = min(4096, len(data) - at)
    data[at : at + size] = bytes(size)
    return bytes(data)


def cut(data: bytearray, at: int, drawn: random.Random) -> bytes:
    """The end is missing."""
    return bytes(data[:at])


def repeat(data: bytearray, at: int, drawn: random.Random) -> bytes:
    """A part is there twice."""
    return bytes(data[: at + 100] + data[at:])


DAMAGES: tuple[Callable[[bytearray, int, random.Random], bytes], ...] = (flip, overwrite, zero, cut, repeat)


def damage_formats(count: int, folder: Path, servers: Servers) -> tuple[Any, Any]:
    """Damage each format ``count`` times, and read it as ``reverie data validate`` does."""
    import formats  # of tests/support

    for name, form in formats.FORMATS.items():
        (folder / name).mkdir()
        form.write(folder / name)

    def some(case: tuple[int, str]) -> list[dict[str, Any]]:
        begin, name = case
        whole, places = folder / name, folder / f"damaged {begin} {name}"
        (first, *others) = whole.iterdir()
        numbers = range(begin, min(begin + AT_ONCE, count))
        facts = [damage(whole, places / str(number), random.Random(f"{name} {number}")) for number in numbers]
        targets = [places / str(number) / ("" if others else first.name) for number in numbers]
        done = servers.call_each([["data", "validate", str(target)] for target in targets], places / "out.txt", LONGEST)
        shutil.rmtree(places)
        return [{"of": name, **fact, **judged(*ended)} for fact, ended in zip(facts, done, strict=True)]

    return list(itertools.product(range(0, count, AT_ONCE), formats.FORMATS)), some


def damage_agents(run: Path, count: int, folder: Path, servers: Servers) -> tuple[Any, Any]:
    """Damage the files of a run, and load it as ``reverie info`` and ``eval`` do."""

    def one(case: tuple[int, str]) -> dict[str, Any]:
        number, command = case
        damaged = folder / f"damaged-{number}-{command}"
        facts = damage(run, damaged, random.Random(f"{command} {number}"))
        words = [command, str(damaged), *(("--episodes", "1") if command == "eval" else ())]
        done = servers.call(words, damaged.with_suffix(".txt"), longest=LONGEST)
        shutil.rmtree(damaged)
        return {"of": command, **facts, **judged(done.returncode, done.stdout)}

    return list(itertools.product(range(count), ("info", "eval"))), one


def damage(whole: Path, damaged: Path, drawn: random.Random) -> dict[str, Any]:
    """Copy a folder, with damage to one of its files; say which."""
    shutil.copytree(whole, damaged)
    file = drawn.choice(sorted(file for file in damaged.rglob("*") if file.is_file() and file.stat().st_size))
    data, how = bytearray(file.read_bytes()), drawn.choice(DAMAGES)
    file.write_bytes(how(data, drawn.randrange(len(data)), drawn))
    return {"file": file.relative_to(damaged).as_posix(), "damage": how.__name__}


def judged(code: int, said: str) -> dict[str, Any]:
    """Whether a command read the files or said in a sentence why not."""
    same = code in (0, 1) and "Traceback" not in said
    return {"same": same, **({} if same else {"code": code, "said": said[-1500:]})}
