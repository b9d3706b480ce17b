"""The screen of ``reverie train ALGORITHM --help``; ``reverie help TOPIC``; ``reverie completion``."""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import inspect
import io
import itertools
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from reverie.cli.main import COMMANDS, main
from reverie.cli.options import CommonOptions
from reverie.cli.parse import flags_of
from reverie.core.config import Choice
from reverie.core.discover import algorithm_config, algorithms
from reverie.core.errors import ConfigError
from reverie.experiment.config import DEFAULT_REPLAY_RATIO, ExperimentConfig
from reverie.experiment.layers import TABLE
from reverie.replay.sources import of_share

WIDTH = 100

GROUPS = {
    "Run": """
        env ID: environment: an id of Gymnasium or module:Id
        envs N: environments stepped together
        steps N: env steps of the run, all environments together
        updates N: gradient updates of the run
        seed N: seed of everything random
        seeds N: train several: how many, or a list such as 1,5,7
        run DIR: run folder; a run found there goes on
        resume DIR: continue a run with its own settings
        init DIR: begin with the agent of another run
        preset NAME: chosen by environment; `reverie list` names them
        config FILE ...: YAML: above the preset, below flags; --configs NAME
        device NAME: cpu, cuda, cuda:1; auto: a GPU if there is one""",
    "Learning": """
        size NAME: such as 12m; `reverie list` names them
        algo.networks.units N ...: widths of the hidden layers
        replay-ratio X: gradient updates per env step
        train-ratio X: replayed rows per env step
        learning-starts N: windows in the replay before learning starts
        random-steps N: env steps with random actions at the beginning
        replay.capacity N: env steps in the replay, or bytes such as 8GB
        algo.batch-size N: windows in a batch
        algo.batch-length N: rows of a window
        algo.lr X: learning rate
        algo.optim.lr X: learning rate
        algo.actor-lr X: learning rate of the actor
        algo.critic-lr X: learning rate of the critic
        algo.value-lr X: learning rate of the state's value
        algo.temperature-lr X: learning rate of the temperature
        algo.discriminator-lr X: learning rate of the discriminator
        algo.discount X: discount factor gamma
        algo.discount-horizon X: discount as a horizon: gamma = 1 - 1 / horizon
        algo.horizon N: steps of imagined trajectories
        algo.value-estimator X: targets: td0, n_step(3), td_lambda(0.9) ...
        algo.exploration X: random actions while exploring""",
    "Recorded data": """
        data PATH: a file, folder, glob, run or minari:NAME
        experience X: collected, recorded, or mixed(0.5), of which --data is that part""",
    "Evaluation and logs": """
        eval-episodes N: episodes of each evaluation, also at the end
        schedule.eval-every N: env steps, or a time such as 5m; 0: only at the end
        schedule.log-every N: the same for log entries
        schedule.save-every N: the same for checkpoints
        tensorboard: TensorBoard files; --no-tensorboard for none
        wandb: log to Weights & Biases as well
        mlflow: log to MLflow as well""",
}
"""Flags by group, each with a word for its value and its meaning. Those that the algorithm lacks are left out."""

COLLECTING = {"envs", "steps", "replay-ratio", "train-ratio", "learning-starts", "random-steps", "replay.capacity"}
"""Flags without effect in a run on recorded data alone."""


def help_screen(options: CommonOptions, config: ExperimentConfig, *, has_algorithm: bool) -> str:
    """Return the help for the algorithm and the environment in ``options``: one screen of 100 columns.

    ``config``: their settings without other flags. ``has_algorithm``: whether the algorithm is not the default.
    """
    is_offline, required = sources(options, config)
    name = options.algorithm if has_algorithm else "ALGORITHM"
    lines = [f"usage: reverie train {name} {' '.join(required)} [OPTIONS]"]
    if not has_algorithm:
        lines += textwrap.wrap(f"Algorithms: {', '.join(algorithms())}", WIDTH, subsequent_indent="  ")
    remark = "" if options.env or options.data else f" They may differ elsewhere: add {required[0]}."
    lines += [f"Values of {options.algorithm} {'for recorded data' if is_offline else f'for {config.env.id}'}.{remark}"]
    values = shown_values(options, config, required, is_offline=is_offline)
    for title, text in GROUPS.items():
        lines += ["", title, *rows(text, values)]
    count = len([*flags_of(config)])
    lines += ["", f"All {count} options, each with its description: reverie train {name} --help-all"]
    return "\n".join(lines)


def sources(options: CommonOptions, config: ExperimentConfig) -> tuple[bool, list[str]]:
    """Return whether the run is one on recorded data alone, and the flags of the data and environment it needs."""
    needs_env, is_offline = False, config.offline or (config.algo.needs_data and not options.env)
    try:
        config.algo.check_data(recorded=True, collected=False)
    except ConfigError:
        needs_env, is_offline = True, False
    required = ["--env ID"] if needs_env or not config.algo.needs_data else []
    return is_offline, [*required, "--data PATH"] if config.algo.needs_data else required


def rows(text: str, values: dict[str, str]) -> Iterator[str]:
    """Yield the lines of one group: flag, value, meaning; beside a long value there is no room for its meaning."""
    for words in text.strip().splitlines():
        flag, _, meaning = words.strip().partition(": ")
        name = flag.partition(" ")[0]
        if name in values:
            value = textwrap.shorten(values[name], WIDTH - 31, placeholder=" ...")
            line = f"  {f'--{flag}':<28} {value:<14} {meaning}"
            yield line if len(line) <= WIDTH else line.removesuffix(meaning).rstrip()


def shown_values(
    options: CommonOptions, config: ExperimentConfig, required: list[str], *, is_offline: bool
) -> dict[str, str]:
    """Return the text of the value of each flag that has an effect. ``is_offline``: there is recorded data alone."""
    values: dict[str, Any] = {
        flag: functools.reduce(getattr, flag.replace("-", "_").split("."), config) for flag in flags_of(config)
    }
    values |= {name: getattr(options, name) for name in ("seeds", "run", "resume", "config")}
    values |= {"envs": config.env.num, "experience": of_share(config.share)}
    for name, metavar in (("env", "ID"), ("data", "PATH")):
        values[name] = getattr(options, name) or ("required" if f"--{name} {metavar}" in required else None)
    if hasattr(sys.modules[type(config.algo).__module__], "SIZES"):
        values["size"] = options.size
    del values["train-ratio" if config.train_ratio is None else "replay-ratio"]
    if config.train_ratio is None and config.replay_ratio is None:
        values["replay-ratio"] = DEFAULT_REPLAY_RATIO
    without = COLLECTING if is_offline else {"updates"}
    return {name: in_words(value) for name, value in values.items() if name not in without}


def in_words(value: Any) -> str:
    """Return a value as it is typed; "-" for nothing."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "-"
    text = value.text() if isinstance(value, Choice) else f"{value:g}" if isinstance(value, float) else str(value)
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
        lines = about_algorithm(name)
    elif name in TABLE:
        preset = TABLE[name]
        lines = [preset.description, "", f"reverie train {preset.algorithm} --preset {name}", ""]
        lines += [f"  {key:<28} {in_words(value)}" for key, value in preset.settings.items()]
    else:
        lines = about_setting(name)
    print("\n".join(lines))
    return 0


def about_algorithm(name: str) -> list[str]:
    """Return what an algorithm is, and how to train with it."""
    kind = algorithm_config(name)
    text = inspect.cleandoc(importlib.import_module(kind.__module__).__doc__ or "")
    kinds = ", ".join(sorted(getattr(kind, "action_kinds", ())))
    lines = [text, "", inspect.cleandoc(kind.__doc__ or ""), "", f"Actions: {kinds}".replace("_", "-")]
    return [*lines, f"Settings: reverie train {name} --help, or --help-all for each with its description"]


def about_setting(name: str) -> list[str]:
    """Return description and default of a setting, by the algorithms that have it."""
    path = name.split(".")
    names_by_text: dict[str, list[str]] = {}
    for algorithm in algorithms() if path[0] == "algo" else ("",):
        value: Any = ExperimentConfig().merge({"algo": algorithm_config(algorithm)()} if algorithm else {})
        for part in path[:-1]:
            value = getattr(value, part, None)
        if text := field_docs(type(value)).get(path[-1], ""):  # type: ignore[arg-type]  # classes are hashable
            names_by_text.setdefault(f"{in_words(getattr(value, path[-1]))}\n{text}", []).append(algorithm)
    if not names_by_text:
        raise ConfigError(
            f"nothing is called '{name}'. Expected a command, an algorithm or a preset (`reverie list`), or a setting "
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
    out: dict[str, str] = {}
    for cls in reversed(kind.__mro__):
        if not cls.__module__.startswith("reverie."):
            continue
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
        body = tree.body if isinstance(tree, ast.ClassDef) else []
        for node, after in itertools.pairwise(body):
            docstring = (
                after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else None
            )
            if isinstance(node, ast.AnnAssign) and isinstance(docstring, str):
                out[ast.unparse(node.target)] = inspect.cleandoc(docstring)
    return out


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

    def __call__(self) -> None:
        words = [(typed, " ".join(choices)) for typed, choices in words_after().items()]
        if self.shell == "fish":
            lines = [f"complete -c reverie -n '_reverie_after \"{typed}\"' -a '{choices}'" for typed, choices in words]
        else:
            name = {False: "$1", True: "$1 $2"}
            lines = [f'case "{name[" " in typed]}" in "{typed}") echo {choices} ;; esac' for typed, choices in words]
            lines = ["_reverie_words() {", *lines, "}"]
        print("\n".join([*lines, ENDS[self.shell]]))


def words_after() -> dict[str, list[str]]:
    """Return what may follow the first word, or the first two, of a command line; both together count."""
    completions = {"": [*COMMANDS, "--help", "--version"], "help": [*COMMANDS, *algorithms(), *TABLE]}
    completions |= {name: in_help(name) for name in COMMANDS if name not in ("train", "help")}
    completions |= {f"data {name}": in_help("data", name) for name in completions["data"]}
    every = [*flags_of(CommonOptions()), *flags_of(ExperimentConfig()), "help", "help-all"]
    completions["train"] = [*algorithms(), *(f"--{flag}" for flag in every if not flag.startswith("algo."))]
    completions["tune"] = sorted({*completions["tune"], *completions["train"]})
    for name in algorithms():
        flags = flags_of(ExperimentConfig().merge({"algo": algorithm_config(name)()}))
        algo_flags = [f"--{flag}" for flag in flags if flag.startswith("algo.")]
        completions |= {f"train {name}": algo_flags, f"tune {name}": algo_flags}
    return completions


def in_help(*command: str) -> list[str]:
    """Return the subcommands or values, in braces, and the options that the help of a command names."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        main([*command, "--help"])
    usage, _, text = output.getvalue().partition("\n")
    options = re.findall(r"^[│ ] (?:-h, )?(--[\w.-]+)(?:, (--[\w.-]+))?", text, re.MULTILINE)
    return [name for name in (*"".join(re.findall(r"{(.+)}", usage)).split(","), *sum(options, ())) if name]
