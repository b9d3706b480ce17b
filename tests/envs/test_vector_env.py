"""The rules of rows hold on each road by which environments come in; what a road does not do is an exception here."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces

import roads
from reverie.core.errors import ActionError, ConfigError, DataError, EnvError
from reverie.run.evaluate import evaluate
from roads import ARRAYS, HIDING, KINDS, NUM, ROADS, SLOTS, STORIES, WRONG
from story_env import LENGTHS, VALUE, Story, is_legal, reward_at

RESETS = tuple(road for road in STORIES if road != "workers")
"""Each way of resetting and of telling infos."""
VECTORS, TENSORS = KINDS[1:], KINDS[2:]
EXCEPT = roads.cases(
    ("4 added", RESETS[1:], EnvError, "masks are observations of vectors"),
    ("11 log_info, 19 max_episode_steps, 19 frame_stack", VECTORS, ConfigError, "for single environments"),
    ("20 restarts", VECTORS, ConfigError, "for single environments"),
    ("12 clip_reward, 33 resize", TENSORS, ConfigError, "for rows of the host"),
    ("17 players", VECTORS, WRONG, "nobody checks that players alternate"),
    ("25 memory", ("torch_next", "torch_disabled", "user_tensors"), DataError, "as tensors are not copied"),
    ("27 one", VECTORS, WRONG, "resets all environments, or none"),
    ("34 call", VECTORS, EnvError, "has no environments that can be called"),
)
"""What a road does not do: the error, and why, in the words of docs/collecting.md."""
NAMED = set()


def marked(rule, road):
    NAMED.add((rule, road))
    return roads.marks(EXCEPT, rule, road)


def rule(name, roads=KINDS):
    """Test a rule on each of these roads."""
    return pytest.mark.parametrize("road", [pytest.param(road, marks=marked(name, road)) for road in roads])


@pytest.fixture
def make(road):
    """Make the environments of the test's road."""
    made = []
    yield lambda **options: made.append(roads.open_env(road, **options)) or made[-1]
    for env in made:
        env.close()


class Chooser:
    """A policy of random legal actions."""

    def __init__(self):
        self.rng = torch.Generator().manual_seed(0)

    def initial(self, num_envs):
        return torch.zeros(num_envs)

    def act(self, step, state, mode):
        score, push = torch.rand(len(step), 5, generator=self.rng).split([4, 1], 1)
        score = score * step.obs["action_mask"][:, :4] if "action_mask" in step.obs else score
        return torch.cat([torch.eye(4)[score.argmax(1)], push * 3 - 1.5], 1), state

    def override(self, state, action):
        return state

    def extras(self, state):
        return {}


def story(env, turns=20):
    """Yield for each turn the rows, the action before them, which is None at first."""
    policy, step, action = Chooser(), env.reset(), None
    for _ in range(turns):
        yield step, action
        action, _ = policy.act(step, (), "explore")
        env.send(action)
        step = env.receive()
    roads.check(env)


def keys(step):
    """Return number, episode, time, choice and push that each environment shows."""
    return [(*map(int, key[:4]), key[4]) for key in step.obs["key"].tolist()]


def played(env, turns=20):
    """Return the rows of some turns, after their check."""
    return [step for step, _ in story(env, turns)]


def collected(env):
    """Return a collector after 25 turns."""
    collector = roads.collector_of(env, Chooser())
    for _ in range(25):
        collector.collect()
    collector.settle()
    return collector


def raises(error, match, make, **options):
    with pytest.raises(error, match=match):
        played(make(**options))


@rule("1 story", ROADS)
def test_rows_tell_one_story(make, road):
    """Each action is executed in the state in which it was chosen, also where the step behind a reset is hidden."""
    env, before, hidden = make(), None, 0
    for step, action in story(env, 40):
        for i, (number, episode, time, choice, push) in enumerate(keys(step)):
            is_last, is_terminal = time == LENGTHS[number][episode % 4], episode % 3 != 1
            legal = [is_legal(number, episode, time, k) or (is_last and is_terminal) for k in range(4)]
            assert step.obs["action_mask"][i].bool().tolist() == [*legal, True]
            assert (step.is_last[i], step.is_terminal[i]) == (is_last, is_last and is_terminal)
            success = {"success_rate": float(Story.is_lucky(number, episode))}
            assert env.episode_info.get(i) == (success if is_last else None)
            if road not in SLOTS and not step.is_first[i]:  # also of an episode that is cut off here
                assert env.summary(i) == (success if is_last else {"success_rate": 0.0})
            assert step.is_first[i] == (before is None or before.is_last[i])
            assert step.obs["pair/0"][i] == -time
            if not step.is_first[i]:
                assert (number, episode, time - 1) == keys(before)[i][:3]
                assert choice - 1 == action[i, :4].argmax()
                assert push == pytest.approx(2 * float(action[i, 4].clamp(-1, 1)))
                assert float(step.reward[i]) == pytest.approx(reward_at(time), rel=1e-6)
                continue
            assert (float(step.reward[i]), is_last) == (0, False)
            hidden += time
            if time:  # zeros, and the first legal class
                legal = [is_legal(number, episode, 0, k) for k in range(4)]
                assert (time, choice - 1, push) == (1, legal.index(True), 0)
        before = step
    assert (hidden > 5) == (road in HIDING)


@rule("1 choice", RESETS)
@pytest.mark.parametrize("where", ["truncated", "inside"])
def test_without_a_legal_action_a_row_is_terminal(make, where):
    raises(DataError, r"action_mask leaves no legal action \(part 'choice'\).*not terminal", make, no_choice=where)


@rule("3 hidden", RESETS)
def test_a_state_without_a_legal_action_is_an_error_where_it_is_hidden(make):
    raises(DataError, "action_mask leaves no legal action", make, no_choice="hidden", lengths=((4,), (3,), (5,)))


@rule("15 first", ["user_tensors"])
def test_where_an_episode_begins_there_is_no_reward_and_no_end(make):
    """Vectors of arrays and of torch give rewards and flags of resets in all tests here."""
    for step in played(make(begins=(9.0, True))):
        assert not (step.reward.bool() | step.is_last | step.is_terminal)[step.is_first].any()


@rule("21 said", RESETS)
def test_hidden_steps_are_said_once(make, road, said):
    played(make())
    assert not said
    played(make(warns=True))
    lines = [line for line in said if "resets in the step that ends an episode, so an episode begins one step" in line]
    assert lines == said
    assert len(lines) == (road in HIDING)


@rule("4 added", RESETS)
def test_masks_of_infos_become_observations(make):
    for step in played(make(masks="info")):
        for i, (number, episode, time, *_) in enumerate(keys(step)):
            legal = [is_legal(number, episode, time, k) or bool(step.is_terminal[i]) for k in range(4)]
            assert step.obs["action_mask"][i].bool().tolist() == [*legal, True]


@rule("4 late", RESETS)
def test_masks_that_come_late_are_refused_unless_they_are_excluded(make):
    raises(EnvError, "info.* has an action_mask.*exclude_keys", make, masks="late")
    for masks in ("late", "info", "obs"):
        assert "action_mask" not in played(make(masks=masks, settings={"exclude_keys": "action_mask"}))[-1].obs


def check_executed(env, tells, is_part=False):
    """Play, and compare what is told with what the observations tell; ``is_part``: of the environment, if a filter."""
    replaced = 0
    for step, action in story(env):
        told = env.executed_actions
        assert action is not None or told is None
        for i, (number, _, time, choice, push) in enumerate(keys(step)):
            is_told = not (is_part or step.is_first[i]) and (tells == "filter" or (time % 2 == 0 and number < 2))
            assert bool(told is not None and told.is_replaced[i]) == is_told
            assert bool(told is not None and told.is_takeover[i]) == (is_told and tells == "takeover")
            if is_told:
                executed = told.replace_in(action)[i]
                assert (executed[:4].argmax() + 1, executed[4] * 2) == (choice, push)
            replaced += is_told
    assert (replaced > 9) != is_part


@rule("5 executed", STORIES)
def test_the_executed_action_is_told(make):
    check_executed(make(tells="takeover"), "takeover")


@rule("7 filters")
def test_a_filter_can_be_a_part_of_the_environment(make):
    """Not so a person, who does not depend on the policy's action."""
    check_executed(make(tells="filter"), "filter")
    check_executed(make(tells="filter", settings={"filtered_action": "policy"}), "filter", is_part=True)
    check_executed(make(tells="takeover", settings={"filtered_action": "policy"}), "takeover")


@rule("6 checked", RESETS)
@pytest.mark.parametrize("tells", ["illegal", "beyond"])
def test_an_executed_action_that_does_not_fit_is_an_error(make, tells):
    raises(DataError, "(executed_action|intervene_action|executed action).*(forbid|beyond)", make, tells=tells)


@rule("8 takeovers")
def test_takeovers_are_counted(make):
    collector = collected(make(tells="takeover"))
    rates, parts = collector.pop_action_rates(), collector.pop_episodes(at_the_end=True)
    assert rates["human/steps"] == roads.stored_rows(collector)["is_intervention"].sum()
    assert rates["human/rate"] == rates["human/steps"] / collector.env_steps
    assert {"success_rate", "success_rate_assisted", "success_rate_alone"} <= {x for part in parts for x in part.info}


@rule("9 filters")
def test_filtered_steps_are_counted(make):
    assert collected(make(tells="filter")).pop_action_rates() == {"env/filtered_rate": 1.0}


def changed(place, change):
    return lambda answer: [*answer[:place], change(answer[place]), *answer[place + 1 :]]


def without_final(info):
    return {key: x for key, x in info.items() if "final_obs" not in key}


@pytest.mark.parametrize("road", ["arrays_next", "arrays_same", "torch_next", "torch_same"])
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda answer: answer[:4], "expected 5 values"),
        (changed(1, lambda x: x[:, None]), r"reward .*3, 1.*expected"),
        (changed(2, lambda x: x[:, None]), r"terminated .*3, 1.*expected"),
        (changed(3, lambda x: x * np.nan), "truncated is .*bool"),
        (changed(4, without_final), "lacks the last observation"),
        (changed(0, lambda obs: sys.exit(0)), "failed with SystemExit: 0"),
        (changed(0, lambda obs: 1 / 0), "failed with ZeroDivisionError"),
    ],
)
def test_wrong_answers_name_the_vector(make, road, spoil, message):
    if road.endswith("same") or "lacks" not in message:
        raises((DataError, EnvError), f"(Stories|Simulator|environments).*{message}", make, spoil=spoil)


SETTINGS = {
    "11 log_info": (("cost",), lambda env, steps: "cost" in str(env.episode_info)),
    "12 clip_reward": ("sign", lambda env, steps: steps[1].reward.tolist() == [1] * NUM),
    "19 max_episode_steps": (3, lambda env, steps: max(step.obs["key"][:, 2].max() for step in steps) == 3),
    "19 frame_stack": (2, lambda env, steps: steps[0].obs["key"].shape[1:] == (2, 5)),
    "20 restarts": (3, lambda env, steps: env.restarts == 1),
    "33 resize": ((2, 2), lambda env, steps: steps[0].obs["value"].shape == (NUM, 2, 2, 3)),
}
SETTING_ROADS = [(name, road) for name in SETTINGS for road in KINDS]


@pytest.mark.parametrize(("setting", "road"), [pytest.param(*case, marks=marked(*case)) for case in SETTING_ROADS])
def test_settings_take_effect(make, setting):
    name, (value, has_effect) = setting.split()[1], SETTINGS[setting]
    options = {"resize": {"space": spaces.Box(0, 255, (8, 8, 3), np.uint8)}, "restarts": {"fails": True}}
    env = make(settings={name: value}, **options.get(name, {}))
    steps = [env.reset()]
    while len(steps) < 20 and not (name == "log_info" and env.episode_info):
        steps.append(env.step(torch.eye(5)[[0] * NUM]))
    assert has_effect(env, steps)


@rule("13 exact")
def test_scores_are_sums_of_rewards_before_they_were_rounded(make):
    evaluation = evaluate(make(), Chooser(), NUM)
    right = [sum(reward_at(time + 1) for time in range(length)) for length in evaluation.lengths]
    assert evaluation.scores == pytest.approx(right, rel=1e-12)


@rule("14 evaluation")
@pytest.mark.parametrize("bad", [np.nan, 1e39])
def test_a_reward_that_float32_does_not_hold_is_an_error(make, bad):
    with pytest.raises(DataError, match="reward"):
        evaluate(make(bad_reward=bad), Chooser(), 6)


@rule("16 counted", (*KINDS, "jax"))
def test_episodes_are_counted(make):
    parts = collected(make()).pop_episodes(at_the_end=True)
    score, length, ended = np.zeros(NUM), np.zeros(NUM), []
    for step, _ in story(make(), 26):
        first = step.is_first.numpy()
        score, length = np.where(first, 0, score + step.reward.numpy()), np.where(first, 0, length + 1)
        lucky = [Story.is_lucky(number, episode) for number, episode, *_ in keys(step)]
        ended += [(1, score[i], length[i], lucky[i]) for i in np.flatnonzero(step.is_last)]
    assert roads.totals(parts) == pytest.approx(np.sum(ended, 0), rel=1e-6)
    assert max(part.longest.max() for part in parts) == max(length for _, _, length, _ in ended)


@rule("16 mover")
def test_scores_of_games_are_the_first_players(make):
    """The last mover wins."""
    for moves, sign in ((3, 1), (4, -1)):
        collector = collected(make(lengths=((moves,),), alternates=True))
        count, score, *_ = roads.totals(collector.pop_episodes(at_the_end=True))
        assert score == sign * count


@rule("16 terminated")
def test_what_ended_an_episode_is_known(make):
    parts = collected(make()).pop_episodes(at_the_end=True)
    terminated = sum((part.info["terminated"] * part.count).sum() for part in parts)
    assert 0.5 < terminated / roads.totals(parts)[0] < 0.8


@rule("17 players")
def test_players_alternate(make):
    raises(EnvError, "player 0 moves twice in a row", make, alternates=False)


@rule("18 limit")
def test_terminations_at_a_time_limit_are_said_once(make, said):
    played(make(warns=True, num=4, lengths=((25,),)), 60)
    assert sum("no episode was longer than" in line for line in said) == 1


@rule("26 cut off", RESETS)
def test_an_episode_that_is_cut_off_does_not_change_which_count(make, road):
    lengths = evaluate(make(num=2, lengths=((10**9,), (3, 9))), Chooser(), 4, most_steps=10).lengths
    assert lengths == [10, 10, 3, 9 - (road in HIDING)]


ANY64 = spaces.Box(-np.inf, np.inf, (2,), np.float64)
VALUES = [
    (spaces.Discrete(5), 7, r"7; its space declares 0\.\.4"),
    (spaces.Discrete(5, start=2), 1, r"1; its space declares 2\.\.6"),
    (spaces.MultiDiscrete([2, 3]), 2, r"2 at index \(0,\); its space declares 0\.\.1"),
    (VALUE, np.nan, r"nan at index \(0,\): expected finite float32 numbers"),
    (VALUE, -np.inf, r"-inf at index \(0,\): expected finite float32 numbers"),
    (ANY64, 1e308, r"1e\+308 at index"),
    (ANY64, -1e308, r"-1e\+308 at index"),
    (spaces.Box(0, 1, (4, 4, 3), np.float32), 3, r"values .*3; its space declares 0\.\.1"),
    (spaces.Box(0, 7, (4, 4, 3), np.uint8), 9, r"values .*9; its space declares 0\.\.7"),
]


@rule("22 values", KINDS[:3])
@pytest.mark.parametrize(("space", "bad", "message"), VALUES, ids=[f"{space} {bad}" for space, bad, _ in VALUES])
def test_a_value_that_its_space_cannot_have_is_named(make, space, bad, message):
    raises(DataError, f"observation 'value'.* {message}", make, space=space, bad=bad)


@rule("22 evaluation")
def test_an_evaluation_checks_its_rows(make):
    with pytest.raises(DataError, match="nan at index"):
        evaluate(make(bad=np.nan), Chooser(), 9)


LIMITS = [
    (VALUE, -20, "-20 at index (0,), but its space declares -9 to 99. It is used unchanged"),
    (spaces.Box(0, 2**40, (1,), np.int64), 2**31, "2.147484e+09 at index (0,), but learners see float32, which rounds"),
]


@rule("23 said")
@pytest.mark.parametrize(("space", "bad", "message"), LIMITS, ids=["bounds", "precision"])
def test_a_value_outside_of_its_limits_is_used_and_said_once(make, said, space, bad, message):
    for warns in (False, True):
        assert not said
        shown = [step.obs["value"].double().abs().max() for step in played(make(space=space, bad=bad, warns=warns))]
        assert max(shown) == abs(bad)
    (line,) = (line for line in said if "observation 'value'" in line)
    assert f"observation 'value' is {message}" in line


@rule("24 actions")
def test_an_action_that_does_not_fit_is_the_learners_fault(make):
    env = make()
    env.reset()
    with pytest.raises(DataError, match=r"the action has shape .*4.*expected \[N, A\]"):
        env.step(torch.zeros(NUM, 4))
    for bad in (torch.nan, torch.inf, -torch.inf):
        env.reset()
        action = torch.zeros(NUM, 5)
        action[1, 2] = bad
        with pytest.raises(ActionError, match="the action for environment 1 is "):
            env.step(action), roads.check(env)


@rule("25 memory", STORIES)
def test_rows_do_not_change_when_the_next_are_taken(make):
    kept = [(step, step.obs["key"].clone()) for step, _ in story(make(reuses=True, lengths=((9,),)), 6)]
    assert all(torch.equal(step.obs["key"], key) for step, key in kept)


@rule("25 aligned", SLOTS + ARRAYS)
def test_networks_read_aligned_rows(make):
    """NumPy aligns to 16 bytes, MKL's last bit depends on 64: a resumed run would differ from an undisturbed one."""
    assert not any(x.data_ptr() % 64 for step in played(make()) for x in step.obs.values())


@rule("27 truncated", ROADS)
def test_episodes_can_be_ended_from_outside(make):
    """In environments that say so, each alone; else all."""
    env = make()
    ends = [not env.can_end_one, True, not env.can_end_one]
    assert env.truncate(env.reset(), [1]).is_last.tolist() == ends
    assert env.step(torch.eye(5)[[0] * NUM]).is_first.tolist() == ends


@rule("27 one")
def test_episodes_can_be_ended_alone(make):
    assert make(num=1).can_end_one
    assert make(num=2).can_end_one


@rule("30 seeds")
def test_seeds_are_derived_and_repeatable(make):
    assert all(map(torch.equal, *([step.obs["value"] for step in played(make())] for _ in range(2))))
    env = make()
    one, two, other = (env.reset(seed).obs["value"] for seed in (5, 5, 60))
    assert torch.equal(one, two)
    assert not torch.isin(one, other).any()
    assert len(one.unique()) == 2 * NUM
    assert not torch.isin(one, env.reset().obs["value"]).any()  # it continues


@rule("34 call", (*SLOTS, *VECTORS))
def test_environments_can_be_called(make):
    env = make()
    env.reset()
    assert env.call("number") == [0, 1, 2]
    env.set_attr("time", 3)
    assert env.call("time") == [3] * NUM


def test_exceptions_are_of_rules_that_are_tested():
    """And documented."""
    assert EXCEPT.keys() <= NAMED
    page = (Path(__file__).parents[2] / "docs/collecting.md").read_text()
    assert [why for _, why in EXCEPT.values() if why not in page] == []
