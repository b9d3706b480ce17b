"""What policies would do in rows that others have lived: those that carry something see whole episodes in order."""

import numpy as np
import pytest
import torch

from reverie.agent.policy_rows import BLOCK, action_agreement, policy_actions
from reverie.algos.table import algorithm_config
from reverie.core.protocols import Memoryless
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.core.types import Step
from reverie.nn.exploration import EpsilonGreedy, GreedyPolicy
from tiny_configs import NETWORKS

LENGTHS = (3, 1, 5, 2, 2, 4)


def columns(lengths=LENGTHS):
    last = np.isin(np.arange(1, sum(lengths) + 1), np.cumsum(lengths))
    row = np.arange(len(last), dtype=np.float32)[:, None]
    return {
        "obs/row": row, "action": (row + 1) * ~last[:, None], "reward": np.zeros(len(last), np.float32),
        "is_first": np.roll(last, 1), "is_last": last, "is_terminal": np.zeros(len(last), bool),
    }  # fmt: skip


class Sums:
    """Says what was done in its episode so far, in sum, and the row that it sees."""

    def initial(self, num_envs):
        return torch.full((num_envs,), 1e6)

    def act(self, step, state, mode):
        total = state.masked_fill(step.is_first, 0.0)
        return torch.stack([total, step.obs["row"][:, 0]], -1), total

    def override(self, state, action):
        return state + action[:, 0]


class Sees(Sums):
    """Says the row that it sees, and a random number."""

    def initial(self, num_envs):
        return None

    def act(self, step, state, mode):
        return torch.stack([torch.rand(len(step)), step.obs["row"][:, 0]], -1), None

    def override(self, state, action):
        return None


def test_what_was_done_is_what_a_policy_carries():
    data = columns()
    found = policy_actions(Sums(), data, 2)[:, 0]
    total = 0.0
    for t in range(len(found)):
        total = 0.0 if data["is_first"][t] else total
        assert found[t].tolist() == [total, t]
        total += float(data["action"][t, 0])


@pytest.mark.parametrize("rows", [1, 1025])
def test_every_row_has_its_own_actions(rows):
    found = policy_actions(Sees(), columns((rows,)), 2, num_action_samples=3)
    assert found.shape == (rows, 3, 2)
    assert (found[..., 1] == np.arange(rows)[:, None]).all()
    assert (found[:, 0, 0] != found[:, 1, 0]).any()


class Free(Sees):
    """Says so."""

    def __init__(self):
        self.sizes = []

    def memoryless(self, mode):
        return True

    def act(self, step, state, mode):
        self.sizes.append(len(step))
        return super().act(step, state, mode)


def test_only_a_policy_that_says_so_is_shown_rows_in_any_order():
    data, policy = columns((3,) * 1000), Free()
    found = policy_actions(policy, data, 2)
    assert (found[:, 0, 1] == np.arange(3000)).all()
    assert policy.sizes == [BLOCK] * 3  # in as few calls as there are blocks, wherever episodes end
    policy.memoryless = lambda mode: False
    policy.sizes.clear()
    assert (policy_actions(policy, data, 2)[:, 0, 1] == np.arange(3000)).all()
    assert max(policy.sizes) <= 256


ROW = {"row": ObsPart(kind="vector", shape=(1,), dtype="float32")}
MOVE, CHOICE = ActionPart(kind="continuous", size=2), ActionPart(kind="categorical", classes=(2,))


def policy_of(name, part=MOVE, **settings):
    return algorithm_config(name)().merge(settings).build(ROW, ActionSpec(parts={"action": part})).policy


@pytest.mark.parametrize("name", ["ddpg", "td3", "sac", "dqn", "bcq", "iql", "tdmpc2"])
def test_actions_of_memoryless_policies_hang_on_no_earlier_row(name):
    """Those that draw do so from the generator alone, and those that count decisions from their number."""
    policy = policy_of(name, CHOICE if name == "dqn" else MOVE)
    assert policy.memoryless("eval") is (name != "tdmpc2")  # which goes on with its plan
    for mode in filter(policy.memoryless, ("eval", "explore")):
        shown = [seen(torch.full((4, 1), float(x)), first=x == 0) for x in (0, 9, 5)]
        acted = []
        for earlier in (shown[:2], [shown[0], shown[0]]):
            state = policy.initial(4)
            for step in earlier:
                state = policy.act(step, state, mode)[1]
            torch.manual_seed(0)
            acted.append(policy.act(shown[2], state, mode)[0])
        assert torch.equal(*acted)


def test_policies_of_stacked_frames_and_of_a_memory_hang_on_earlier_rows():
    assert not policy_of("td3", frame_stack=2, frame_stack_keys=".*").memoryless("eval")
    assert not isinstance(policy_of("dreamer_v3", **NETWORKS), Memoryless)


def seen(row, first):
    no = torch.zeros(len(row), dtype=torch.bool)
    return Step(obs={"row": row}, reward=row[:, 0], is_first=no | first, is_last=no, is_terminal=no)


def test_a_policy_that_has_explored_draws_as_it_did_then():
    values = torch.tensor([0.0, 0.0, 1.0])
    epsilon, where = EpsilonGreedy(1.0, 0.0, 1000), torch.device("cpu")
    policy = GreedyPolicy(lambda obs: values.expand(len(obs["row"]), 3), epsilon, (3,), where)
    data = columns((3,) * 20) | {"action": np.zeros((60, 3), np.float32)}
    for env_steps, share in {0: 0.4, 1000: 1.0}.items():
        torch.manual_seed(0)
        best = policy_actions(policy, data, 3, mode="explore", env_steps=env_steps)[:, 0, 2]
        assert best.mean() == pytest.approx(share, abs=0.15)


def test_agreement_with_recorded_actions_is_of_whole_choices_and_in_halves_of_the_range():
    move, arm = ActionPart(kind="categorical", classes=(2, 3)), MOVE
    taken = np.array([[1, 0, 0, 1, 0], [0, 1, 1, 0, 0]], np.float32)
    other = np.array([[1, 0, 1, 0, 0], [0, 1, 1, 0, 0]], np.float32)  # the first row has another second choice
    chosen = np.stack([taken, other * np.float32(1 - 1e-6)], 1)  # [2, 2, 5]
    assert action_agreement(chosen, taken, ActionSpec(parts={"move": move})) == {"same_action": 0.75}
    pulled, wanted = np.array([[0.5, -1.0]], np.float32), np.array([[[0.0, -1.0]]], np.float32)
    assert action_agreement(wanted, pulled, ActionSpec(parts={"arm": arm})) == {"action_distance": np.sqrt(0.125)}
    both = ActionSpec(parts={"arm": arm, "move": move})
    found = action_agreement(
        np.concatenate([wanted, chosen[:1, 1:]], -1), np.concatenate([pulled, taken[:1]], -1), both
    )
    assert found == {"same_action": 0.0, "action_distance": np.sqrt(0.125)}
