"""Environments that tell their own story: observations say who, which episode and which step, and a log says all.

Nothing here imports reverie. Rewards, masks, goals and ends are functions of (instance, episode, step), so the log, one
line of JSON for each reset, step and crash, needs few columns.
"""

import json
import os
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

ACTION_SPACES = {
    "discrete": lambda: spaces.Discrete(4, start=2),
    "multi": lambda: spaces.MultiDiscrete([3, 2]),
    "box": lambda: spaces.Box(np.array([-2, -2], np.float32), np.array([3, 3], np.float32)),
    "mixed": lambda: spaces.Dict({"move": spaces.Discrete(3), "force": spaces.Box(-2, 3, (2,))}),
}
CLASSES = {"discrete": (4,), "multi": (3, 2), "box": (), "mixed": (3,)}
"""Number of classes of each choice of an action."""
NUM_GOALS = 5


def legal_classes(who, episode, t, classes):
    """The legal classes of all choices, in one list: at least one of each choice, and other ones in each step."""
    return [(k + who + episode + t + d) % 3 != 0 for d, n in enumerate(classes) for k in range(n)]


def planned_end(ends, who, episode):
    """Length of an episode, and how it ends."""
    return ends[(who + episode) % len(ends)]


def natural_goal(who, episode):
    return [who, episode, 2 + (who + episode) % NUM_GOALS]


def story_of(who, episode, t):
    return np.array([who, episode, t, (3 * t + episode) % 7], np.float32)


def picture(who, episode, t):
    """Pixels that tell a row, too."""
    pixels = np.full((4, 4, 1), (31 * episode + 17 * t) % 251, np.uint8)
    pixels[0, 0], pixels[1, 1], pixels[2, 2] = who, episode, t
    return pixels


def executed_numbers(kind, action):
    """An action as the log has it: numbers in the environment's units, then classes from 0."""
    if kind == "discrete":
        return [int(action) - 2]
    if kind == "mixed":
        return [*map(float, np.ravel(action["force"])), int(action["move"])]
    return [x.item() for x in np.ravel(action)]


class Life:
    """The state and the log of one instance; single environments and vectors are made of it."""

    def __init__(self, folder, options):
        self.folder, self.options = str(folder), options
        self.who, self.episode, self.t, self.is_over = self._claim_number(), -1, 0, True
        self.is_terminal = False

    def _claim_number(self):
        """The smallest number that no instance has, in any process."""
        number = 0
        while True:
            try:
                os.close(os.open(f"{self.folder}/{number}", os.O_CREAT | os.O_EXCL))
                return number
            except FileExistsError:
                number += 1

    def write(self, kind, **line):
        with open(f"{self.folder}/{self.who}", "a") as file:
            file.write(json.dumps({"kind": kind, "episode": self.episode, "t": self.t, **line}) + "\n")

    def reset(self, is_automatic=False):
        """Begin an episode. ``is_automatic``: in the step of a vector that ended the one before."""
        self.episode, self.t, self.is_over, self.is_terminal = self.episode + 1, 0, False, False
        self.write("reset", is_automatic=is_automatic)

    def reward(self, action):
        who, episode, t = self.who, self.episode, self.t
        if self.options["goals"]:
            return 0.0 if [who, episode, t] == natural_goal(who, episode) else -1.0
        return (7 * who + 13 * episode + 5 * t) % 11 - 5 + 0.25 * sum(action)

    def mask(self):
        return legal_classes(self.who, self.episode, self.t, CLASSES[self.options["action"]])

    def mask_array(self):
        mask = np.array(self.mask(), np.int8)
        return {"move": mask} if self.options["action"] == "mixed" else mask

    def is_legal(self, executed):
        if self.options["mask"] == "none":
            return True
        mask, first, counts = self.mask(), 0, CLASSES[self.options["action"]]
        for n, k in zip(counts, executed[-len(counts) :], strict=True):
            if not mask[first + int(k)]:
                return False
            first += n
        return True

    def is_replaced(self):
        """Whether somebody else acts now, if the options say so."""
        return self.t % 3 == 1 and not self.is_over

    def step(self, action, proposed=None):
        """Return reward, terminated, truncated. ``proposed``: the policy's action, if it was replaced by ``action``."""
        executed = executed_numbers(self.options["action"], action)
        chosen = executed if proposed is None else executed_numbers(self.options["action"], proposed)
        if self.is_over:  # a vector that does not reset takes one more step
            self.write("extra", action=executed)
            return 0.0, False, False
        is_legal = self.is_legal(executed)
        self.t += 1
        reward, (length, end) = self.reward(executed), planned_end(self.options["ends"], self.who, self.episode)
        is_reached = self.options["goals"] == "end" and reward == 0.0
        terminated = is_reached or (self.t >= length and end in ("terminal", "both"))
        truncated = self.t >= length and end in ("limit", "both")
        self.is_over, self.is_terminal = terminated or truncated, terminated
        flags = {"terminated": terminated, "truncated": truncated, "is_legal": is_legal}
        self.write("step", action=executed, chosen=chosen, reward=reward, **flags)
        return reward, terminated, truncated

    def obs(self):
        story = story_of(self.who, self.episode, self.t)
        parts = {"story": story}
        if self.options["goals"]:
            parts["achieved_goal"] = np.array([self.who, self.episode, self.t], np.float32)
            parts["desired_goal"] = np.array(natural_goal(self.who, self.episode), np.float32)
        if self.options["mask"] == "observation":
            parts["action_mask"] = np.array(self.mask(), np.int8)
        if self.options["players"] == 2:
            parts["player"] = np.int64(self.t % 2)
        if self.options["encoder"] != "none":
            parts["picture"] = picture(self.who, self.episode, self.t)
        return parts if len(parts) > 1 else story


def obs_space(options):
    story = spaces.Box(0, 1e6, (4,), np.float32)
    parts = {"story": story}
    if options["goals"]:
        parts |= dict.fromkeys(("achieved_goal", "desired_goal"), spaces.Box(0, 1e6, (3,), np.float32))
    if options["mask"] == "observation":
        parts["action_mask"] = spaces.MultiBinary(sum(CLASSES[options["action"]]))
    if options["players"] == 2:
        parts["player"] = spaces.Discrete(2)
    if options["encoder"] != "none":
        parts["picture"] = spaces.Box(0, 255, (4, 4, 1), np.uint8)
    return spaces.Dict(parts) if len(parts) > 1 else story


def replacement(life, kind):
    """The action that somebody else takes instead of the policy; a legal one."""
    if kind == "box":
        return np.array([-1.0, 1.0], np.float32)
    mask, first, chosen = life.mask(), 0, []
    is_masked = life.options["mask"] != "none"
    for n in CLASSES[kind]:
        chosen.append(mask[first : first + n].index(True) if is_masked else 0)
        first += n
    if kind == "mixed":
        return {"move": chosen[0], "force": np.array([0.5, -1.5], np.float32)}
    return 2 + chosen[0] if kind == "discrete" else np.array(chosen)


def told_replacement(who_tells, action, is_replaced):
    """What the info says of it, by the convention of HIL-SERL, gym-hil, or a safety layer."""
    if who_tells == "gym_hil":
        return {"is_intervention": is_replaced, "teleop_action": action}
    return {{"hil_serl": "intervene_action", "filter": "executed_action"}[who_tells]: action} if is_replaced else {}


def cast(space, action):
    """An action as arrays of its space."""
    if isinstance(space, spaces.Dict):
        return {key: cast(inner, action[key]) for key, inner in space.items()}
    return np.asarray(action, space.dtype)


def stack(space, actions, as_column):
    """The actions of N environments, stacked."""
    if isinstance(space, spaces.Dict):
        return {key: stack(inner, [action[key] for action in actions], as_column) for key, inner in space.items()}
    return as_column(np.asarray(actions, space.dtype))


def told_at(info, i):
    """What the info of a vector says of environment ``i``."""
    return {key: told_at(x, i) if isinstance(x, dict) else x[i] for key, x in info.items()
            if f"_{key}" in info and info[f"_{key}"][i]}  # fmt: skip


def forget(info, i):
    """Let the info of a vector say nothing of environment ``i``."""
    for key, x in info.items():
        if isinstance(x, dict):
            forget(x, i)
        elif key.startswith("_"):
            x[i] = False


class StoryEnv(gymnasium.Env):
    """A single environment."""

    def __init__(self, folder, options):
        self.life, self.options = Life(folder, options), options
        self.observation_space, self.action_space = obs_space(options), ACTION_SPACES[options["action"]]()
        if options["mask"] == "method":
            self.action_masks = self._action_masks

    def _action_masks(self):
        if self.life.is_terminal:
            raise RuntimeError("the game is over")
        return self.life.mask_array()

    def _info(self):
        return {"action_mask": self.life.mask_array()} if self.options["mask"] == "info" else {}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.life.reset()
        return self.life.obs(), self._info()

    def step(self, action):
        if self.options["crashes"] and self.life.episode % 5 == 4 and self.life.t == 1:
            self.life.write("crash")
            raise RuntimeError("the simulator has crashed")
        executed, told = action, {}
        if (who_tells := self.options["replaced"]) != "never":
            is_replaced = self.life.is_replaced()
            executed = replacement(self.life, self.options["action"]) if is_replaced else action
            told = told_replacement(who_tells, executed, is_replaced)
        reward, terminated, truncated = self.life.step(executed, action)
        return self.life.obs(), reward, terminated, truncated, self._info() | told

    def compute_reward(self, achieved, desired, info):
        return np.where((np.asarray(achieved) == desired).all(-1), 0.0, -1.0).astype(np.float32)

    def compute_terminated(self, achieved, desired, info):
        is_equal = (np.asarray(achieved) == desired).all(-1)
        return is_equal if self.options["goals"] == "end" else np.zeros_like(is_equal)


class StoryVector(VectorEnv):
    """N instances as arrays or tensors, in any autoreset mode."""

    def __init__(self, num_envs, folder, options):
        self.num_envs, self.options = num_envs, options
        self.mode = AutoresetMode[options["mode"]]
        self.metadata = {"autoreset_mode": self.mode}
        self.lives = [Life(folder, options) for _ in range(num_envs)]
        self.single_observation_space = obs_space(options)
        self.single_action_space = ACTION_SPACES[options["action"]]()
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.is_ended = np.zeros(num_envs, bool)

    def _column(self, values):
        array = np.asarray(values)
        if not self.options["tensors"]:
            return array
        import torch

        return torch.from_numpy(array.copy())

    def _obs(self):
        parts = [life.obs() for life in self.lives]
        if isinstance(parts[0], dict):
            return {key: self._column([part[key] for part in parts]) for key in parts[0]}
        return self._column(parts)

    def _info(self):
        if self.options["mask"] != "info":
            return {}
        return {"action_mask": self._column([life.mask_array() for life in self.lives])}

    def reset(self, *, seed=None, options=None):
        chosen = np.ones(self.num_envs, bool)
        if options and "reset_mask" in options:
            chosen = np.asarray(options["reset_mask"])
        for i in np.flatnonzero(chosen):
            self.lives[i].reset()
        self.is_ended &= ~chosen
        return self._obs(), self._info()

    def step(self, action):
        reward, flags = np.zeros(self.num_envs, np.float32), np.zeros((2, self.num_envs), bool)
        who_tells, executed, is_replaced = self.options["replaced"], [], np.zeros(self.num_envs, bool)
        for i, life in enumerate(self.lives):
            chosen = _select(action, i)
            is_replaced[i] = who_tells != "never" and life.is_replaced()
            executed.append(replacement(life, self.options["action"]) if is_replaced[i] else chosen)
            if self.is_ended[i] and self.mode == AutoresetMode.NEXT_STEP:
                life.reset()
            else:
                reward[i], *flags[:, i] = life.step(executed[i], chosen)
        self.is_ended = flags.any(0)
        info = {}
        if who_tells != "never":
            info = self._told(executed, is_replaced)
        if self.mode == AutoresetMode.SAME_STEP and self.is_ended.any():
            info = self._final_info(info) | {"final_obs": self._obs(), "_final_obs": self._column(self.is_ended)}
            for i in np.flatnonzero(self.is_ended):
                self.lives[i].reset(is_automatic=True)
        return self._obs(), self._column(reward), self._column(flags[0]), self._column(flags[1]), info | self._info()

    def _told(self, executed, is_replaced):
        """What the info says of replaced actions: arrays with masks, as Gymnasium joins them; tensors in every step."""
        who_tells, space = self.options["replaced"], self.single_action_space
        if self.options["tensors"]:
            flags = {} if who_tells == "filter" else {"is_intervention": self._column(is_replaced)}
            return flags | {"executed_action": stack(space, executed, self._column)}
        info = {}
        for i, (action, flag) in enumerate(zip(executed, is_replaced, strict=True)):
            told = told_replacement(who_tells, cast(space, action), bool(flag))
            info = self._add_info(info, told, i)
        return info

    def _final_info(self, info):
        """In a step that resets, what is said of the ended episodes is in the final info."""
        if self.options["tensors"] or not info:
            return info
        ended = {}
        for i in np.flatnonzero(self.is_ended):
            ended = self._add_info(ended, told_at(info, i), i)
            forget(info, i)
        return {**info, "final_info": ended, "_final_info": self.is_ended.copy()}


class StoryIds(StoryVector):
    """Like mjlab's: it does not reset by itself, but ``reset`` takes the numbers of the environments to reset."""

    def reset(self, *, seed=None, options=None, env_ids=None):
        if env_ids is None:
            return super().reset(seed=seed, options=options)
        for i in env_ids.tolist():
            self.lives[i].reset(is_automatic=True)
            self.is_ended[i] = False
        return self._obs(), self._info()


def _select(action, i):
    """The action of environment ``i``."""
    if isinstance(action, dict):
        return {key: np.asarray(value)[i] for key, value in action.items()}
    return np.asarray(action)[i]


def read_log(folder):
    """The lines that each instance has written, by its number."""
    numbers = sorted(int(path.name) for path in Path(folder).iterdir() if path.name.isdigit())
    return {n: [json.loads(line) for line in (Path(folder) / str(n)).read_text().splitlines()] for n in numbers}
