"""What is given to compiled functions, which see an address but no dtype."""

import pytest
import torch

from reverie.algos.discrete_cql import DiscreteCQLConfig
from reverie.algos.dreamer_v3 import DreamerV3Config
from reverie.algos.sac import SACConfig
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.experiment.bench import noise_batch, noise_step

SEEN = {"state": ObsPart(kind="vector", shape=(3,), dtype="float32")}
MOVE = ActionSpec(parts={"move": ActionPart(kind="continuous", size=2)})
CHOICE = ActionSpec(parts={"push": ActionPart(kind="categorical", classes=(3,))})
PARTS = ("encoder", "decoder", "reward", "cont", "actor", "critic")
DREAMER = DreamerV3Config(batch_size=2, batch_length=4, horizon=2).merge(
    {"rssm": {"deter": 32, "hidden": 16, "classes": 4, "stoch": 4, "blocks": 4}}
    | {part: {"units": 16, "layers": 1} for part in PARTS}
)
SMALL = {"networks.units": (8,), "batch_size": 4}
CASES = {
    "dreamer_v3": (DREAMER, MOVE),
    "sac": (SACConfig().merge(SMALL), MOVE),
    "discrete_cql": (DiscreteCQLConfig(num_quantiles=5).merge(SMALL), CHOICE),
}


@pytest.mark.parametrize("name", CASES)
def test_default_dtypes_of_pytorch_change_nothing(name):
    config, action_spec = CASES[name]
    built = config.build(SEEN, action_spec)
    batch, step, state = noise_batch(built, SEEN, action_spec), noise_step(SEEN, 2), built.policy.initial(2)

    def found(dtype):
        """Return an action, and the parameters and metrics after an update, of a learner made with this default."""
        torch.set_default_dtype(dtype)
        try:
            learner = config.build(SEEN, action_spec)
            torch.manual_seed(0)
            action, _ = learner.policy.act(step, state, "explore")
            update = learner.update(batch)
        finally:
            torch.set_default_dtype(torch.float32)
        return [action, *learner.parameters(), *learner.buffers(), *update.metrics.values()]

    expected = found(torch.float32)
    for dtype in (torch.float64, torch.float16):
        torch.testing.assert_close(found(dtype), expected, rtol=0, atol=0)
