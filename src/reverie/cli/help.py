"""The screen of ``reverie train ALGORITHM --help``; ``reverie help TOPIC``; ``reverie completion``."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import io
import re
import shutil
import sys
import textwrap
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import docstring_parser
from tyro.conf import Positional, arg

from reverie.algos.table import algorithm_config, algorithms
from reverie.cli.main import COMMANDS, main
from reverie.cli.parsing import dataclass_flags
from reverie.cli.train_options import CommonOptions
from reverie.core.config import Choice
from reverie.core.errors import ConfigError
from reverie.core.logger import wrap_words
from reverie.experiment.config import DEFAULT_REPLAY_RATIO, ExperimentConfig
from reverie.experiment.presets import TABLE
from reverie.replay.sources import experience_from_fraction

FLAG_GROUPS = {
    "Run": "env envs steps updates seed seeds run resume init-from preset config device",
    "Learning": "size algo.networks.units replay-ratio train-ratio learning-starts random-steps replay.capacity "
    "algo.batch-size algo.batch-length algo.lr algo.optim.lr algo.actor-lr algo.critic-lr algo.value-lr "
    "algo.temperature-lr algo.discriminator-lr algo.discount algo.discount-horizon algo.horizon algo.value-estimator "
    "algo.exploration",
    "Recorded data": "data experience",
    "Evaluation and logs": "eval-episodes schedule.eval-every schedule.log-every schedule.save-every tensorboard wandb "
    "mlflow",
}
"""Flags by group. Flags that the algorithm does not have are omitted."""

COLLECTING = {"envs", "steps", "replay-ratio", "train-ratio", "learning-starts", "random-steps", "replay.capacity"}
"""Flags without effect in an offline run."""


def help_screen(options: CommonOptions, config: ExperimentConfig, *, has_algorithm: bool) -> str:
    """Return the help for the algorithm and the environment in ``options``: one screen.

    ``config``: their settings without other flags. ``has_algorithm``: whether the user named the algorithm.
    """
    is_offline, required = _required_flags(options, config)
    name = options.algorithm if has_algorithm else "ALGORITHM"
    lines = [f"usage: reverie train {name} {' '.join(required)} [OPTIONS]"]
    if not has_algorithm:
        lines += textwrap.wrap(f"Algorithms: {', '.join(algorithms())}", width(), subsequent_indent="  ")
    remark = "" if options.env or options.data else f" They may differ elsewhere: add {required[0]}."
    lines += [f"Values of {options.algorithm} {'for recorded data' if is_offline else f'for {config.env.id}'}.{remark}"]
    shown = _shown_settings(options, config, required, is_offline=is_offline)
    for title, flags in FLAG_GROUPS.items():
        lines += ["", title, *(row(flag, *shown[flag]) for flag in flags.split() if flag in shown)]
    count = len([*dataclass_flags(config)])
    lines += ["", f"All {count} options, each with its description: reverie train {name} --help-all"]
    return "\n".join(lines)


def width() -> int:
    """Return the number of columns of a screen."""
    return min(100, shutil.get_terminal_size().columns)


def _required_flags(options: CommonOptions, config: ExperimentConfig) -> tuple[bool, list[str]]:
    """Return whether the run is offline, and the required flags for data and environment."""
    needs_env, is_offline = False, config.offline or (config.algo.needs_data and not options.env)
    try:
        config.algo.check_data(recorded=True, collected=False)
    except ConfigError:
        needs_env, is_offline = True, False
    required = ["--env ID"] if needs_env or not config.algo.needs_data else []
    return is_offline, [*required, "--data PATH"] if config.algo.needs_data else required


def row(flag: str, value: Any, description: str) -> str:
    """Return a line with a flag, its value, and as many clauses of its description's first sentence as fit."""
    start = f"  {f'--{flag}':<24} {textwrap.shorten(format_flag_value(value), width() - 28, placeholder=' ...'):<12} "
    room = width() - len(start)
    sentence = " ".join(description.split()).partition(". ")[0].removesuffix(".")
    meaning = textwrap.shorten(sentence, room, placeholder="") if room > 20 else ""
    clauses = meaning if meaning == sentence else re.split("(?<=...)[,;:](?= [^,;:]*$|$)", meaning)[0]
    return (start + clauses).rstrip()


def _shown_settings(
    options: CommonOptions, config: ExperimentConfig, required: list[str], *, is_offline: bool
) -> dict[str, tuple[Any, str]]:
    """Return value and description of each flag that has an effect.

    ``is_offline``: the run learns from a dataset alone.
    """
    settings = {flag: setting(config, flag) for flag in dataclass_flags(config)}
    settings |= {name: setting(options, name) for name in ("env", "envs", "data", "seeds", "run", "resume", "config")}
    values = {"envs": config.env.num, "experience": experience_from_fraction(config.offline_fraction)}
    for name, metavar in (("env", "ID"), ("data", "PATH")):
        values[name] = getattr(options, name) or ("required" if f"--{name} {metavar}" in required else None)
    if hasattr(sys.modules[type(config.algo).__module__], "SIZES"):
        settings["size"] = setting(options, "size")
    del settings["train-ratio" if config.train_ratio is None else "replay-ratio"]
    if config.train_ratio is None and config.replay_ratio is None:
        values["replay-ratio"] = DEFAULT_REPLAY_RATIO
    settings |= {name: (value, settings[name][1]) for name, value in values.items()}
    without = COLLECTING if is_offline else {"updates"}
    return {name: shown for name, shown in settings.items() if name not in without}


def setting(config: Any, path: str) -> tuple[Any, str]:
    """Return the value of the setting at a ``path``, and its description, which is "" if there is no such setting."""
    *parts, name = path.replace("-", "_").split(".")
    parent = functools.reduce(lambda value, part: getattr(value, part, None), parts, config)
    kind: Any = type(parent)
    return getattr(parent, name, None), field_docs(kind).get(name, "")


def format_flag_value(value: Any) -> str:
    """Format a value as the user would type it; "-" for None."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "-"
    text = value.to_text() if isinstance(value, Choice) else f"{value:g}" if isinstance(value, float) else str(value)
    return "-" if value is None or not text else text


def help_command(args: list[str]) -> int:
    """Run ``reverie help TOPIC``."""
    topic = args[0].removeprefix("--") if args else "help"
    name = topic.replace("-", "_")
    if topic == "help":
        print("usage: reverie help TOPIC\n")
        print("A command, an algorithm or a preset (`reverie list`), or a setting with its")
        print("path, such as replay.capacity or algo.lr.")
        return 0
    if topic in COMMANDS:
        return main([topic, "--help"])
    if name in algorithms():
        lines = _about_algorithm(name)
    elif name in TABLE:
        preset = TABLE[name]
        lines = [preset.description, "", f"reverie train {preset.algorithm} --preset {name}", ""]
        lines += [f"  {key:<28} {format_flag_value(value)}" for key, value in preset.settings.items()]
    else:
        lines = _about_setting(name)
    print(wrap_words("\n".join(lines)))
    return 0


def _about_algorithm(name: str) -> list[str]:
    """Return the description of an algorithm, and a command to train with it."""
    kind = algorithm_config(name)
    text = inspect.cleandoc(importlib.import_module(kind.__module__).__doc__ or "")
    kinds = ", ".join(sorted(getattr(kind, "action_kinds", ())))
    lines = [text, "", inspect.cleandoc(kind.__doc__ or ""), "", f"Actions: {kinds}".replace("_", "-")]
    return [*lines, f"Settings: reverie train {name} --help, or --help-all for each with its description"]


def _about_setting(name: str) -> list[str]:
    """Return description and default of a setting, by the algorithms that have it."""
    names_by_text: dict[str, list[str]] = {}
    for algorithm in algorithms() if name.startswith("algo.") else ("",):
        value, text = setting(
            ExperimentConfig().merge({"algo": algorithm_config(algorithm)()} if algorithm else {}), name
        )
        if text:
            names_by_text.setdefault(f"{format_flag_value(value)}\n{text}", []).append(algorithm)
    if not names_by_text:
        raise ConfigError(
            f"unknown topic '{name}'. Expected a command, an algorithm or a preset (`reverie list`), or a setting "
            "with its path, such as replay.capacity or algo.lr."
        )
    lines = []
    for description, names in names_by_text.items():
        value, _, text = description.partition("\n")
        of = f" of {', '.join(names)}" if names[0] else ""
        lines += [f"--{name.replace('_', '-')}, default {value}{of}", textwrap.indent(text, "  ")]
    return lines


@functools.cache
def field_docs(kind: type) -> dict[str, str]:
    """Return the docstrings below the fields of a dataclass, those of its bases too."""
    classes = [cls for cls in reversed(kind.__mro__) if cls.__module__.startswith("reverie.")]
    params = (param for cls in classes for param in docstring_parser.parse_from_object(cls).params)
    return {param.arg_name: inspect.cleandoc(param.description or "") for param in params}


COMPLETION_SCRIPTS = {
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
"""The scripts that use the words; without a match, file names are completed."""


@dataclass(frozen=True, kw_only=True)
class CompletionCommand:
    """Print a script with which a shell completes commands, algorithms, options and topics.

    Save it to a file that the shell loads at startup. It contains the algorithms of this version.
    """

    shell: Annotated[Positional[Literal["bash", "zsh", "fish"]], arg(metavar="SHELL")]
    """bash, zsh (after compinit) or fish."""

    def __call__(self) -> None:
        words = [(typed, " ".join(choices)) for typed, choices in _complete_words().items()]
        if self.shell == "fish":
            lines = [f"complete -c reverie -n '_reverie_after \"{typed}\"' -a '{choices}'" for typed, choices in words]
        else:
            name = {False: "$1", True: "$1 $2"}
            lines = [f'case "{name[" " in typed]}" in "{typed}") echo {choices} ;; esac' for typed, choices in words]
            lines = ["_reverie_words() {", *lines, "}"]
        print("\n".join([*lines, COMPLETION_SCRIPTS[self.shell]]))


def _complete_words() -> dict[str, list[str]]:
    """Return the completions after the first word, or the first two words, of a command line."""
    completions = {"": [*COMMANDS, "--help", "--version"], "help": [*COMMANDS, *algorithms(), *TABLE]}
    completions |= {name: _parse_help(name) for name in COMMANDS if name not in ("train", "help")}
    completions |= {f"data {name}": _parse_help("data", name) for name in completions["data"]}
    every = [*dataclass_flags(CommonOptions()), *dataclass_flags(ExperimentConfig()), "help", "help-all"]
    completions["train"] = [*algorithms(), *(f"--{flag}" for flag in every if not flag.startswith("algo."))]
    completions["tune"] = sorted({*completions["tune"], *completions["train"]})
    for name in algorithms():
        flags = dataclass_flags(ExperimentConfig().merge({"algo": algorithm_config(name)()}))
        algo_flags = [f"--{flag}" for flag in flags if flag.startswith("algo.")]
        completions |= {f"train {name}": algo_flags, f"tune {name}": algo_flags}
    return completions


def _parse_help(*command: str) -> list[str]:
    """Return the subcommands or values, in braces, and the options that the help of a command names."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        main([*command, "--help"])
    usage, _, text = output.getvalue().partition("\n")
    options = re.findall(r"^[│ ] (?:-h, )?(--[\w.-]+)(?:, (--[\w.-]+))?", text, re.MULTILINE)
    return [name for name in (*"".join(re.findall(r"{(.+)}", usage)).split(","), *sum(options, ())) if name]
