"""Wrong lines of reverie, each with the combination in which it matters and the kind of difference that names it."""

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import torch

from reverie.agent import own_policy, reaching, recording
from reverie.algos import on_policy, sac
from reverie.algos.impala import BehaviorPolicy
from reverie.algos.muzero import MuZeroObjective
from reverie.core import types
from reverie.core.action_codec import ActionCodec
from reverie.distributed.actor_collector import ActorCollector
from reverie.envs import masks, slot_vector_env
from reverie.envs.array_vector import ArrayVector
from reverie.envs.jax_vector import JaxVector
from reverie.envs.torch_vector import TorchVector
from reverie.envs.vector_env import VectorEnv
from reverie.nn import normalization
from reverie.nn.normalization import ObsNormalizer
from reverie.nn.optim import Optimizer
from reverie.nn.preprocess import FrameStacker
from reverie.nn.reward_model import PreferenceReward, SuccessReward
from reverie.objectives import estimators
from reverie.replay import hindsight
from reverie.replay.buffer import ReplayBuffer
from reverie.replay.config import Future
from reverie.replay.prioritized import PrioritizedSampler
from reverie.replay.windows import Windows
from reverie.run import episodes
from reverie.run.collect import EnvCollector
from reverie.run.episodes import EpisodeCounter
from reverie.store.store import ReplayStore


class Mutant(NamedTuple):
    """A function or method that is replaced, and what the twin must say of it."""

    owner: Any
    name: str
    factors: dict[str, Any]
    kind: str
    make: Any
    is_long: bool
    """Whether only the long mode plays it."""

    @property
    def changed(self):
        """The wrong version."""
        original = vars(self.owner)[self.name]
        return self.make(original.__func__ if isinstance(original, staticmethod) else original)


MUTANTS: dict[str, Mutant] = {}
N_STEP = {"estimator": ("n_step", 3)}


def mutant(owner, name, factors, kind, is_long=False):
    def note(make):
        MUTANTS[make.__name__] = Mutant(owner, name, factors | {"kernels": "off"}, kind, make, is_long)
        return make

    return note


@mutant(estimators.NStep, "function", N_STEP, "target")
def terminal_states_have_a_value(original):
    return staticmethod(lambda *, terminal, **more: original(terminal=torch.zeros_like(terminal), **more))


@mutant(estimators.NStep, "function", N_STEP, "target")
def one_reward_is_missing(original):
    return staticmethod(lambda *, n, **more: original(n=n - 1, **more))


@mutant(sac, "with_entropy_bonus", {"algo": "discrete_sac", **N_STEP}, "target")
def the_entropy_of_the_acting_row_counts(original):
    return lambda batch, bonus: (original(batch, bonus)[0], 0 * original(batch, bonus)[1])


@mutant(ReplayBuffer, "_end_cut_episodes", {"crashes": True, "algo": "dreamer_v3", "door": "train"},
        "an action where there is none")  # fmt: skip
def a_crash_does_not_end_the_episode(original):
    return lambda self, is_first: None


@mutant(Windows, "oldest", {"capacity": 60, "envs": 3, **N_STEP}, "rows joined that do not belong together")
def an_overwritten_row_is_sampled(original):
    def oldest(self):
        storage = self.storage
        return max(storage.first or -self.free, storage.count - storage.capacity - 2) * storage.streams

    return property(oldest)


@mutant(FrameStacker, "forward", {"stack": "algo", "ends": "short", **N_STEP}, "frames stacked wrongly")
def stacks_reach_into_the_episode_before(original):
    return lambda self, obs, is_first: original(self, obs, torch.zeros_like(is_first))


@mutant(ActionCodec, "unflatten", {"vector": "native_next"}, "action")
def another_class_is_executed(original):
    return lambda self, flat, *more: original(self, np.roll(flat, 1, -1), *more)


@mutant(estimators, "gae", {"algo": "ppo", "ends": "limit"}, "target")
def advantages_flow_over_ends(original):
    return lambda *, last, **more: original(last=torch.zeros_like(last), **more)


@mutant(on_policy, "exclude_takeovers", {"algo": "ppo", "replaced": "hil_serl", "estimator": ("gae", 0.8)}, "target")
def advantages_flow_over_the_actions_of_a_person(original):
    return lambda batch: dataclasses.replace(batch, extras=dict(batch.extras))


@mutant(Future, "draw_rows", {"goals": "reward", "hindsight": "future"},
        "a goal that this episode has not achieved")  # fmt: skip
def goals_are_of_the_next_episode(original):
    return lambda self, rng, begin, row, end: end + 1


@mutant(ObsNormalizer, "add", {"norm": "running"}, "statistics")
def rows_count_twice(original):
    def add(self, obs):
        original(self, obs)
        original(self, obs)

    return add


@mutant(normalization, "_merge_moments", {"norm": "running", "envs": 3}, "statistics")
def rows_of_a_turn_do_not_differ(original):
    return lambda moments, new, mean, scatter: original(moments, new, mean, 0.0)


@mutant(PrioritizedSampler, "probability", {"sampling": "priority"}, "importance weight")
def weights_ignore_the_exponent_of_priorities(original):
    return lambda self, handles: self.priority[handles % len(self.priority)] / self.priority.sum()


@mutant(ReplayBuffer, "correct", {"replaced": "hil_serl"}, "action")
def the_action_of_the_policy_is_stored(original):
    return lambda self, action, is_takeover: None


@mutant(ReplayBuffer, "correct", {"replaced": "gym_hil"}, "tag of a takeover")
def takeovers_are_not_tagged(original):
    return lambda self, action, is_takeover: original(self, action, None)


@mutant(EnvCollector, "_ask_person", {"replaced": "person"}, "tag of a takeover")
def nobody_is_asked(original):
    return lambda self, person, step, action: action


@mutant(EpisodeCounter, "add", {}, "a score of no episode")
def rewards_are_counted_twice(original):
    return lambda self, step, rewards: original(self, step, 2 * rewards)


@mutant(masks, "read_mask", {"mask": "method", "ends": "limit"}, "mask of a truncated row")
def all_classes_are_legal_at_a_time_limit(original):
    def read_mask(env, source, info, terminated=False, truncated=False):
        mask = original(env, source, info, terminated, truncated)
        return np.ones_like(mask) if truncated else mask

    return read_mask


@mutant(hindsight, "_find_rows_behind", {"goals": "end", "hindsight": "future", **N_STEP},
        "rows behind a relabeled end are learned from")  # fmt: skip
def rows_behind_a_relabeled_end_are_learned_from(original):
    return lambda ended, run_of_row, length: ended[:0]


@mutant(hindsight, "MASK", {"mask": "method", "goals": "end", "hindsight": "episode"},
        "mask of an end that relabeling has removed")  # fmt: skip
def an_unknown_mask_is_bootstrapped_from(original):
    return "no such column"


@mutant(ArrayVector, "step", {"vector": "native_same", "mask": "observation"}, "an illegal action was executed")
def hidden_steps_of_arrays_ignore_masks(original):
    return lambda self, action: original(self, action)._replace(hidden_masks=None)


@mutant(TorchVector, "step", {"vector": "torch_same", "mask": "observation"}, "an illegal action was executed")
def hidden_steps_of_tensors_ignore_masks(original):
    return lambda self, action: original(self, action)._replace(hidden_masks=None)


@mutant(VectorEnv, "_show", {"vector": "torch_same"}, "reward")
def the_reward_of_the_hidden_step_is_of_the_first_row(original):
    def step(self, rows, first):
        shown = original(self, rows, first)
        return dataclasses.replace(shown, reward=shown.reward + shown.is_first.float())

    return step


@mutant(sac.SoftObjective, "mean_target_entropy", {"algo": "discrete_sac", "mask": "info"}, "target entropy")
def target_entropies_ignore_masks(original):
    return lambda self, batch, mask: self.target_entropy


@mutant(Optimizer, "apply", {"frozen": "some", "algo": "td3", "action": "box"}, "frozen parameters that have changed")
def weights_decay_where_they_are_frozen(original):
    def apply(self, grads, **more):
        metrics = original(self, grads, **more)
        for p in self.params:
            p.data.mul_(0.99)
        return metrics

    return apply


@mutant(ReplayBuffer, "add", {"encoder": "by_size"}, "picture")
def pictures_are_black(original):
    def add(self, step, *more):
        pixels = {"picture": torch.zeros_like(step.obs["picture"])}
        return original(self, step.with_obs(step.obs | pixels), *more)

    return add


@mutant(recording, "rows_of", {"door": "record"}, "reward")
def rewards_of_recordings_are_doubled(original):
    return lambda episode, pair: original({**episode, "rewards": 2 * episode["rewards"]}, pair)


@mutant(own_policy, "play_episode", {"door": "evaluate"}, "an evaluation of no episode")
def rewards_of_own_policies_are_doubled(original):
    return lambda *args, **more: (step._replace(reward=2 * step.reward) for step in original(*args, **more))


@mutant(reaching, "_error", {"door": "reach", "goals": "reward"}, "steps to a goal")
def no_goal_is_ever_reached(original):
    return lambda obs, goal: original(obs, goal) + 1.0


@mutant(types.Window, "stride", {"estimator": ("td0", 0)}, "transitions that were never learned from")
def the_online_queue_steps_over_transitions(original):
    return property(lambda self: self.rows - self.num_free_rows)


@mutant(slot_vector_env, "find_instances", {"evaluate": "same"}, "not refused")
def evaluations_may_use_the_training_environment(original):
    return lambda env: set()


@mutant(estimators, "vtrace", {"algo": "impala", "estimator": ("v_trace", 0.9)}, "target", is_long=True)
def importance_weights_are_not_bounded(original):
    return lambda **inputs: original(**inputs | {"rho_max": 10.0, "c_max": 10.0})


@mutant(BehaviorPolicy, "extras", {"algo": "impala", "estimator": ("v_trace", 0.9)},
        "log-probability of the behavior policy", is_long=True)  # fmt: skip
def log_probabilities_are_not_those_of_the_action(original):
    return lambda self, state: {name: x - 0.1 for name, x in original(self, state).items()}


@mutant(JaxVector, "_export", {"vector": "torch_jax", "envs": 3}, "is_terminal", is_long=True)
def ends_in_jax_are_all_truncations(original):
    def export(self, rows):
        rows = original(self, rows)
        return rows._replace(terminal=torch.zeros_like(rows.terminal))

    return export


@mutant(ReplayStore, "histories", {"door": "files", "resume": "killed"}, "rows twice in a file", is_long=True)
def rows_behind_a_checkpoint_are_read(original):
    return lambda self: [[part._replace(stop=part.segment.rows) for part in parts] for parts in original(self)]


@mutant(ActorCollector, "add", {"door": "actors"}, "action", is_long=True)
def actions_of_actors_are_those_of_the_row_before(original):
    def add(self, number, block):
        rows = block.rows | {"action": np.roll(block.rows["action"], 1, axis=1)}
        return original(self, number, block._replace(rows=rows))

    return add


TWO_PLAYERS = {"algo": "muzero", "players": 2}


@mutant(episodes, "mover_sign", {**TWO_PLAYERS, "ends": "limit"}, "a score of no episode")
def rewards_of_both_players_add_up(original):
    return lambda player: 1.0


@mutant(MuZeroObjective, "targets", {**TWO_PLAYERS, **N_STEP}, "target")
def the_other_player_is_a_friend(original):
    def targets(self, batch):
        vars(self)["discount"] = abs(self.discount)
        return original(self, batch)

    return targets


@mutant(PreferenceReward, "relabel", {"taught": "preferences"}, "reward")
def a_taught_reward_is_of_the_row_that_acts(original):
    def relabel(self, batch):
        reward = original(self, batch).reward
        return dataclasses.replace(batch, reward=torch.cat([reward[:, 1:], reward[:, :1]], 1))

    return relabel


@mutant(SuccessReward, "relabel", {"taught": "success", **N_STEP}, "is_terminal")
def a_taught_end_has_a_value(original):
    return lambda self, batch: dataclasses.replace(original(self, batch), is_terminal=batch.is_terminal)
