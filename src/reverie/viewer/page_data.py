"""The content of the page for an episode, as plain values and arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reverie.agent.agent import Agent
from reverie.agent.conversion import to_numpy
from reverie.agent.dream_report import error_unit, one_hot_classes, prediction_error
from reverie.agent.world_model_inspector import ModelState, Predictions, WorldModelInspector, predicted_observations
from reverie.algos.base import INTERNAL_PREFIX, prediction_name
from reverie.core.specs import SPECIAL_KINDS, ActionSpec
from reverie.nn.probe import Probe
from reverie.viewer.timeline import DreamRow, RealRow, Timeline

MAX_SHOWN_NUMBERS = 64
"""Vectors with more numbers than this are not shown number by number."""


def agent_info(agent: Agent, inspector: WorldModelInspector | None) -> dict[str, Any]:
    """Return the facts of an agent: its checkpoint, its actions, and the sizes of its world model."""
    info: dict[str, Any] = {
        "algorithm": agent.algorithm,
        "checkpoint": agent.checkpoint.name,
        "step": agent.step,
        "unit": "env steps" if agent.config.unit == "steps" else "updates",
        **describe_actions(agent.action_spec),
        "fps": agent.frames_per_second,
        "units": {prediction_name(key): error_unit(prediction_name(key), part) for key, part in agent.obs_spec.items()},
        "dreams": inspector is not None,
        "horizon": getattr(agent.config.algo, "horizon", None),
    }
    if inspector is not None:
        latents, classes = inspector.world.rssm.initial(1, torch.float32).stoch.shape[1:]
        info |= {"latents": latents if inspector.draws else 0, "classes": classes}
    return info


def describe_actions(spec: ActionSpec) -> dict[str, Any]:
    """Return the choices and the numbers of an action, and its width."""
    numbers = [(key, cut.start, part) for key, cut in spec.slices().items() if (part := spec.parts[key]).size]
    return {
        "choices": [{"name": key, "start": cut.start, "stop": cut.stop} for key, cut in spec.categorical_slices()],
        "continuous": [{"name": k, "start": i, "low": x.low, "high": x.high, "size": x.size} for k, i, x in numbers],
        "width": spec.width,
    }


def row_to_dict(agent: Agent, line: Timeline, number: int) -> dict[str, Any]:
    """Return a row of the page: the real row, the action after it, the dream, and the error of the dream.

    Row 0 has no reward.
    """
    real = line.real[number] if number < len(line.real) else None
    dreamt = line.dream[number] if number < len(line.dream) else None
    return {
        "t": number,
        "real": None if real is None else real.values | ({} if number else {"reward": None}),
        "action": line.actions[number] if number < len(line.actions) else None,
        "dream": None if dreamt is None else dream_values(agent, dreamt) | ({} if number else {"reward": None}),
        "error": None if real is None or dreamt is None else _row_errors(agent, real, dreamt.predictions, number),
    }


def dream_values(agent: Agent, row: DreamRow) -> dict[str, Any]:
    """Return the networks' predictions at a row of the dream."""
    predictions = row.predictions
    numbers = predicted_observations(predictions, vector_names(agent))
    names = ("reward", "cont", "prior_entropy", "policy")
    return {
        "how": row.origin,
        "value": predictions[f"{INTERNAL_PREFIX}value"],
        "numbers": {key: values.flatten() for key, values in numbers.items() if values.size <= MAX_SHOWN_NUMBERS},
        **{name: predictions[name] for name in names if name in predictions},
    }


def _row_errors(agent: Agent, real: RealRow, predictions: Predictions, number: int) -> dict[str, float | None]:
    """Return the error of each observation in its units (``dream_report.error_unit``), and of reward and cont.

    Row 0 has no reward.
    """
    errors: dict[str, float | None] = {}
    for key, part in agent.obs_spec.items():
        if (name := prediction_name(key)) in predictions and part.kind not in SPECIAL_KINDS:
            truth = real.step.obs[key].numpy()[None]  # [1, 1, ...]
            exact = one_hot_classes(truth, part) if part.kind == "categorical" else truth
            errors[name] = float(
                prediction_error(predictions[name].reshape(1, 1, -1), exact.reshape(1, 1, -1), part)[0]
            )
    errors["reward"] = abs(float(predictions["reward"]) - real.values["reward"]) if number else None
    return errors | {"cont": abs(float(predictions["cont"]) - (1.0 - real.values["terminal"]))}


def latent_to_dict(agent: Agent, inspector: WorldModelInspector, line: Timeline, at: int) -> dict[str, Any]:
    """Return the state of row ``at``: the classes of z and their prior probabilities, or its numbers; probes."""
    latent = line.dream[at].latent
    with torch.no_grad():
        named = inspector.world.rssm.stats_by_name(inspector.world.rssm.p(latent.deter))
    state: dict[str, Any] = {"at": at, "held": {str(k): v for k, v in line.pinned_classes.items()}}
    state["edits"] = [row for row, *_ in line.edits]
    if "logits" in named:
        state |= {"classes": latent.stoch[0].argmax(-1).tolist(), "prior": to_numpy(named["logits"][0].exp())}
    else:
        state |= {"values": to_numpy(latent.stoch[0, :, 0])}
        state |= {name: to_numpy(values[0]) for name, values in named.items()}
    return state | {"probes": _probe_predictions(agent, line, at)}


def _probe_predictions(agent: Agent, line: Timeline, at: int) -> dict[str, dict[str, Any]]:
    """Return the probes' predictions from row ``at`` by key, and the ``truth`` of a real row.

    ``read``: the predicted numbers, or the likeliest class, whose probability is ``chance``.
    """
    probe, row = getattr(agent.algo, "probe", None), line.dream[at]
    truth: dict[str, np.ndarray] = {}
    if not isinstance(probe, Probe):
        return {}
    if at < len(line.real):
        truth = {key: values[0].numpy() for key, values in line.real[at].step.obs.items()}
    needed = {key for parts in probe.given.values() for key in parts}
    obs = predicted_observations(row.predictions, vector_names(agent)) | truth
    inputs = {key: x for key, x in obs.items() if key in needed}
    probes: dict[str, dict[str, Any]] = {key: {} for key in probe.parts}
    state = ModelState(to_numpy(row.latent.deter), to_numpy(row.latent.stoch))
    for key, (values, *_) in agent.probe(state, inputs).items():
        probes[key]["read"] = values
        if (part := probe.parts[key]).kind == "categorical":
            likely = {"read": values.argmax(-1), "chance": values.max(-1)}
            probes[key] = {name: x.reshape(part.shape) for name, x in likely.items()}
        probes[key] |= {"truth": truth[key]} if key in truth else {}
    return probes


def vector_names(agent: Agent) -> list[str]:
    """Return the names of the observations that are vectors."""
    return [key for key, part in agent.obs_spec.items() if part.kind == "vector"]


def split_rows(predictions: Predictions) -> list[Predictions]:
    """Split the predictions ``[1, T, ...]`` of one episode into rows."""
    length = len(predictions["reward"][0])
    return [{name: values[0, t] for name, values in predictions.items()} for t in range(length)]


def flatten_action(agent: Agent, action: Sequence[float]) -> Tensor:
    """Return an action of the page ``[A]`` as in rows, ``[1, A]``: one-hot choices, or numbers in [-1, 1]."""
    flat = torch.tensor(action, dtype=torch.float32)[None].clamp(-1, 1)
    for _, cut in agent.action_spec.categorical_slices():
        best = flat[:, cut].argmax(-1)
        flat[:, cut] = torch.nn.functional.one_hot(best, cut.stop - cut.start).float()
    return flat
