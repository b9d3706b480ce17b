"""The doors of players: policies of one's own, recorded and scored, and agents that are sent to a goal."""

import doors
import files
import numpy as np
import oracle
from settings import make_factory
from story import CLASSES, legal_classes, read_log, story_of

import reverie

EPISODES, SEED = 6, 3
GOAL_STEP = 2
"""The step of the first episode that an agent is sent to."""
TINY = {"updates": 3, "eval_episodes": 0, "console": False, "tensorboard": False, "threads": 1, "device": "cpu",
        "algo.batch_size": 8, "algo.networks.units": (16,)}  # fmt: skip


class Policy:
    """A policy of one's own, which is legal, and notes what it is shown."""

    def __init__(self, c, report):
        self.c, self.report, self.newest, self.decisions = c, report, None, 0

    def __call__(self, obs, action_mask=None):
        c, story = self.c, obs["story"] if isinstance(obs, dict) else obs
        who, episode, t, _ = map(int, story)
        self.decisions = 0 if t == 0 else self.decisions + 1
        mask = legal_classes(who, episode, t, CLASSES[c["action"]])
        if c["mask"] in ("method", "info"):
            shown = action_mask["move"] if c["action"] == "mixed" else action_mask
            oracle.expect(self.report, "mask shown to a policy", np.ravel(shown).astype(bool).tolist(), mask, t=t)
        first, chosen = 0, []
        for n in CLASSES[c["action"]]:
            legal = [k for k in range(n) if mask[first + k] or c["mask"] == "none"]
            first, chosen = first + n, [*chosen, legal[(episode + t) % len(legal)]]
        numbers = np.array([who % 3 - 1, 0.5 * (t % 3)], np.float32)
        kinds = {"discrete": lambda: 2 + chosen[0], "multi": lambda: chosen, "box": lambda: numbers,
                 "mixed": lambda: {"move": chosen[0], "force": numbers}}  # fmt: skip
        return kinds[c["action"]]()

    def predict(self, observation, state=None, episode_start=None, deterministic=True, action_masks=None):
        """As models of Stable-Baselines3 do, with a state that counts decisions."""
        action = self(observation, action_masks)
        oracle.expect(self.report, "state of a policy", (state or 0, bool(episode_start[0])),
                      (self.decisions, self.decisions == 0))  # fmt: skip
        return action, self.decisions + 1


def player_of(c, report):
    policy = Policy(c, report)
    if c["policy"] == "predict":
        return policy
    return lambda obs, action_mask: policy(obs, action_mask)


def env_options(c):
    options = {"max_episode_steps": c["limit"]} if c["limit"] else {}
    return options | ({"action_repeat": c["repeat"]} if c["repeat"] > 1 else {})


def play_record(c, folder, steps, report):
    """What is recorded is what was played, each row once."""
    target = record(c, folder, report, epsilon=0.3, noise=0.2 if c["action"] in ("box", "mixed") else 0.0)
    rows = oracle.rows_in(log := read_log(folder / "log"), c)
    keys = files.read(target, c, rows, report, has_tags=c["format"] == "minari")
    doors.check_log(log, {key[0] for key in keys}, report)
    missing = {key for key, row in rows.items() if row.next or row.previous} - {*keys}
    if missing:
        report.add("rows that were not recorded", count=len(missing), first=sorted(missing)[:3])


def record(c, folder, report, **exploration):
    target = folder / files.TARGETS.get(c["format"], c["format"])
    reverie.record(make_factory(c, folder), player_of(c, report), out=target, episodes=EPISODES, seed=SEED,
                   format=c["format"], env_options=env_options(c), **exploration)  # fmt: skip
    return target


def play_evaluate(c, folder, steps, report):
    """Scores, lengths and takeovers of the episodes that were played, in their order."""
    evaluation = reverie.evaluate(make_factory(c, folder), player_of(c, report), EPISODES, seed=SEED,
                                  env_options=env_options(c))  # fmt: skip
    rows = oracle.rows_in(log := read_log(folder / "log"), c)
    ends = [row for row in rows.values() if row.is_last and not row.is_first]
    doors.check_log(log, {row.key[0] for row in ends}, report)
    true = [(sum(x.reward for x in oracle.backwards(row)), len([*oracle.backwards(row)]) - 1) for row in ends]
    played = [*zip(evaluation.scores, evaluation.lengths, strict=True)]
    if not np.allclose(played, true, atol=1e-3) if len(played) == len(true) else True:
        report.add("an evaluation of no episode", stored=played, true=true)
    taken = [row.is_taken for row in rows.values() if row.next]
    if abs(evaluation.intervention_rate - np.mean(taken)) > 1e-6:
        report.add("rate of takeovers", stored=evaluation.intervention_rate, true=float(np.mean(taken)))


def play_reach(c, folder, steps, report):
    """An agent that has hardly learned plays legal actions until it meets the goal, or the episode ends."""
    own = {f"env.{name}": value for name, value in (env_options(c) | stacked(c)).items()}
    data = record(c, folder, report)
    agent = reverie.train(c["algo"], env=make_factory(c, folder), data=str(data), run=folder / "run", **TINY, **own,
                          **learner_settings(c)).agent  # fmt: skip
    for radius, max_steps in ((0.1, None), (None, 2)):
        who, episode = len([*(folder / "log").iterdir()]), int(c["mask"] == "info")  # the first reset looks for a mask
        key = [who, episode, GOAL_STEP]
        goal = np.array(key, np.float32) if c["goals"] else story_of(*key)
        if not c["goals"] and c["encoder"] != "none":
            goal = {"story": goal, "picture": oracle.picture(*key)}
        result = agent.reach(goal, radius=radius, max_steps=max_steps, seed=SEED)
        rows = oracle.rows_in(log := read_log(folder / "log"), c)
        doors.check_log(log, {who}, report)
        check_reached(c, oracle.episode_of(rows[who, episode, 0]), result, radius, max_steps, report)


def stacked(c):
    return {"frame_stack": 2} if c["stack"] == "env" else {}


def learner_settings(c):
    settings = {"algo.subgoal_steps": 2} if c["algo"] == "hiql" else {}
    settings |= {"algo.networks.encoder": c["encoder"]} if c["encoder"] != "none" else {}
    if c["norm"] != "none":
        settings["algo.normalize_obs"] = c["norm"]
    if c["stack"] == "algo":
        settings |= {"algo.frame_stack": 2, "algo.frame_stack_keys": ".*"}
    return settings


def check_reached(c, episode, result, radius, max_steps, report):
    who, number, _ = episode[0].key
    met = next((k for k, row in enumerate(episode) if row.key[2] == GOAL_STEP), None) if radius else None
    last = min(x for x in (met, max_steps, len(episode) - 1) if x is not None)
    oracle.expect(report, "steps to a goal", result.steps, last, who=who)
    is_pursued = bool(c["goals"]) and oracle.natural_goal(who, number) == [who, number, GOAL_STEP]
    success = last == met if radius else False if is_pursued else None
    oracle.expect(report, "success of reaching", result.success, success, who=who, steps=result.steps)
    if len(episode) - 1 != last:
        report.add("steps behind the goal", played=len(episode) - 1, true=last)
    if c["algo"] != "gcbc":
        oracle.expect(report, "distances", len(result.distances), last + 1)
