"""``reverie completion``: a script for the shell. It holds all words, so that completing takes no time."""

from __future__ import annotations

import contextlib
import io
import re
from dataclasses import dataclass
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from reverie.cli.main import COMMANDS, main
from reverie.cli.options import Common
from reverie.cli.parse import flags_of, parse
from reverie.core.discover import algorithm_config, algorithms
from reverie.experiment.config import ExperimentConfig
from reverie.experiment.registry import TABLE

ENDS = {
    "bash": """_reverie() {
    set -- "${COMP_WORDS[@]:1:COMP_CWORD-1}"
    COMPREPLY=($(compgen -W "$(_reverie_words "$1" "$2")" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _reverie reverie""",
    "zsh": """_reverie() {
    local -a typed=("${(@)words[2,CURRENT-1]}")
    compadd -- $(_reverie_words "$typed[1]" "$typed[2]") || _files
}
compdef _reverie reverie""",
    "fish": """function _reverie_after
    set -l typed (commandline -opc)[2..]
    string match -q -- "$argv *" "$typed "
end""",
}
"""What uses the words; without a match, names of files are completed."""


@dataclass(frozen=True, kw_only=True)
class CompletionCommand:
    """Print a script by which a shell completes commands, algorithms, options and topics.

    Write it to a file that the shell reads when it starts. It knows the algorithms of this version.
    """

    shell: Annotated[Positional[Literal["bash", "zsh", "fish"]], arg(metavar="SHELL")]
    """bash, zsh (after compinit) or fish."""


def completion_command(args: list[str]) -> int:
    """Run ``reverie completion``."""
    shell = parse(CompletionCommand, args, "completion").shell
    words = {typed: " ".join(found) for typed, found in words_after().items()}
    if shell == "fish":
        lines = [f"complete -c reverie -n '_reverie_after \"{typed}\"' -a '{found}'" for typed, found in words.items()]
    else:
        name = {False: "$1", True: "$1 $2"}
        lines = [f'case "{name[" " in typed]}" in "{typed}") echo {found} ;; esac' for typed, found in words.items()]
        lines = ["_reverie_words() {", *lines, "}"]
    print("\n".join([*lines, ENDS[shell]]))
    return 0


def words_after() -> dict[str, list[str]]:
    """Return what may follow the first word, or the first two, of a command line; both together count."""
    found = {"": [*COMMANDS, "--help", "--version"], "help": [*COMMANDS, *algorithms(), *TABLE]}
    found |= {name: in_help(name) for name in COMMANDS if name not in ("train", "help")}
    found |= {f"data {name}": in_help("data", name) for name in found["data"]}
    every = [*flags_of(Common()), *flags_of(ExperimentConfig()), "help", "help-all"]
    found["train"] = [*algorithms(), *(f"--{flag}" for flag in every if not flag.startswith("algo."))]
    found["tune"] = sorted({*found["tune"], *found["train"]})
    for name in algorithms():
        flags = flags_of(ExperimentConfig().merge({"algo": algorithm_config(name)()}))
        own = [f"--{flag}" for flag in flags if flag.startswith("algo.")]
        found |= {f"train {name}": own, f"tune {name}": own}
    return found


def in_help(*command: str) -> list[str]:
    """Return the subcommands or values, in braces, and the options that the help of a command names."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        main([*command, "--help"])
    usage, _, text = said.getvalue().partition("\n")
    options = re.findall(r"^[│ ] (?:-h, )?(--[\w.-]+)(?:, (--[\w.-]+))?", text, re.MULTILINE)
    return [word for word in (*"".join(re.findall(r"{(.+)}", usage)).split(","), *sum(options, ())) if word]
