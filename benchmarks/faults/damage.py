"""Files of every format, damaged at random places: each is read, or refused in a sentence."""

from __future__ import annotations

import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

from kills import serving

LONGEST_SECONDS = 60.0


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


def damage_formats(count: int, folder: Path) -> list[dict[str, Any]]:
    """Damage each format ``count`` times, and read it as ``reverie data validate`` does."""
    import formats  # of tests/support

    results = []
    with serving() as server:
        for name, form in formats.FORMATS.items():
            drawn, whole, out = random.Random(name), folder / "whole", folder / "out.txt"
            whole.mkdir()
            form.write(whole)
            (first, *others) = whole.iterdir()
            relative = Path() if others else first.relative_to(whole)
            files = sorted(file for file in whole.rglob("*") if file.is_file() and file.stat().st_size)
            for number in range(count):
                damaged = folder / "damaged"
                shutil.copytree(whole, damaged)
                file = damaged / drawn.choice(files).relative_to(whole)
                data = bytearray(file.read_bytes())
                damage = drawn.choice(DAMAGES)
                file.write_bytes(damage(data, drawn.randrange(len(data)), drawn))
                done = server.call(["data", "validate", str(damaged / relative)], out, LONGEST_SECONDS)
                facts = {"format": name, "file": file.name, "number": number, "damage": damage.__name__}
                facts["same"] = done.returncode in (0, 1) and "Traceback" not in done.stdout
                results.append(
                    facts if facts["same"] else {**facts, "code": done.returncode, "said": done.stdout[-1500:]}
                )
                shutil.rmtree(damaged)
            shutil.rmtree(whole)
    return results


def damage_agents(run: Path, count: int, folder: Path) -> list[dict[str, Any]]:
    """Damage the files of a run, and of an agent in one file, and load it as ``reverie info`` and ``eval`` do."""
    results, drawn, out = [], random.Random(3), folder / "out.txt"
    files = sorted(file for file in run.rglob("*") if file.is_file() and file.stat().st_size)
    with serving() as server:
        for number in range(count):
            damaged = folder / "damaged"
            shutil.copytree(run, damaged)
            file = damaged / files[number % len(files)].relative_to(run)
            data, damage = bytearray(file.read_bytes()), drawn.choice(DAMAGES)
            file.write_bytes(damage(data, drawn.randrange(len(data)), drawn))
            command = (["info"], ["eval", "--episodes", "1"])[number // len(files) % 2]
            done = server.call([command[0], str(damaged), *command[1:]], out, LONGEST_SECONDS)
            facts = {"file": file.relative_to(damaged).as_posix(), "damage": damage.__name__, "command": command[0]}
            facts["same"] = done.returncode in (0, 1) and "Traceback" not in done.stdout
            results.append(facts if facts["same"] else {**facts, "code": done.returncode, "said": done.stdout[-1500:]})
            shutil.rmtree(damaged)
    return results
