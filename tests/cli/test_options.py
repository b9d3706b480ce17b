"""A flag of a command is a parameter of the Python function behind it: the same name, type and default."""

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any, Literal

import pytest

import reverie
from reverie.agent.recording import record_agent
from reverie.cli.check import CheckEnvCommand
from reverie.cli.data import COMMANDS as DATA_COMMANDS
from reverie.cli.main import COMMANDS, load_command
from reverie.cli.parsing import Option, iter_options
from reverie.cli.train_options import CommonOptions, TuneOptions
from reverie.datasets.convert import write_dataset
from reverie.datasets.download import download_minari
from reverie.datasets.ogbench_generation import make_dataset
from reverie.datasets.options import ReadOptions, RecordConfig, Subset
from reverie.datasets.validate import validate

DECLARED_ONCE = (ReadOptions, RecordConfig, Subset)
"""Options of commands that Python takes as they are."""
KINDS: dict[str, Any] = {name: load_command(name) for name in COMMANDS} | {
    "train": CommonOptions, "tune": TuneOptions, "check-env": CheckEnvCommand,
    **{f"data {name}": kind for name, kind in DATA_COMMANDS.items()},
}  # fmt: skip
KINDS = {name: kind for name, kind in KINDS.items() if isinstance(kind, type)}

BEHIND: dict[str, tuple[Callable[..., Any], ...]] = {
    "train": (reverie.train, reverie.train_seeds),
    "tune": (reverie.tune, reverie.train),
    "bench": (reverie.train,),
    "sweep": (reverie.sweep,),
    "eval": (reverie.load, reverie.Agent.evaluate),
    "arena": (reverie.arena, reverie.load),
    "reach": (reverie.load, reverie.Agent.reach),
    "dream": (reverie.dream, reverie.load),
    "extract": (reverie.extract, reverie.load),
    "export": (reverie.export, reverie.load),
    "report": (reverie.report, reverie.load),
    "estimate": (reverie.estimate_return, reverie.load),
    "view": (reverie.view,),
    "play": (reverie.play,),
    "compare": (reverie.compare,),
    "register": (reverie.register_model,),
    "push": (reverie.push,),
    "pull": (reverie.pull,),
    "import": (reverie.import_sb3,),
    "list": (reverie.list_agents,),
    "check-env": (reverie.check_env,),
    "data info": (),
    "data validate": (validate,),
    "data convert": (write_dataset,),
    "data subsample": (write_dataset,),
    "data record": (reverie.load, record_agent),
    "data download": (download_minari,),
    "data make": (make_dataset,),
    "data label": (reverie.label,),
    "data compare-clips": (reverie.label,),
}
"""The functions behind each command; the others have none."""

FILE, READER, PAGE = "a file that the command writes", "opened by open_reader", "in Python, a function answers"
CLUSTER, SEEDS = "only a command starts runs on a cluster", "a number, or numbers between commas, are one word"
OTHER: dict[str, str] = {
    "* trust_code": "the command line trusts modules before any command",
    "train algorithm": "None in Python is that of the run to continue, too",
    "tune algorithm": "required in Python",
    "bench algorithm": "there is no run to continue",
    "* configs": "FILE#SECTION in Python",
    "* seeds": SEEDS,
    **dict.fromkeys(("* cluster", "* resources", "* actor_resources", "* placement_strategy"), CLUSTER),
    "bench batch": "batch_size x batch_length",
    "bench precision": "the setting algo.precision",
    "bench threads": "the setting of this name",
    "* json": FILE,
    "sweep status": "prints how far the runs are",
    "compare runs": "the command says what is missing",
    "eval video": "agent.evaluate(record=True) returns the frames that the command writes",
    "eval games": "the same as --episodes",
    "estimate fqe": "None: the default of FQEConfig, of which Python takes all settings as a mapping",
    "view live": "prints a link",
    "import library": "chooses the function",
    "list source": "the name of a list, too",
    "check-env id": "called env in Python, as in train",
    "check-env env": "called env_options in Python, as in train",
    "check-env worker": "a script needs `if __name__ == '__main__'` for it",
    "data info plot": FILE,
    "data info figure": FILE,
    **{f"data {name} path": READER for name in ("info", "validate", "convert", "subsample")},
    "data validate write_valid": FILE,
    "data validate format": FILE,
    "data validate replay_episodes": "called replayed in Python, where they are counted",
    "data convert format": "called to in Python",
    "data convert reward_fn": "relabel_rewards in Python",
    "data subsample format": "called to in Python",
    "data subsample remainder": FILE,
    "data make out": "called folder in Python",
    "data label out": "a default that the command alone has",
    "data compare-clips out": "a default that the command alone has",
    "data label port": PAGE,
    "data compare-clips port": PAGE,
}
"""Options that are no such parameters, by command, and why."""


def find_parameter(name: str, functions: Sequence[Callable[..., Any]]) -> tuple[inspect.Parameter, Any] | None:
    """Return the parameter of this name of the first function that has it, and its type; None if none has it."""
    for function in functions:
        if (parameter := inspect.signature(function).parameters.get(name)) is not None:
            return parameter, typing.get_type_hints(function)[name]
    return None


def list_kinds(hint: Any) -> list[Any]:
    """Return the types of a union, without annotations."""
    hint = typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Annotated else hint
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return [kind for part in typing.get_args(hint) for kind in list_kinds(part)] if is_union else [hint]


def accepts(kinds: list[Any], kind: Any) -> bool:
    """Return whether a parameter of these types takes values of this one."""
    if Any in kinds or kind in kinds:
        return True
    if typing.get_origin(kind) is Literal:
        return str in kinds or any({*typing.get_args(kind)} <= {*typing.get_args(other)} for other in kinds)
    origins = [typing.get_origin(other) or other for other in kinds]
    return any(isinstance(x, type) and issubclass(typing.get_origin(kind) or kind, x) for x in origins)


def find_problem(option: Option, functions: Sequence[Callable[..., Any]]) -> str:
    """Return in what an option differs from its parameter; "" if in nothing. An empty text or list is like None."""
    if (found := find_parameter(option.path, functions)) is None:
        return "no parameter"
    parameter, hint = found
    kinds = [tuple] if parameter.kind is parameter.VAR_POSITIONAL else list_kinds(hint)
    if refused := [kind for kind in option.kinds if not accepts(kinds, kind)]:
        return f"type {refused}, not {kinds}"
    if (option.default is dataclasses.MISSING) != (parameter.default is parameter.empty):
        return "required" if option.default is dataclasses.MISSING else "not required"
    values = [None if value in ("", (), {}) else value for value in (option.default, parameter.default)]
    return "" if option.default is dataclasses.MISSING or values[0] == values[1] else f"default {values}"


@pytest.mark.parametrize("command", BEHIND)
def test_an_option_is_the_parameter_behind_it(command: str) -> None:
    kind, problems = KINDS[command], dict[str, str]()
    shared = {spec.name for base in DECLARED_ONCE if issubclass(kind, base) for spec in dataclasses.fields(base)}
    for option in iter_options(kind):
        if option.path not in shared and (problem := find_problem(option, BEHIND[command])):
            problems[option.path.partition(".")[0]] = problem
    places = [place.split() for place in OTHER]
    listed = {words[-1] for words in places if words[:-1] == command.split()}
    anywhere = {words[-1] for words in places if words[0] == "*"} - listed
    assert {name: problem for name, problem in problems.items() if name not in anywhere | listed} == {}
    assert listed <= problems.keys()


def test_commands_without_a_function_are_known() -> None:
    assert KINDS.keys() - BEHIND.keys() == {"info", "completion"}
