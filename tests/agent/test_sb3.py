"""Agents that Stable-Baselines3 and sb3-contrib have trained and saved (``tools/record_sb3.py``) act here as there."""

import io
import json
import zipfile
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

import reverie
from reverie.agent.import_sb3 import import_sb3
from reverie.cli.main import main
from reverie.core.errors import ConfigError, DataError

SAVED = Path(__file__).parents[1] / "golden" / "sb3"
CASES = sorted(path.stem for path in SAVED.glob("*.zip"))


class Masked(gymnasium.Wrapper):
    """CartPole with the masks of the recording."""

    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))

    def action_masks(self):
        return np.array([True, self.unwrapped.state[0] > 0])


@pytest.mark.parametrize("name", CASES)
def test_the_same_actions_on_the_same_observations(name, tmp_path, said):
    env = Masked if "masked" in name else "Pendulum-v1" if "pendulum" in name else "CartPole-v1"
    run = import_sb3(SAVED / f"{name}.zip", env, run=tmp_path / "run")
    agent, state = reverie.load(run, env=env if "masked" in name else None), None
    file, taken = np.load(SAVED / f"{name}.npz"), []
    for obs in file["obs"]:
        told = {"action_mask": np.array([True, obs[0] > 0])} if "masked" in name else {}
        action, state = agent.act(obs, state, **told)
        taken.append(action)
    expected = file["action"]
    np.testing.assert_allclose(np.reshape(taken, expected.shape), expected, rtol=0, atol=1e-6)
    assert len(CASES) == 10
    assert agent.step in (64, 65)  # A2C collects five at a time
    assert bool(said) == (name == "ppo_pendulum")  # whose value network is another


def test_what_was_learned_is_evaluated_exported_and_learned_on(tmp_path, capsys):
    """Its critics too: what they say of the recorded steps is what theirs would."""
    run = tmp_path / "run"
    call = ["import", "sb3", str(SAVED / "sac_pendulum.zip"), "--env", "Pendulum-v1", "--run", str(run)]
    assert main(call) == 0
    assert f"reverie eval {run}" in capsys.readouterr().out
    assert main(call) == 1
    assert "already exists" in capsys.readouterr().err
    assert main(["eval", str(run), "--episodes", "1"]) == 0
    agent = reverie.load(run)
    with zipfile.ZipFile(SAVED / "sac_pendulum.zip") as archive:
        theirs = torch.load(io.BytesIO(archive.read("policy.pth")), weights_only=True)
    x = torch.randn(5, 4)
    for copy in range(2):
        y = x
        for layer in (0, 2, 4):
            weight, bias = (theirs[f"critic_target.qf{copy}.{layer}.{part}"] for part in ("weight", "bias"))
            y = (y.relu() if layer else y) @ weight.T + bias
        ours = agent.algo.objective.target_critic.model({"observation": x[:, :3]}, x[:, 3:])[copy]
        torch.testing.assert_close(ours, y[:, 0])
    assert agent.config.algo.discount == 0.99
    assert float(agent.algo.objective.temperature) == pytest.approx(np.exp(-0.0132), abs=1e-4)
    go_on = [
        "train",
        "sac",
        "--env",
        "Pendulum-v1",
        "--init-from",
        str(run),
        "--run",
        str(tmp_path / "on"),
        "--steps",
        "30",
    ]
    small = "--algo.networks.units 8 6 --learning-starts 10 --random-steps 0 --eval-episodes 1"
    assert main([*go_on, *small.split()]) == 0


def test_what_is_none_of_theirs_or_does_not_fit_is_told(tmp_path):
    with pytest.raises(ConfigError, match=r"widths \[4, 8, 6, 2\], but this environment needs \[6, 8, 6, 3\]"):
        import_sb3(SAVED / "dqn_cartpole.zip", "Acrobot-v1", run=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    (tmp_path / "x.zip").write_bytes(b"no zip")
    with pytest.raises(DataError, match=r"x.zip is not a Stable-Baselines3 agent: File is not a zip file"):
        import_sb3(tmp_path / "x.zip", "CartPole-v1")
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("data", json.dumps({}))
        for name in ("policy.pth", "pytorch_variables.pth"):
            buffer = io.BytesIO()
            torch.save(Path("harm"), buffer)  # a pickle of something else than tensors
            archive.writestr(name, buffer.getvalue())
    with pytest.raises(DataError, match="is not a Stable-Baselines3 agent"):
        import_sb3(tmp_path / "x.zip", "CartPole-v1")
