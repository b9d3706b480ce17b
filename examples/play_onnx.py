"""Play with an exported policy, with NumPy and ONNX Runtime alone: python play_onnx.py policy.onnx CartPole-v1."""

import json
import sys
from pathlib import Path

import gymnasium
import numpy as np
import onnxruntime


class Policy:
    def __init__(self, file):
        inputs = json.loads(Path(file).with_suffix(".json").read_text())["inputs"]
        self.session, self.rng = onnxruntime.InferenceSession(file), np.random.default_rng(0)
        self.inputs = {one["name"]: one for one in inputs}
        self.state = {name: one["initial"] for name, one in self.inputs.items() if one["role"] == "state"}

    def noise(self, one):
        draw = {"uniform in [0, 1)": self.rng.random, "standard normal": self.rng.standard_normal,
                "exponential": self.rng.standard_exponential}  # fmt: skip
        return draw[one["distribution"]](one["shape"])

    def __call__(self, **given):
        """Return the outputs by name. ``given``: obs/..., is_first and reward, of which the policy reads some."""
        given = given | self.state | {n: self.noise(one) for n, one in self.inputs.items() if one["role"] == "noise"}
        feed = {n: np.broadcast_to(given[n], one["shape"]).astype(one["dtype"]) for n, one in self.inputs.items()}
        names = [one.name for one in self.session.get_outputs()]
        found = dict(zip(names, self.session.run(names, feed), strict=True))
        self.state = {name: found[f"next_{name}"] for name in self.state}
        return found


if __name__ == "__main__":
    policy, env = Policy(sys.argv[1]), gymnasium.make(sys.argv[2])
    obs, done, score = env.reset(seed=0)[0], False, 0.0
    first, reward = True, 0.0
    while not done:
        action = policy(**{"obs/observation": obs, "is_first": first, "reward": reward})["action"][0]
        obs, reward, terminated, truncated, _ = env.step(action)
        first, done, score = False, terminated or truncated, score + reward
    print(f"return {score:g}")
