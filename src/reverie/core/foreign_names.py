"""Names of other libraries, most of all of Stable-Baselines3, and what to write here instead."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from reverie.core.errors import did_you_mean

SYNONYMS = {
    r"(.*\.)?([a-z]+-)?lr": "learning-rate lr policy-lr q-lr alpha-lr step-size anneal-lr",
    r".*\.discount(-horizon)?": "gamma discount-factor discount-rate",
    r"steps": "total-timesteps timesteps num-timesteps n-timesteps total-steps num-steps max-steps env-steps "
    "total-env-steps",
    r"updates": "epochs num-epochs iterations num-updates max-updates",
    r"envs": "num-envs n-envs nenvs num-workers workers num-environments",
    r"env\.kwargs": "env-kwargs make-kwargs",
    r"callbacks": "callback",
    r"env": "env-id env-name environment gym-id task",
    r"replay\.capacity": "buffer-size memory-size replay-size replay-buffer-size buffer-capacity",
    r"replay-ratio": "utd utd-ratio train-freq train-frequency update-every",
    r"learning-starts": "warmup warmup-steps start-steps learning-start prefill",
    r"random-steps": "start-steps warmup-steps random-exploration-steps",
    r"algo\.(tau|slow-rate)": "polyak target-update-rate soft-update",
    r"algo\.(target|slow)-update-interval": "target-every target-network-frequency target-update-freq slow-every",
    r"algo\.(temperature|entropy-coef)": "alpha ent-coef entropy-coef entropy-coeff entropy-weight actent exploration",
    r"algo\.value-coef": "vf-coef value-loss-coef",
    r"algo\.batch-size": "num-minibatches n-minibatches minibatch-size batch",
    r"(.*\.)?max-grad-norm": "clip clip-gradient clip-grad-norm grad-clip grad-norm-clip",
    r"algo\.clip-range": "clip clip-param clip-coef clip-ratio eps-clip",
    r"algo\.value-clip-range": "clip-value clip-range-vf clip-vloss vf-clip-param",
    r"algo\.value-estimator": "lambda lam n-step nstep",
    r"algo\.epochs": "n-epochs update-epochs num-sgd-iter",
    r"algo\.num-critics": "n-critics",
    r"algo\.num-quantiles": "n-quantiles",
    r"algo\.graph": "cuda-graphs capture jit compile",
    r"algo\.exploration-noise": "noise expl-noise expl-amount",
    r"algo\.reward-transform": "rewards clip-rewards",
    r"algo\.conservative-weight": "min-q-weight cql-weight cql-alpha",
    r"algo\.use-planning": "mpc",
    r"algo\.ensemble\.log-disagreement": "disag-log",
    r"algo\.encoder\.encode-reward": "reward-input",
    r"algo\.networks\.units": "hidden-size hidden-sizes hidden-dim hidden-units layer-size",
    r"run": "logdir log-dir out output output-dir save-path run-name exp-name experiment-name name",
    r"schedule\.eval-every": "eval-freq eval-frequency eval-interval eval-every",
    r"schedule\.save-every": "save-freq save-frequency save-interval checkpoint-freq checkpoint-every",
    r"schedule\.log-every": "log-freq log-frequency log-interval log-every",
    r"eval-episodes": "n-eval-episodes num-eval-episodes episodes",
    r"data": "dataset dataset-path data-path offline-data",
    r"resume": "checkpoint load load-model restore from-checkpoint continue",
    r"wandb": "track use-wandb wandb-project wandb-project-name project",
    r"console": "progress quiet",
    r"eval-video": "capture-video record-video",
    r"device": "gpu cuda accelerator",
    r"seeds": "num-seeds n-seeds",
    r"env\.vectorization": "vectorization-mode vec-env",
    r"(.*\.)?max-episode-steps": "time-limit max-steps-per-episode",
    r"env\.terminal-on-life-loss": "episodic-life",
    r"env\.channel-axis": "data-format",
    r"(replay\.)?init-from": "init from-checkpoint pretrained",
    r"heldout-data": "val-data",
    r"heldout-fraction": "validation-fraction val-fraction",
    r"patience": "early-stopping early-stop",
    r"stop-score": "reward-threshold target-score",
    r"score-metric": "metric-for-best-model",
    r"deterministic": "stochastic",
    r"trust-code": "trust-remote-code",
}
"""Patterns of settings, written as flags, and names of other libraries that mean the same."""

EXAMPLES: dict[str, tuple[tuple[str, Any], ...]] = {
    "policy-kwargs net-arch": (("algo.networks.units", (64, 64)),),
    "activation-fn": (("algo.networks.activation", "relu"),),
    "features-extractor-class features-extractor features-extractor-kwargs": (("algo.networks.encoder", "nature"),),
    "vec-env-cls vec-env-kwargs subprocess": (("env.vectorization", "async"),),
    "n-steps num-steps-per-env": (("algo.rollout", 128), ("algo.value-estimator", "n_step(3)")),
    "gae-lambda": (("algo.value-estimator", "gae(0.95)"),),
    "exploration-fraction exploration-initial-eps exploration-final-eps epsilon eps epsilon-decay": (
        ("algo.exploration", "epsilon_greedy(1.0, 0.05, 10000)"),
    ),
    "action-noise": (("algo.exploration", "gaussian(0.1)"),),
    "replay-buffer-class replay-buffer-kwargs n-sampled-goal goal-selection-strategy": (
        ("replay.hindsight", "future(0.8)"),
    ),
    "gradient-steps": (("replay-ratio", 1.0),),
    "normalize norm-obs normalize-observations": (("algo.normalize-obs", "running"),),
    "norm-reward normalize-reward normalize-rewards": (("algo.reward-scale", "return_std"),),
    "render-mode render": (("eval-video", True),),
    "prioritized-replay per": (("replay.fractions", {"uniform": 0.0, "priority": 1.0}),),
    "n-stack": (("algo.frame-stack", 4),),
    "verbose progress-bar": (("console", True),),
    "tensorboard-log": (("run", "runs/first"),),
}
"""Names whose values mean something else here: settings, written as flags, with a value. The first that exists counts.
"""

NOTES = {
    "policy": "The networks follow from the observations: there is no MlpPolicy or CnnPolicy to choose",
    "use-sde sde-sample-freq": "gSDE is not supported",
    "optimize-memory-usage": "Each row is stored once anyway",
    "reset-num-timesteps": "A run is continued by its folder, run='runs/first', and steps is its total length",
    "stats-window-size": "The log has the mean over the episodes since the last entry",
    "monitor-dir monitor-kwargs monitor-wrapper": "Returns and lengths of episodes are in the run's metrics.jsonl",
    "best-model-save-path": "The best checkpoint is kept in the run's checkpoints/best",
    "init-setup-model": "The networks are made by train()",
}
"""Names of what is no setting here, and a sentence."""


Form = Callable[[str, Any], str]
"""Writes a setting, given as a flag, with a value; ``...``: its name alone."""


def in_file(flag: str, value: object) -> str:
    """Return the setting as in a YAML file."""
    name = flag.replace("-", "_")
    return f"'{name}'" if value is ... else f"{name}: {list(value) if isinstance(value, tuple) else value}"


def as_argument(flag: str, value: object) -> str:
    """Return the setting as an argument of ``reverie.train``."""
    name, text = flag.replace("-", "_"), "..." if value is ... else repr(value).replace("'", '"')
    return f'**{{"{name}": {text}}}' if "." in name else f"{name}={text}"


def as_flag(flag: str, value: object) -> str:
    """Return the setting as a flag."""
    if value is ...:
        return f"--{flag}"
    words = [*map(str, value)] if isinstance(value, tuple) else [str(value)]
    return f"--{flag}" if value is True else f"--{flag} {shlex.join(words)}"


def advise(name: str, choices: Collection[str], form: Form, value: object = None) -> str:
    """Return a sentence on what to write instead of an unknown ``name``, with a space before it, or "".

    ``choices``: the settings, written as flags. ``value``: what the user has given, if it is known.
    """
    name = name.replace("_", "-")
    if note := next((note for names, note in NOTES.items() if name in names.split()), ""):
        return f" {note}."
    examples = next((pairs for names, pairs in EXAMPLES.items() if name.rpartition(".")[2] in names.split()), ())
    if example := next((pair for pair in examples if pair[0] in choices), None):
        return f" Write {form(*example)}."
    near = _suggest_names(name, choices)
    if len(near) == 1 and isinstance(value, int | float):
        return f" Write {form(near[0], value)}."
    return f" Did you mean {' or '.join(form(flag, ...) for flag in near)}?" if near else ""


def synonyms_of(flag: str) -> list[str]:
    """Return what a setting, written as a flag, is called in other libraries."""
    names = [names for pattern, names in SYNONYMS.items() if re.fullmatch(pattern, flag)]
    names += [names for names, pairs in EXAMPLES.items() if flag in dict(pairs)]
    return [name for group in names for name in group.split()]


def _suggest_names(name: str, choices: Iterable[str]) -> list[str]:
    """Return at most four ``choices`` that ``name`` may mean: by synonyms, by its last word, or by spelling."""
    choices, last = list(choices), name.rpartition(".")[2]
    patterns = [pattern for pattern, synonyms in SYNONYMS.items() if last in synonyms.split()]
    matches = [choice for choice in choices if any(re.fullmatch(pattern, choice) for pattern in patterns)]
    matches = matches or [choice for choice in choices if choice.rpartition(".")[2] == last]
    if not matches:
        vocabulary = {synonym for synonyms in SYNONYMS.values() for synonym in synonyms.split()}
        vocabulary |= {choice.rpartition(".")[2] for choice in choices}
        if (near := difflib.get_close_matches(last, vocabulary, n=1, cutoff=0.85)) and near != [last]:
            return _suggest_names(name.removesuffix(last) + near[0], choices)
        close = difflib.get_close_matches(name, choices, n=3, cutoff=0.65)
        ends = difflib.get_close_matches(last, {choice.rpartition(".")[2] for choice in choices}, n=3, cutoff=0.75)
        matches = [*close, *(choice for choice in choices if choice.rpartition(".")[2] in ends and choice not in close)]
    return matches[:4]


PACKAGE_NAMES = {
    "make make_vec_env DummyVecEnv SubprocVecEnv VecEnv": "reverie.train('ppo', env='CartPole-v1', envs=8)",
    "VecNormalize NormalizeObservation": "reverie.train('ppo', env='CartPole-v1', **{'algo.normalize_obs': 'running'})",
    "VecFrameStack FrameStack": "reverie.train('dqn', env='CartPole-v1', **{'algo.frame_stack': 4})",
    "evaluate_policy": "reverie.evaluate('CartPole-v1', policy, episodes=20)",
    "Monitor VecMonitor": "reverie.train('ppo', env='CartPole-v1') (returns are in the run's metrics.jsonl)",
    "BaseCallback EventCallback": "class Mine(reverie.Callback): ...",
    "EvalCallback CheckpointCallback": "reverie.train('ppo', env='CartPole-v1', **{'schedule.eval_every': 10_000})",
    "StopTrainingOnRewardThreshold": "reverie.train('ppo', env='CartPole-v1', stop_score=475)",
    "StopTrainingOnNoModelImprovement": "reverie.train('ppo', env='CartPole-v1', patience=10)",
    "NormalActionNoise OrnsteinUhlenbeckActionNoise": (
        "reverie.train('td3', env='Pendulum-v1', **{'algo.exploration': 'gaussian(0.1)'})"
    ),
    "HER HerReplayBuffer": "reverie.train('sac', env='FetchReach-v4', **{'replay.hindsight': 'future(0.8)'})",
    "MaskablePPO": "reverie.train('ppo', env='CartPole-v1') (masks of the environment are used)",
    "RecurrentPPO": (
        "reverie.train('ppo', env='CartPole-v1', **{'algo.networks.memory': 'lstm', 'algo.batch_length': 16})"
    ),
    "learn fit": "reverie.train('ppo', env='CartPole-v1', steps=100_000)",
    "save": "reverie.load('runs/first').save('agent.zip')",
    "predict act": "reverie.load('runs/first').predict(obs)",
    "play render enjoy": "reverie.view('runs/first')",
}
"""Names that programs look for in this package, and what to write instead."""

AGENT_NAMES = {
    "learn train fit": "reverie.train(resume={run!r}, steps=...)",
    "policy actor critic q_net model": "agent.algo: the learner, a torch module",
    "get_parameters state_dict parameters": "agent.algo.state_dict()",
    "set_parameters load_state_dict": "agent.algo.load_state_dict(...)",
    "load": "reverie.load({run!r})",
    "num_timesteps": "agent.step",
    "replay_buffer": "agent.open_dataset(): the run's rows",
    "get_env set_env env": "agent.evaluate(20, env=...)",
    "get_vec_normalize_env": "agent.algo: its preprocessing normalizes",
    "choose_action select_action compute_action compute_single_action get_action": "agent.act(obs)",
    "render play": "reverie.view({run!r})",
}
"""Names that programs look for in a trained agent, and what to write instead."""


def find_line(table: Mapping[str, str], name: str) -> str:
    """Return what a ``table`` says to write instead of ``name``, or ""."""
    return next((line for names, line in table.items() if name in names.split()), "")


def train_line(name: str, groups: Mapping[str, str]) -> str:
    """Return how to train the algorithm that ``name`` means in any spelling, such as ``DreamerV3``; else "".

    ``groups``: the headings of algorithms, by name.
    """
    algorithm = next((x for x in groups if x.replace("_", "") == name.lower().replace("_", "")), None)
    if algorithm is None:
        return ""
    source = "data='PATH'" if "recorded" in groups[algorithm] else "env='CartPole-v1'"
    source = source.replace("CartPole-v1", "Pendulum-v1") if "continuous" in groups[algorithm] else source
    return f"reverie.train('{algorithm}', {source})"


def describe_missing(owner: str, name: str, line: str, public: Collection[str]) -> str:
    """Return the text of an AttributeError: ``owner`` has no ``name``; write ``line``, or one of ``public``."""
    return f"{owner} has no attribute '{name}'.{f' Write {line}.' if line else did_you_mean(name, public)}"
