"""The screen of ``reverie train ALGORITHM --help``; ``reverie help TOPIC``; ``reverie completion``."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import textwrap
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from reverie.algos.table import algorithm_config, algorithms
from reverie.cli.check import CheckEnvCommand
from reverie.cli.data import COMMANDS as DATA_COMMANDS
from reverie.cli.main import COMMANDS, load_command, main
from reverie.cli.parsing import Positional, format_flag_value, iter_options, width
from reverie.cli.train_options import CommonOptions, TuneOptions
from reverie.core.errors import ConfigError
from reverie.core.foreign_names import synonyms_of
from reverie.core.logger import wrap_words
from reverie.core.terminal import show
from reverie.experiment.config import DEFAULT_REPLAY_RATIO, REPLAY_SETTINGS, ExperimentConfig
from reverie.experiment.presets import TABLE
from reverie.replay.config import experience_from_fraction

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

    ``config``: the settings, flags included. ``has_algorithm``: whether the user named the algorithm.
    """
    is_offline, required = _required_flags(options, config)
    name = options.algorithm if has_algorithm else "ALGORITHM"
    lines = [f"usage: reverie train {name} {' '.join(required)} [OPTIONS]"]
    if not has_algorithm:
        lines += textwrap.wrap(f"Algorithms: {', '.join(algorithms())}", width(), subsequent_indent="  ")
    remark = "" if options.env or config.data.path else f" They may differ elsewhere: add {required[0]}."
    lines += [f"Values of {options.algorithm} {'for recorded data' if is_offline else f'for {config.env.id}'}.{remark}"]
    settings = _shown_settings(options, config, required, is_offline=is_offline)
    for title, flags in FLAG_GROUPS.items():
        rows = [_row(flag, *settings[flag]) for flag in flags.split() if flag in settings]
        lines += ["", title, *rows] if rows else []
    count = len([*iter_options(config)])
    lines += ["", f"All {count} options, each with its description: reverie train {name} --help-all"]
    return "\n".join(lines)


def _required_flags(options: CommonOptions, config: ExperimentConfig) -> tuple[bool, list[str]]:
    """Return whether the run is offline, and the required flags for data and environment."""
    needs_env, is_offline = False, config.offline or (config.algo.needs_data and not options.env)
    try:
        config.algo.check_data(recorded=True, collected=False)
    except ConfigError:
        needs_env, is_offline = True, False
    required = ["--env ID"] if needs_env or not config.algo.needs_data else []
    return is_offline, [*required, "--data PATH"] if config.algo.needs_data else required


def _row(flag: str, value: object, description: str) -> str:
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
    common = {option.flag: option for option in iter_options(options)}
    settings = {option.flag: option for option in iter_options(config)}
    settings |= {name: common[name] for name in ("env", "envs", "data", "seeds", "run", "resume", "config")}
    values = {"envs": config.env.num, "experience": experience_from_fraction(config.offline_fraction)}
    for name, metavar, value in (("env", "ID", options.env), ("data", "PATH", config.data.path)):
        values[name] = value or ("required" if f"--{name} {metavar}" in required else None)
    if hasattr(sys.modules[type(config.algo).__module__], "SIZES"):
        settings["size"] = common["size"]
    del settings["train-ratio" if config.train_ratio is None else "replay-ratio"]
    if config.train_ratio is None and config.replay_ratio is None:
        values["replay-ratio"] = DEFAULT_REPLAY_RATIO
    without = COLLECTING if is_offline else {"updates"}
    if config.algo.on_policy:
        without = (
            without | {name.replace("_", "-") for name in REPLAY_SETTINGS} | {"replay.capacity", "data", "experience"}
        )
    return {
        name: (values.get(name, option.default), option.description)
        for name, option in settings.items()
        if name not in without
    }


def help_command(args: list[str]) -> int:
    """Run ``reverie help TOPIC``."""
    topic = args[0].removeprefix("--") if args else "help"
    name = topic.replace("-", "_")
    if topic == "help":
        show("usage: reverie help TOPIC\n")
        show("A command, an algorithm or a preset (`reverie list`), or a setting with its")
        show("path, such as replay.capacity or algo.lr. Other words are searched in all")
        show("settings: reverie help frame stack")
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
        lines = _about_setting(name) or _search(args)
    show(wrap_words("\n".join(lines)))
    return 0


def _about_algorithm(name: str) -> list[str]:
    """Return the description of an algorithm, and a command to train with it."""
    kind = algorithm_config(name)
    text = inspect.cleandoc(importlib.import_module(kind.__module__).__doc__ or "")
    kinds = ", ".join(sorted(getattr(kind, "action_kinds", ())))
    lines = [text, "", inspect.cleandoc(kind.__doc__ or ""), "", f"Actions: {kinds}".replace("_", "-")]
    return [*lines, f"Settings: reverie train {name} --help, or --help-all for each with its description"]


def _about_setting(name: str) -> list[str]:
    """Return description and default of a setting, by the algorithms that have it; nothing if there is none."""
    names_by_text: dict[str, list[str]] = {}
    for algorithm in algorithms() if name.startswith("algo.") else ("",):
        config = ExperimentConfig().merge({"algo": algorithm_config(algorithm)()} if algorithm else {})
        for option in iter_options(config):
            if option.path == name and option.description:
                text = f"{format_flag_value(option.default)}\n{option.description}"
                names_by_text.setdefault(text, []).append(algorithm)
    lines = []
    for description, names in names_by_text.items():
        value, _, text = description.partition("\n")
        of = f" of {', '.join(names)}" if names[0] else ""
        lines += [f"--{name.replace('_', '-')}, default {value}{of}", textwrap.indent(text, "  ")]
    return lines


def _search(words: list[str]) -> list[str]:
    """Return a line for each setting, preset and command with all ``words``, in its name or description."""
    topics = {name: line for name, (_, line) in COMMANDS.items()} | {name: x.description for name, x in TABLE.items()}
    configs = [ExperimentConfig().merge({"algo": algorithm_config(algorithm)()}) for algorithm in algorithms()]
    settings = {option.flag: option.description for config in configs for option in iter_options(config)}
    names = {f"--{flag}": " ".join([flag, *synonyms_of(flag)]) for flag in settings}
    topics |= {f"--{flag}": " ".join(text.split()).partition(". ")[0] for flag, text in settings.items()}
    stems = [stem for text in words for stem in re.split(r"[-_.\s]", text.lower().removesuffix("s")) if stem]
    matches = [name for name in topics if all(stem in names.get(name, name).lower() for stem in stems)]
    matches += [name for name in topics if name not in matches and all(x in topics[name].lower() for x in stems)]
    if not matches:
        raise ConfigError(
            f"unknown topic '{' '.join(words)}'. Expected a command, an algorithm or a preset (`reverie list`), a "
            "setting with its path, such as replay.capacity or algo.lr, or words in its description."
        )
    rest = [f"... and {len(matches) - SHOWN} more: add a word."] if len(matches) > SHOWN else []
    return [*(f"{name:<30} {topics[name].removesuffix('.')}"[: width()] for name in matches[:SHOWN]), *rest]


SHOWN = 15
"""Number of topics that a search shows."""


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

    shell: Annotated[Literal["bash", "zsh", "fish"], Positional("SHELL")]
    """bash, zsh (after compinit) or fish."""

    def __call__(self) -> None:
        words = [(typed, " ".join(choices)) for typed, choices in _complete_words().items()]
        if self.shell == "fish":
            lines = [f"complete -c reverie -n '_reverie_after \"{typed}\"' -a '{choices}'" for typed, choices in words]
        else:
            name = {False: "$1", True: "$1 $2"}
            lines = [f'case "{name[" " in typed]}" in "{typed}") echo {choices} ;; esac' for typed, choices in words]
            lines = ["_reverie_words() {", *lines, "}"]
        show("\n".join([*lines, COMPLETION_SCRIPTS[self.shell]]))


def _complete_words() -> dict[str, list[str]]:
    """Return the completions after the first word, or the first two words, of a command line."""
    completions = {"": [*COMMANDS, "--help", "--version"], "help": [*COMMANDS, *algorithms(), *TABLE]}
    kinds = {name: load_command(name) for name in COMMANDS} | {"check-env": CheckEnvCommand}
    kinds |= {f"data {name}": kind for name, kind in DATA_COMMANDS.items()}
    completions |= {name: _flags(kind) for name, kind in kinds.items() if isinstance(kind, type)}
    completions |= {"data": [*DATA_COMMANDS], "completion": [*COMPLETION_SCRIPTS]}
    flags = [flag for flag in _flags(CommonOptions, ExperimentConfig()) if not flag.startswith("--algo.")]
    completions["train"] = [*algorithms(), *flags, "--help-all"]
    completions["tune"] = sorted({*completions["train"], *_flags(TuneOptions)})
    for name in algorithms():
        algo_flags = [f"--algo.{flag.removeprefix('--')}" for flag in _flags(algorithm_config(name)())]
        completions |= {f"train {name}": algo_flags, f"tune {name}": algo_flags}
    return completions


def _flags(*parts: Any) -> list[str]:
    """Return the flags of dataclasses or their classes."""
    options = [option for part in parts for option in iter_options(part)]
    return [*(f"--{option.flag}" for option in options if not option.positional), "--help"]
