"""MuZero: the targets of windows that cross ends of episodes, and its searches."""

import dataclasses

import pytest
import torch

from contracts import SPECS, batch, build, shown
from reverie.algos.planner import SEARCH_POLICY, SEARCH_VALUE
from reverie.algos.table import algorithm_config
from reverie.core.errors import ConfigError
from reverie.core.specs import MASK_KEY, PLAYER_KEY, ActionPart, ActionSpec, ObsPart
from reverie.core.types import Batch
from reverie.envs.board_games import NimRules, solve
from reverie.objectives.estimators import NStep

ROWS, UNROLL = 9, 4


def window(reward, value, ends):
    """A window with rewards and values of searches; ``ends``: row and whether it is terminal."""
    flags = torch.zeros(3, 1, ROWS, dtype=torch.bool)
    for row, terminal in ends:
        flags[1, 0, row], flags[2, 0, row] = True, terminal
        if row + 1 < ROWS:
            flags[0, 0, row + 1] = True
    policy = torch.full((1, ROWS, 3), 1 / 3)
    return Batch(
        obs={"state": torch.zeros(1, ROWS, 3)}, action=torch.eye(3)[torch.arange(ROWS) % 3][None],
        reward=torch.tensor([reward]), is_first=flags[0], is_last=flags[1], is_terminal=flags[2],
        weight=torch.ones(1), index=torch.zeros(1, dtype=torch.int64),
        extras={SEARCH_POLICY: policy, SEARCH_VALUE: torch.tensor([value])[..., None]},
    )  # fmt: skip


def direct_value(reward, value, ends, t, n, discount):
    """The n-step value of row t, in a loop; that of a terminal row is 0, of a truncated one its search's."""
    last, total, factor = dict(ends), 0.0, 1.0
    for i in range(t, t + n):
        if i in last or i == ROWS - 1:
            return total + factor * value[i] * (not last.get(i, False))
        total += factor * reward[i + 1]
        factor *= discount
    return total + factor * value[t + n] * (not last.get(t + n, False))


@pytest.mark.parametrize("discount", [-1.0, -0.9, 0.9])
@pytest.mark.parametrize(
    "ends",
    [[], [(0, True)], [(0, False)], [(2, True)], [(2, False)], [(1, True), (3, False)], [(4, True)], [(6, False)]],
)
def test_targets_across_the_ends_of_episodes(ends, discount):
    """After a terminal row all is 0; after a truncated one nothing is learned."""
    g = torch.Generator().manual_seed(len(ends))
    reward, value = torch.randn(2, ROWS, generator=g).tolist()
    for row, _ in ends:
        reward[row + 1] = 0.0
    agent = build("muzero", batch_length=ROWS, unroll=UNROLL, value_estimator=NStep(3))
    agent.objective.discount = discount
    targets = agent.objective.targets(window(reward, value, ends))
    end, terminal = ends[0] if ends else (ROWS, False)
    for t in range(UNROLL + 1):
        after = t > end
        assert targets.weight[0, t] == (0 if after and not terminal else 1 if t == 0 else 1 / UNROLL)
        assert targets.policy[0, t].sum().round(decimals=5) == (not after and not (terminal and t == end))
        if targets.weight[0, t]:
            expected = 0.0 if after else direct_value(reward, value, ends, t, 3, discount)
            assert targets.value[0, t].item() == pytest.approx(expected, abs=1e-5)
            assert after or targets.reward[0, t].item() == pytest.approx(reward[t])
            assert not after or targets.reward[0, t] == 0
        if t < UNROLL:
            torch.testing.assert_close(targets.action[0, t].sum(), torch.tensor(1.0))
            assert t >= end or targets.action[0, t].argmax() == t % 3


def test_actions_after_an_end_are_of_all_classes():
    agent = build("muzero", batch_length=ROWS, unroll=UNROLL, value_estimator=NStep(3))
    torch.manual_seed(0)
    seen = [agent.objective.targets(window([0.0] * ROWS, [0.0] * ROWS, [(1, True)])).action[0] for _ in range(40)]
    assert torch.stack(seen)[:, 1:].sum(0).gt(0).all()
    assert torch.equal(torch.stack(seen)[:, 0], torch.eye(3)[:1].expand(40, 3))


def test_a_search_is_stored_and_keeps_to_legal_actions():
    spec = SPECS["vector"] | {MASK_KEY: ObsPart(kind="mask", shape=(3,), dtype="bool")}
    agent = dataclasses.replace(build("muzero").cfg).build(spec, build("muzero").acts, seed=1)
    step = shown(envs=6)
    legal = torch.tensor([[True, False, True], [False, True, False], [False] * 3]).repeat(2, 1)
    step = dataclasses.replace(step, obs=step.obs | {MASK_KEY: legal})
    for mode in ("explore", "eval", "random"):
        action, state = agent.policy.act(step, agent.policy.initial(6), mode)
        assert (action.bool() <= (legal | ~legal.any(-1, keepdim=True))).all()  # after an end none is legal
        stored = agent.policy.extras(state)
        assert (stored[SEARCH_POLICY].shape, stored[SEARCH_VALUE].shape) == ((6, 3), (6, 1))
        assert stored[SEARCH_POLICY].sum().round(decimals=4) == (0 if mode == "random" else 6)


def test_new_searches_are_those_of_the_last_windows():
    agent = build("muzero", batch_length=4, reanalyze_interval=2)
    updates = [agent.update(batch(agent, seed=i)) for i in range(4)]
    assert [sorted(update.extras) for update in updates] == [[], [SEARCH_POLICY, SEARCH_VALUE]] * 2
    old, new = batch(agent, seed=3).extras[SEARCH_POLICY], updates[3].extras[SEARCH_POLICY]
    assert torch.equal(old[:1], new[:1])
    torch.testing.assert_close(new[1:].sum(-1), torch.ones(3, 4))


def test_rows_without_a_search_have_the_value_of_the_networks():
    agent = build("muzero", batch_length=6, frame_stack=3, frame_stack_keys=".*", normalize_obs="running")
    networks = agent.objective.older_networks
    networks.prediction.layers()[-1][0].data.normal_()
    given = batch(agent)
    is_missing = torch.zeros(given.shape, dtype=torch.bool)
    is_missing[1:, 3::2] = True
    given.extras[SEARCH_POLICY][is_missing], given.extras[SEARCH_VALUE][is_missing] = 0.0, 0.0
    filled = agent.fill_values(given)
    prepared, value = agent.prepare_batch(filled), filled.extras[SEARCH_VALUE]
    predicted = networks.predict(networks(prepared.obs))[1].mean()
    torch.testing.assert_close(value[is_missing][:, 0], predicted[is_missing[:, 2:]])
    assert torch.equal(value[~is_missing], given.extras[SEARCH_VALUE][~is_missing])
    assert value[is_missing].all()


@pytest.mark.parametrize(("name", "column"), [("muzero", SEARCH_VALUE), ("bmpc", "planned")])
def test_new_plans_of_stacked_frames_are_learned_in_their_rows(name, column):
    settings = {"frame_stack": 3, "frame_stack_keys": ".*", "reanalyze_interval": 1, "graph": False}
    agent, plans, learned = build(name, batch_length=6, **settings), [], []
    reanalyze, train_step = agent.objective.reanalyze, agent.train_step
    agent.objective.reanalyze = lambda *args: plans.append(reanalyze(*args)) or plans[0]
    agent.train_step = lambda rows: learned.append(rows.extras[column]) or train_step(rows)
    stored = agent.update(batch(agent)).extras[column]
    assert torch.equal(learned[0], plans[0][column])
    assert torch.equal(stored, plans[0][column])


def test_other_algorithms_refuse_games_of_two_players():
    """They would add up the rewards of both."""
    spec = SPECS["vector"] | {PLAYER_KEY: ObsPart(kind="player", shape=(), dtype="int64", classes=(2,))}
    with pytest.raises(ConfigError, match=r"^dqn does not learn games of two players.* Use muzero"):
        algorithm_config("dqn")().build(spec, build("muzero").acts)


def test_windows_that_are_too_short_are_refused():
    with pytest.raises(ConfigError, match=r"batch_length = 4, unroll = 3: expected windows of at least 5 rows"):
        build("muzero", batch_length=4, unroll=3)


def test_consistency_is_efficientzeros():
    """Latents after k steps are compared with those of row k of the same episode, which get no gradient."""
    agent = build("muzero", batch_length=ROWS, unroll=UNROLL, value_estimator=NStep(3), consistency_coef=2.0)
    o, n = agent.objective, agent.objective.networks
    window_of = {end: window([0.0] * ROWS, [0.0] * ROWS, [(end, True)]) for end in (1, 2, ROWS - 1)}
    obs = torch.randn(1, ROWS, 3, generator=torch.Generator().manual_seed(0))

    def unit(x):
        return x / x.square().sum(-1, keepdim=True).sqrt()

    for end, batch_of_rows in window_of.items():
        batch_of_rows = dataclasses.replace(batch_of_rows, obs={"state": obs})
        losses = o(batch_of_rows)
        z, total = n({"state": obs[:, 0]}), 0.0
        for k in range(1, min(UNROLL, end) + 1):
            after = n.step(z, batch_of_rows.action[:, k - 1])[1]
            guess, seen = o.consistency.predictor(o.consistency.projector(after)), n({"state": obs[:, k]}).detach()
            total = total + (1 - unit(guess).mul(unit(o.consistency.projector(seen).detach())).sum()) / UNROLL
            z = after.detach() + (after - after.detach()) / 2
        torch.testing.assert_close(losses.terms["consistency"], total)
        parameters = [*o.consistency.parameters(), *n.parameters()]
        pairs = [torch.autograd.grad(x, parameters, allow_unused=True) for x in (losses.terms["consistency"], total)]
        for actual, expected in zip(*pairs, strict=True):
            torch.testing.assert_close(actual, expected)
    terms = losses.terms
    expected = terms["actor"] + 0.5 * terms["critic"] + terms["reward"] + 2 * terms["consistency"]
    torch.testing.assert_close(o.total(losses), expected)
    assert build("muzero", consistency_coef=0.0).objective.consistency is None


def solved_windows(rules, count, rows, generator):
    """Windows ``[count, rows]`` of perfect games from random positions, one after the other, and their values."""
    solutions, size = solve(rules), rules.num_actions
    positions = list(solutions)
    shapes = {"board": rules.board(rules.start()).shape, "action": (size,), "policy": (size,), "value": (1,)}
    shapes |= dict.fromkeys(("reward", "first", "last", "player"), ())
    columns = {name: torch.zeros(count, rows, *shape) for name, shape in shapes.items()}
    for b in range(count):
        begins = True
        for t in range(rows):
            if begins:
                position = positions[int(torch.randint(len(positions), (), generator=generator))]
                reward, over, player = 0.0, False, 0
            row = {"reward": reward, "first": begins, "last": over, "player": player}
            row |= {"board": torch.from_numpy(rules.board(position)), "action": torch.zeros(size)}
            row |= {"policy": torch.zeros(size), "value": 0.0}
            begins = over
            if not over:
                solution = solutions[position]
                action = solution.optimal[int(torch.randint(len(solution.optimal), (), generator=generator))]
                row["policy"][list(solution.optimal)] = 1 / len(solution.optimal)
                row["value"], row["action"][action] = solution.value, 1
                position, reward, over = rules.play(position, action)
                player = 1 - player
            for name, x in row.items():
                columns[name][b, t] = x
    last = columns["last"].bool()
    return Batch(
        obs={"board": columns["board"], PLAYER_KEY: columns["player"].long()}, action=columns["action"],
        reward=columns["reward"], is_first=columns["first"].bool(), is_last=last, is_terminal=last,
        weight=torch.ones(count), index=torch.arange(count),
        extras={SEARCH_POLICY: columns["policy"], SEARCH_VALUE: columns["value"]},
    )  # fmt: skip


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_values_of_a_solved_game_are_learned_with_their_signs(sign):
    """Also after k moves in the model; with the discount of one player they are not."""
    rules = NimRules((2, 3))
    spec = {"board": ObsPart(kind="vector", shape=rules.board(rules.start()).shape, dtype="float32"),
            PLAYER_KEY: ObsPart(kind="player", shape=(), dtype="int64", classes=(2,))}  # fmt: skip
    actions = ActionSpec(parts={"action": ActionPart(kind="categorical", classes=(rules.num_actions,))})
    cfg = algorithm_config("muzero")().merge({
        "batch_length": 6, "unroll": 3, "value_estimator": "n_step(1)", "discount": 1.0, "lr": 3e-3, "batch_size": 64,
        "networks.units": (64,), "networks.encoder_units": (32,), "networks.max_value": 1.0, "networks.bins": 21,
        "reanalyze_interval": 0,
    })  # fmt: skip
    agent, g = cfg.build(spec, actions, seed=0), torch.Generator().manual_seed(0)
    assert agent.objective.discount == -1
    agent.objective.discount = -sign
    torch.manual_seed(0)
    batches = [solved_windows(rules, 64, 6, g) for _ in range(10)]
    for batch_of_games in 15 * batches:
        agent.update(batch_of_games)
    networks, errors = agent.objective.networks, []
    with torch.no_grad():
        z, alive = networks({"board": batch_of_games.obs["board"][:, 0]}), ~batch_of_games.is_last[:, 0]
        for k in range(4):
            value = batch_of_games.extras[SEARCH_VALUE][:, k, 0]
            errors.append((networks.predict(z)[1].mean() - value).abs()[alive])
            z = networks.step(z, batch_of_games.action[:, k])[1]
            alive = alive & ~batch_of_games.is_last[:, k + 1]
    error = torch.cat(errors).mean()
    assert error < 0.1 if sign > 0 else error > 0.3


def walked_windows(count, rows, generator):
    """Windows ``[count, rows]`` of a random walk over six cells, whose last one pays 1; its searches knew nothing."""
    columns = {name: torch.zeros(count, rows) for name in ("cell", "reward", "first", "last")}
    action = torch.randint(2, (count, rows), generator=generator)
    for b in range(count):
        cell, over = 0, True
        for t in range(rows):
            begins, over = over, False
            cell = (
                int(torch.randint(5, (), generator=generator))
                if begins
                else min(max(cell + 2 * int(action[b, t - 1]) - 1, 0), 5)
            )
            over = cell == 5
            for name, x in {"cell": cell, "reward": float(over), "first": begins, "last": over}.items():
                columns[name][b, t] = x
    last = columns["last"].bool()
    return Batch(
        obs={"cell": torch.eye(6)[columns["cell"].long()]}, action=torch.eye(2)[action] * ~last[..., None],
        reward=columns["reward"], is_first=columns["first"].bool(), is_last=last, is_terminal=last,
        weight=torch.ones(count), index=torch.arange(count),
        extras={SEARCH_POLICY: torch.full((count, rows, 2), 0.5), SEARCH_VALUE: torch.zeros(count, rows, 1)},
    )  # fmt: skip


def test_rows_of_earlier_policies_teach_the_policy_of_new_searches_by_default():
    spec = {"cell": ObsPart(kind="vector", shape=(6,), dtype="float32")}
    actions = ActionSpec(parts={"action": ActionPart(kind="categorical", classes=(2,))})
    cfg = algorithm_config("muzero")().merge({
        "batch_size": 40, "lr": 3e-3, "target_update_interval": 20, "num_simulations": 8, "networks.units": (64,),
        "networks.encoder_units": (32,), "networks.max_value": 1.0, "networks.bins": 21,
    })  # fmt: skip
    agent, g = cfg.build(spec, actions, seed=0), torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    rows = walked_windows(40, cfg.batch_length, g)
    for _ in range(100):
        rows = dataclasses.replace(rows, extras={**rows.extras, **agent.update(rows).extras})
    with torch.no_grad():
        logits, _ = agent.objective.networks.predict(agent.objective.networks({"cell": torch.eye(6)[:5]}))
    assert (torch.softmax(logits, -1)[:, 1] > 0.8).all()
