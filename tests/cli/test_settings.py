"""A setting has one road: as a flag and as an argument, a value gives the same settings of a run."""

import typing
from collections.abc import Iterator
from typing import Any, Literal

import pytest
import yaml

import reverie
from reverie.algos.table import algorithms
from reverie.cli.parsing import Option, format_kinds, iter_options
from reverie.cli.train import parse_and_train
from reverie.cli.train_options import parse_common
from reverie.core.config import Choice, flatten
from reverie.core.errors import ConfigError
from reverie.experiment.config import ExperimentConfig
from reverie.experiment.rules import validate_config
from reverie.experiment.settings import make_preset

GOALS = {"current": 0.5, "episode": 0.25, "random": 0.25}
TOGETHER: tuple[dict[str, Any], ...] = (
    {"device": "cpu"}, {"preset": "cpu"},
    {"callbacks": ("reverie:Callback",)},
    {"score_metric": "eval/length"},
    {"schedule.eval_every": 700, "patience": 3},
    {"env.wrappers": ("gymnasium.wrappers:TimeAwareObservation",)},
    {"data.columns": {"reward": "gain"}},
    {"reward": "preferences:labels.jsonl", "reward_zero": "lowest"},
    {"human.person": "module:act", "human.fraction": 0.25, "human.intervention_reward": -1.0, "human.reward": "only"},
    {"algo.networks.memory": "lstm(8)", "algo.batch_length": 9, "algo.networks.burn_in": 2},
    {"algo.chunk_size": 3, "algo.batch_length": 9},
    {"algo.probe.heads": ("mlp('map', units=8)",)},
    {"algo.grad_heads": ("reward",)},
    {"algo.reward_support": (-3.0, 3.0)},
    *({f"algo.{name}.{goal}": x for goal, x in GOALS.items()} for name in ("actor_goals", "value_goals")),
)  # fmt: skip
"""Values of settings that their types do not tell, or that need each other."""
WITHOUT_VALUES = ("algo.vae.", "algo.discriminator.", "replay.sampler")
"""Networks whose settings of critics are refused, and rules that only a user has."""


def iter_values(option: Option) -> Iterator[Any]:
    """Yield values for an option, of which one should be valid and not its default."""
    default: Any = option.default
    for kind in option.kinds:
        if kind is bool:
            yield not default
        elif kind in (int, float):
            number = default if isinstance(default, kind) else kind(1)
            yield from (kind(number * 2), kind(number / 2), kind(number + 1), kind(3), kind(0.25))
        elif typing.get_origin(kind) is Literal:
            yield from typing.get_args(kind)
        elif isinstance(kind, type) and issubclass(kind, Choice):
            yield from (variant().to_text() for variant in kind.variants().values())
        elif typing.get_origin(kind) is tuple:
            item = typing.get_args(kind)[0]
            yield (item(3),) * max(1, len(default or ())) if item in (int, str) else ()
        elif kind is str:
            yield "x"
        elif typing.get_origin(kind) is dict:
            yield {"x": 1.0}


def merge_valid(config: ExperimentConfig, values: dict[str, Any]) -> ExperimentConfig | None:
    """Return ``config`` with these values; None if they do not fit it."""
    try:
        merged = config.merge(values)
        return merged if validate_config(merged) else None
    except ConfigError:
        return None


def to_words(option: Option, value: Any) -> list[str]:
    """Return the words of the command line that set an option."""
    flag = f"--{option.flag}"
    if value is False:
        head, dot, name = option.flag.rpartition(".")
        return [f"--{head}{dot}no-{name}"]
    if value is True:
        return [flag]
    if isinstance(value, dict):
        return [flag, yaml.safe_dump(value, default_flow_style=True, width=1000).strip()]
    return [flag, *map(str, value)] if isinstance(value, tuple) else [flag, str(value)]


def draw_settings(config: ExperimentConfig, options: list[Option]) -> dict[str, Any]:
    """Return values that fit each other, for as many of the ``options`` as possible."""
    values, paths = dict[str, Any](), {option.path for option in options}
    groups = [group for group in TOGETHER if paths & group.keys()]
    groups += [{option.path: value} for option in options for value in iter_values(option) if value != option.default]
    for group in groups:
        if not values.keys() & group.keys() and (merged := merge_valid(config, group)):
            config, values = merged, values | group
    return values


def takes_yaml(kinds: tuple[Any, ...]) -> bool:
    """Return whether a value can be a mapping; flags of bool have no value."""
    return kinds == (bool,) or any(typing.get_origin(kind) is dict for kind in kinds)


def check_roads(monkeypatch: pytest.MonkeyPatch, words: list[str], **arguments: Any) -> None:
    """Check that a command line and arguments give the same settings of a run."""
    monkeypatch.setattr(reverie.api, "train_config", lambda config, **objects: config)
    configs: list[ExperimentConfig] = []
    assert parse_and_train(words, parse_common(words), lambda config, options: configs.append(config) or 0) == 0
    config: Any = reverie.train(words[0], **arguments)
    assert flatten(configs[0].to_dict()) == flatten(config.to_dict())


def test_a_flag_and_an_argument_of_any_setting_give_the_same_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    rest, is_done = set[tuple[str, Any]](), set[tuple[str, Any]]()
    for name in algorithms():
        config = make_preset(name)
        base: dict[str, Any] = {"env.id": "CartPole-v1"} | ({"data.path": "rows.npz"} if config.algo.needs_data else {})
        config = config.merge(base)
        options = {option.path: option for option in iter_options(config)}
        pending = [option for path, option in options.items() if (path, option.kinds) not in is_done]
        while values := draw_settings(config, pending):
            values = base | values
            words = [word for path, value in values.items() for word in to_words(options[path], value)]
            check_roads(monkeypatch, [name, *words], **values)
            is_done |= {(path, options[path].kinds) for path in values}
            pending = [option for option in pending if option.path not in values]
        rest |= {(option.path, option.kinds) for option in pending}
    assert not [path for path, kinds in rest - is_done if not path.startswith(WITHOUT_VALUES)]
    assert not [path for path, kinds in is_done if "YAML" in format_kinds(kinds) and not takes_yaml(kinds)]


SHORT: dict[str, dict[str, Any]] = {
    "ppo --env CartPole-v1 --envs 1": {"env": "CartPole-v1", "envs": 1},
    "ppo --env CartPole-v1 --envs 3": {"env": "CartPole-v1", "envs": 3},
    "ppo --env.id ALE/Pong-v5": {"env_options": {"id": "ALE/Pong-v5"}},
    "sac --env Pendulum-v1 --data a.npz --human page": {"env": "Pendulum-v1", "data": "a.npz", "human": "page"},
    "dreamer_v3 --env CartPole-v1 --size 1m --preset cpu": {"env": "CartPole-v1", "size": "1m", "preset": "cpu"},
}


@pytest.mark.parametrize("command", SHORT)
def test_short_names_and_their_arguments_give_the_same_settings(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    check_roads(monkeypatch, command.split(), **SHORT[command])
