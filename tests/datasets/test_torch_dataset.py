"""PyTorch datasets of transitions and of episodes are read as the same data in a file."""

import contextlib

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import reverie
from reverie.core.errors import ConfigError, DataError
from reverie.core.kernel_dispatch import use_only_kernels
from reverie.datasets.format_detection import open_reader

LENGTHS, ENDS = (4, 3, 5), (True, False, True)  # the second episode is truncated


class Items(Dataset):
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(())


def episodes():
    """Observations, actions, rewards of each episode; one observation more than actions."""
    rng = np.random.default_rng(1)
    return [(rng.random((n + 1, 3), np.float32), rng.uniform(-1, 1, (n, 2)).astype("f4"), rng.random(n, np.float32))
            for n in LENGTHS]  # fmt: skip


def transitions(as_tuple=False, names=("obs", "action", "reward", "next_obs", "terminated", "truncated")):
    items = []
    for (obs, action, reward), terminal in zip(episodes(), ENDS, strict=True):
        for t in range(len(action)):
            last = t == len(action) - 1
            values = (obs[t], action[t], reward[t], obs[t + 1], last and terminal, last and not terminal)
            items.append(tuple(map(torch.as_tensor, values[:5])) if as_tuple else dict(zip(names, values, strict=True)))
    return items


def rows_of(data):
    with open_reader(data) as reader:
        return [*reader.parts()]


def joined(parts, name):
    return np.concatenate([part[name] for part in parts])


EPISODES = [
    {"observations": torch.as_tensor(obs), "actions": action, "rewards": reward, "terminated": terminal, "id": 3}
    for (obs, action, reward), terminal in zip(episodes(), ENDS, strict=True)
]


@pytest.mark.parametrize("items", [
    transitions(), EPISODES, transitions(names=("state", "actions", "reward", "next_state", "terminal", "timeout")),
    [{**item, "terminated": np.arange(n) == (n - 1 if end else n)} for item, n, end in
     zip(EPISODES, LENGTHS, ENDS, strict=True)],
])  # fmt: skip
def test_items_are_episodes_with_all_their_observations(items):
    parts = rows_of(Items(items))
    expected = episodes()
    np.testing.assert_allclose(joined(parts, "obs"), np.concatenate([obs for obs, _, _ in expected]))
    lasts = np.flatnonzero(joined(parts, "is_last"))
    assert lasts.tolist() == (np.cumsum(np.add(LENGTHS, 1)) - 1).tolist()
    assert joined(parts, "is_terminal")[lasts].tolist() == list(ENDS)
    live = ~joined(parts, "is_last")
    np.testing.assert_allclose(joined(parts, "action")[live], np.concatenate([action for _, action, _ in expected]))
    first = ~joined(parts, "is_first")
    np.testing.assert_allclose(joined(parts, "reward")[first], np.concatenate([reward for _, _, reward in expected]))


def test_tuples_and_tensors_are_transitions():
    tuples = transitions(as_tuple=True)
    parts = rows_of(Items(tuples))
    assert joined(parts, "is_terminal").sum() == 2
    columns = [torch.stack([item[i] for item in tuples]) for i in range(5)]
    again = rows_of(TensorDataset(*columns))
    for name in ("obs", "action", "reward", "is_last"):
        np.testing.assert_array_equal(joined(parts, name), joined(again, name))


def test_a_shuffled_set_has_no_transition_from_one_item_to_the_next():
    items = transitions()
    np.random.default_rng(2).shuffle(items)
    parts = rows_of(Items(items))
    obs, following, last = joined(parts, "obs")[:-1], joined(parts, "obs")[1:], joined(parts, "is_last")[:-1]
    pairs = {(tuple(item["obs"]), tuple(item["next_obs"])) for item in items}
    found = {(tuple(a), tuple(b)) for a, b, end in zip(obs, following, last, strict=True) if not end}
    assert found == pairs


def test_episodes_without_rewards():
    parts = rows_of(Items([{k: x for k, x in item.items() if k != "rewards"} for item in EPISODES]))
    assert joined(parts, "is_last").sum() == len(LENGTHS)


@pytest.mark.parametrize(("data", "said"), [
    (Stream(), "Stream: a stream has no end"),
    (Items([{"pixels": np.zeros(3), "label": 1}]), "its items have pixels, label, but no array of observations and"),
    (Items([3]), "its items have int, but no array"),
    (Items([{"obs": np.zeros(3), "action": np.zeros(1), "reward": 0.0}]), "nothing in its items tells where"),
    (Items([{"obs": np.zeros((4, 3)), "action": np.zeros((2, 1)), "reward": np.zeros(2)}]), "has 4 observations, 2"),
    (Items([transitions()[0], {"obs": np.zeros(3), "action": np.zeros(2)}]), "Expected the same of each"),
    (Items([]), "its 0 items have nothing"),
])  # fmt: skip
def test_other_datasets_are_refused(data, said):
    with pytest.raises(ConfigError, match=said):
        rows_of(data)


def test_flags_of_another_name_are_refused_as_in_files():
    items = [{k: x for k, x in item.items() if k != "truncated"} | {"dones": item["terminated"] or item["truncated"]}
             for item in transitions()]  # fmt: skip
    with pytest.raises(DataError, match="'dones' seems to mark ends"):
        rows_of(Items([{k: x for k, x in item.items() if k != "next_obs"} for item in items]))


@pytest.mark.parametrize("use_kernels", [True, False])
def test_an_algorithm_learns_from_one(use_kernels, tmp_path):
    settings = {"updates": 6, "batch_size": 4, "tensorboard": False, "data.estimate_updates": 0, "seed": 1}
    settings["algo.batch_size"] = settings.pop("batch_size")
    weights = []
    with contextlib.nullcontext() if use_kernels else use_only_kernels():
        for number, items in enumerate((transitions(), EPISODES)):
            run = tmp_path / str(number)
            agent = reverie.train("iql", data=Items(items), run=run, **settings).agent
            weights.append(agent.algo.state_dict()["model"])
            assert agent.load_episode(1, data=Items(items)).shape == (1, LENGTHS[1] + 1)
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
