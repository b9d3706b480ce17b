"""Contracts of the learner: sizes, determinism, gradients, resume, precision, ends of episodes."""

import copy
import functools
import inspect
import math
import re
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch

from reverie.algos.dreamer_v3 import SIZES, DreamerV3, DreamerV3Config, DreamerV3Stats, sized
from reverie.algos.imagination import imagine
from reverie.core.config import Config
from reverie.core.errors import ConfigError, DataError
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.core.types import Batch, Step
from reverie.nn.adam import Adam
from reverie.nn.decoder import DecoderConfig
from reverie.nn.encoder import EncoderConfig
from reverie.nn.heads import Actor, ActorConfig
from reverie.nn.optim import OptimConfig
from reverie.nn.rssm import RSSM, Latent, RSSMConfig

TINY = {
    "rssm.deter": 16, "rssm.hidden": 8, "rssm.stoch": 3, "rssm.classes": 4, "rssm.blocks": 4, "encoder.units": 8,
    "encoder.depth": 2, "decoder.units": 8, "decoder.depth": 2, "reward.units": 8, "cont.units": 8, "actor.units": 8,
    "critic.units": 8, "batch_size": 3, "batch_length": 6, "horizon": 4, "optim.warmup": 0, "optim.lr": 1e-3,
}  # fmt: skip
OBS = {
    "image": ObsPart(kind="image", shape=(8, 8, 3), dtype="uint8"),
    "state": ObsPart(kind="vector", shape=(2,), dtype="float32"),
    "token": ObsPart(kind="categorical", shape=(2,), dtype="int64", classes=(3, 3)),
}
ACTIONS = {
    "discrete": ActionSpec(parts={"action": ActionPart(kind="categorical", classes=(4,))}),
    "continuous": ActionSpec(parts={"action": ActionPart(kind="continuous", size=2)}),
    "mixed": ActionSpec(
        parts={"b": ActionPart(kind="continuous", size=1), "a": ActionPart(kind="categorical", classes=(2, 3))}
    ),
}


def build(actions="discrete", **changes):
    return (
        DreamerV3Config()
        .merge(TINY | {k.replace("__", "."): v for k, v in changes.items()})
        .build(OBS, ACTIONS[actions], seed=1)
    )


def batch(agent, actions="discrete", seed=0):
    g = torch.Generator().manual_seed(seed)
    b, t = agent.window.batch, agent.window.rows
    action = torch.rand(b, t, ACTIONS[actions].width, generator=g)
    first = torch.rand(b, t, generator=g) < 0.2
    last = torch.cat([first[:, 1:], first[:, :1] & False], 1)
    extras = {}
    if "deter" in agent.extra_spec:
        extras = {
            "deter": torch.rand(b, t, 16, generator=g).to(getattr(torch, agent.extra_spec["deter"].dtype)),
            "classes": torch.randint(1, 5, (b, t, 3), generator=g).to(torch.uint8),
        }
    return Batch(
        obs={
            "image": torch.randint(0, 256, (b, t, 8, 8, 3), generator=g, dtype=torch.uint8),
            "state": torch.randn(b, t, 2, generator=g),
            "token": torch.randint(0, 3, (b, t, 2), generator=g),
        },
        action=action, reward=torch.randn(b, t, generator=g), is_first=first, is_last=last,
        is_terminal=last & (torch.rand(b, t, generator=g) < 0.5),
        weight=torch.ones(b), index=torch.arange(b), extras=extras,
    )  # fmt: skip


COUNTS = {  # peers' arithmetic for 64 x 64 x 3 images and six actions; the slow critic is not counted
    "1m": 686_456, "12m": 10_492_616, "25m": 23_487_016, "50m": 41_646_984, "100m": 93_463_624,
    "200m": 165_942_536, "400m": 372_887_176,
}  # fmt: skip


@pytest.mark.parametrize("size", COUNTS)
def test_parameter_counts_of_the_authors(size):
    spec = {"image": ObsPart(kind="image", shape=(64, 64, 3), dtype="uint8")}
    actions = ActionSpec(parts={"action": ActionPart(kind="categorical", classes=(6,))})
    with torch.device("meta"):  # shapes without memory
        agent = DreamerV3(spec, actions, sized(size), torch.device("meta"))
    assert agent.optim.count == COUNTS[size]


def test_every_named_size_builds_and_names_are_forgiving():
    assert sized("12M") == sized("12m") == DreamerV3Config()
    assert sized("xl").rssm.deter == SIZES["XL"]["deter"] == 4096
    with pytest.raises(ConfigError, match=r"size = '13m'.*Did you mean '1m', '12m'"):
        sized("13m")


@pytest.mark.parametrize("actions", ACTIONS)
@pytest.mark.parametrize("context", [0, 1, 2])
def test_update_returns_what_it_promises(actions, context):
    agent = build(actions, replay_context=context)
    assert agent.window.rows == 6 + context
    update = agent.update(batch(agent, actions))
    assert all(v.ndim == 0 and torch.isfinite(v) for v in update.metrics.values())
    assert update.priority.shape == (3,)
    names = ("dynamics", "representation", "reward", "cont", "reconstruction")
    scales = agent.cfg.scales.to_dict()
    losses = {k.removeprefix("loss/"): v for k, v in update.metrics.items() if k.startswith("loss/")}
    world = sum(scales[k.split("/")[0]] * v for k, v in losses.items() if k.split("/")[0] in names)
    assert torch.allclose(update.priority.mean(), world)
    assert {k: tuple(v.shape) for k, v in update.extras.items()} == (
        {"deter": (3, 6, 16), "classes": (3, 6, 3)} if context else {}
    )
    assert {k: str(v.dtype).removeprefix("torch.") for k, v in update.extras.items()} == {
        k: v.dtype for k, v in agent.extra_spec.items()
    }


@pytest.mark.parametrize("actions", ACTIONS)
def test_what_an_update_says_has_types_and_words(actions):
    agent = build(actions)
    metrics = agent.update(batch(agent, actions)).metrics
    said = agent.stats.of(metrics)
    assert isinstance(said, DreamerV3Stats)
    assert said.loss_actor is metrics["loss/actor"]
    assert said.loss_reconstruction == {key: metrics[f"loss/reconstruction/{key}"] for key in OBS}
    assert said.train_entropy == {key: metrics[f"train/entropy/{key}"] for key in ACTIONS[actions].parts}
    source = inspect.getsource(inspect.getmodule(agent.stats))
    for field in agent.stats.names().values():
        assert re.search(rf'^    {field}: (Tensor|Mapping\[str, Tensor\])\n    """', source, re.MULTILINE), field


@pytest.mark.parametrize("actions", ACTIONS)
def test_every_parameter_gets_a_gradient_or_is_a_target(actions):
    agent = build(actions)
    agent.update(batch(agent, actions))
    without = {n for n, p in agent.named_parameters() if p.grad is None}
    assert without == {n for n, _ in agent.named_parameters() if n.startswith("slow_critic.")}


def test_same_seed_same_updates():
    results = []
    for _ in range(2):
        agent = build()
        torch.manual_seed(5)
        for i in range(3):
            update = agent.update(batch(agent, seed=i))
        results.append((update.metrics, agent.state_dict()["model"]))
    (a, model_a), (b, model_b) = results
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert all(torch.equal(model_a[k], model_b[k]) for k in model_a)


def test_resume_continues_bit_for_bit():
    whole = build()
    torch.manual_seed(5)
    for i in range(2):
        whole.update(batch(whole, seed=i))
    saved, rng = copy.deepcopy(whole.state_dict()), torch.get_rng_state()
    for i in range(2, 4):
        whole.update(batch(whole, seed=i))
    resumed = build()
    resumed.load_state_dict(saved)
    torch.set_rng_state(rng)
    for i in range(2, 4):
        resumed.update(batch(resumed, seed=i))
    a, b = whole.state_dict(), resumed.state_dict()
    assert all(torch.equal(a["model"][k], b["model"][k]) for k in a["model"])
    assert all(torch.equal(a["optim"][k], b["optim"][k]) for k in a["optim"])


@pytest.mark.parametrize(
    ("width", "says"),
    [(None, "has no attribute width: expected an int"), (5, r"has width = 5, but returned features .*, 3\]")],
)
def test_an_encoder_of_ones_own_without_its_width_is_named(width, says):
    class Sized(torch.nn.Module):
        def forward(self, obs, dtype):
            return next(iter(obs.values())).flatten(2)[..., :3].to(dtype)

    class Build(EncoderConfig):
        def build(self, spec):
            encoder = Sized()
            if width is not None:
                encoder.width = width
            return encoder

    with pytest.raises(ConfigError, match=f"the encoder Sized {says}"):
        updated(encoder=Build())


def test_a_decoder_of_ones_own_that_changes_latents_in_place_is_named():
    agent = build()
    own = agent.world.decoder

    class Clamping(torch.nn.Module):
        def forward(self, latent):
            with torch.no_grad():
                latent.deter.clamp_(-0.1, 0.1)
            return own(latent)

    agent.world.decoder = Clamping()
    with pytest.raises(ConfigError, match="the decoder Clamping changed its input 'deter' in place"):
        agent.update(batch(agent))


def test_a_prediction_that_changes_its_target_in_place_is_named():
    agent = build()
    own = agent.world.decoder

    class Dividing:
        def loss(self, target):
            target /= 10
            return target.sum(-1)

    class Decoder(torch.nn.Module):
        def forward(self, latent):
            return own(latent) | {"state": Dividing()}

    agent.world.decoder = Decoder()
    with pytest.raises(ConfigError, match="a prediction of the decoder Decoder changed its input 'state' in place"):
        agent.update(batch(agent))


class NoBuild(Config):
    """Builds nothing."""


@pytest.mark.parametrize(
    ("encoder", "says"),
    [
        (EncoderConfig, r"That is a class: pass an object of it, such as EncoderConfig\(\)"),
        (torch.nn.Flatten(), r"encoder = Flatten.*Pass an object whose build returns this module"),
        (
            NoBuild(),
            r"encoder = NoBuild\(\): expected .* build\(obs_spec\)\. Define build\(obs_spec\) in the class NoBuild",
        ),
    ],
)
def test_what_builds_no_encoder_is_named_when_it_is_given(encoder, says):
    with pytest.raises(ConfigError, match=says):
        replace(DreamerV3Config(), encoder=encoder)
    with pytest.raises(ConfigError, match=r"^decoder = .*build\(obs_spec, deter, stoch\)"):
        replace(DreamerV3Config(), decoder=encoder if encoder is not EncoderConfig else DecoderConfig)


@pytest.mark.parametrize(
    ("decoded", "says"),
    [
        (torch.zeros(3), r"the decoder Decoder returned tensor.*expected a dictionary of predictions"),
        ({"stat": 1}, "the decoder Decoder predicts 'stat', which is no observation. Did you mean 'state'"),
        (
            {"state": torch.zeros(1)},
            r"the decoder Decoder returned tensor.* for 'state': expected an object with the me",
        ),
    ],
)
def test_a_decoder_of_ones_own_that_predicts_something_else_is_named(decoded, says):
    class Decoder(torch.nn.Module):
        def forward(self, latent):
            return decoded

    agent = build()
    agent.world.decoder = Decoder()
    with pytest.raises(ConfigError, match=says):
        agent.update(batch(agent))


def test_a_batch_whose_flags_are_numbers_is_refused():
    agent = build()
    rows = batch(agent)
    with pytest.raises(DataError, match=r"batch\.is_terminal has dtype torch\.int64: expected torch\.bool"):
        agent.update(replace(rows, is_terminal=rows.is_terminal.long()))


@pytest.mark.parametrize(
    ("method", "name", "term", "said"),
    [
        ("world", "actor", lambda x: x[..., 0], "two loss terms called 'actor', of which one would be lost"),
        ("world", "replay_critic", lambda x: x[..., 0], "two loss terms called 'replay_critic'"),
        ("dream", "reward", lambda x: x[..., 0], "two loss terms called 'reward'"),
        (
            "world",
            "head/a",
            lambda x: x[..., 0],
            "'head/a' has no scale, as LossScales has no field head. .*head: float",
        ),
        (
            "world",
            "cont",
            lambda x: x.mean(),
            r"world_losses: the loss term 'cont' has shape \[\]: .*\[B, T\] = \[3, 6\]",
        ),
        ("world", "cont", lambda x: x[:, 1:, 0], r"'cont' has shape \[3, 5\]: expected a tensor \[B, T\] = \[3, 6\]"),
        ("world", "cont", lambda x: 0.5, r"'cont' has the value 0\.5: expected a tensor \[B, T\]"),
        ("dream", "actor", lambda x: x[0, :, 0], r"dream_losses: .*'actor' has shape \[18\]: .*\[H, M\], with M = 18"),
    ],
)
def test_a_loss_term_that_does_not_fit_is_named_before_anything_is_learned(method, name, term, said):
    class Wrong(DreamerV3):
        def world_losses(self, rows, post):
            terms, metrics = super().world_losses(rows, post)
            return (terms | {name: term(post.latent.feature)} if method == "world" else terms), metrics

        def dream_losses(self, dream):
            terms, returns, metrics = super().dream_losses(dream)
            return (terms | {name: term(dream.feature)} if method == "dream" else terms), returns, metrics

    agent = own(Wrong)
    before = copy.deepcopy(agent.actor.state_dict())
    with pytest.raises(ConfigError, match=said):
        agent.update(batch(agent))
    torch.testing.assert_close(agent.actor.state_dict(), before, rtol=0, atol=0)
    assert agent.optim.updates == 0


class WithHead(DreamerV3):
    """Predicts a number of the observation from latents."""

    def __init__(self, *given):
        super().__init__(*given)
        self.head = torch.nn.Linear(self.world.rssm.feature_width, 1)

    def world_losses(self, rows, post):
        terms, metrics = super().world_losses(rows, post)
        error = self.head(post.latent.feature).squeeze(-1) - rows.obs["state"][..., 0]  # [B, T]
        return terms | {"reward": terms["reward"] + error.square()}, metrics


class TrainedByHand(WithHead):
    """Moves the head without an optimiser."""

    def learn(self, *given):
        self.head.zero_grad()
        found = super().learn(*given)
        with torch.no_grad():
            for p in self.head.parameters():
                p -= 1e-3 * p.grad
        return found


def own(learner):
    return learner(OBS, ACTIONS["discrete"], DreamerV3Config().merge(TINY), torch.device("cpu"))


def test_parameters_that_are_in_no_optimiser_are_named():
    agent = own(WithHead)
    with pytest.raises(
        ConfigError,
        match=r"^WithHead: no optimiser has 2 parameters.*: head.weight, head.bias. Give .*self\.optim\.params",
    ):
        agent.update(batch(agent))
    agent.optim = agent.cfg.optim.build([*agent.optim.params, *agent.head.parameters()])
    agent.update(batch(agent))
    frozen, by_hand = own(WithHead), own(TrainedByHand)
    frozen.head.requires_grad_(False)
    for agent in (frozen, by_hand):
        agent.update(batch(agent))


class OwnOptimiser(DreamerV3):
    """Trains another network by an optimiser of its own; ``kept`` is what checkpoints hold."""

    def __init__(self, make, kept, *given):
        super().__init__(*given)
        self.head, self.kept = torch.nn.Linear(self.world.rssm.feature_width, 1), kept
        self.own = {"head": make(self.head.parameters())}

    def learn(self, *given):
        losses, metrics = super().learn(*given)
        loss = self.head(losses.post.latent.feature.detach()).square().mean()
        if isinstance(self.own["head"], torch.optim.Optimizer):
            loss.backward()
            self.own["head"].step()
        else:
            self.own["head"].step(loss)
        return losses, metrics

    def extra_state(self):
        of_all = {**super().extra_state(), "own": {"head": self.own["head"].state_dict()}}
        return {key: copy.deepcopy(of_all[key]) for key in self.kept}  # a copy holds the moments as well


@pytest.mark.parametrize(
    "make", [OptimConfig(warmup=0).build, lambda p: Adam(p, 1e-3), torch.optim.Adam], ids=["Optim", "Adam", "PyTorch"]
)
def test_optimisers_that_no_checkpoint_would_hold_are_named(make):
    for kept, lost in ((["own"], "optim"), (["optim"], "own"), ([], "optim")):
        agent = own(functools.partial(OwnOptimiser, make, kept))
        with pytest.raises(ConfigError, match=rf"^OwnOptimiser\.{lost} is an optimiser that no checkpoint would hold"):
            agent.update(batch(agent))
    agent = own(functools.partial(OwnOptimiser, make, ["own", "optim"]))
    agent.update(batch(agent))


class TwoModed(torch.nn.Module):
    """Has dropout, batch norm, and a part that learns in eval mode; remembers the modes that it ran in."""

    def __init__(self):
        super().__init__()
        self.width, self.ran = 3, set()
        self.drop, self.norm = torch.nn.Dropout(0.5), torch.nn.BatchNorm1d(2)
        self.frozen = torch.nn.BatchNorm1d(2).eval()

    def forward(self, obs, dtype):
        self.ran.add((self.training, self.drop.training, self.norm.training, self.frozen.training))
        x = obs["state"].float()
        flat = self.drop(self.norm(self.frozen(x.flatten(0, -2))))
        return torch.nn.functional.pad(flat.view(x.shape), (0, 1)).to(dtype)


class BuildTwoModed(EncoderConfig):
    def build(self, spec):
        return TwoModed()


@dataclass(frozen=True, kw_only=True)
class BuiltByHand(DreamerV3Config):
    def build(self, obs_spec, action_spec, device="cpu", seed=0):
        return DreamerV3(obs_spec, action_spec, self, torch.device(device))


@pytest.mark.parametrize("config", [DreamerV3Config, BuiltByHand])
def test_modules_are_in_train_mode_in_updates_and_nowhere_else(config):
    cfg = replace(config().merge(TINY), encoder=BuildTwoModed())
    agent = cfg.build(OBS, ACTIONS["discrete"], seed=1)
    data, encoder = batch(agent), agent.world.encoder

    def look(agent):
        row = Step(
            obs={k: v[:, 0] for k, v in data.obs.items()}, reward=data.reward[:, 0], is_first=data.is_first[:, 0],
            is_last=data.is_last[:, 0], is_terminal=data.is_terminal[:, 0],
        )  # fmt: skip
        agent.policy.act(row, agent.policy.initial(3), "explore")
        agent.dream(data, 3)
        agent.report(data)
        ran, agent.world.encoder.ran = agent.world.encoder.ran, set()
        return ran

    before = copy.deepcopy(agent.state_dict()["model"])
    assert look(agent) == {(False, False, False, False)}
    assert all(torch.equal(v, before[k]) for k, v in agent.state_dict()["model"].items())
    agent.update(data)
    assert encoder.ran == {(True, True, True, False)}
    encoder.ran = set()
    assert int(encoder.norm.num_batches_tracked) == 1
    assert look(agent) == look(copy.deepcopy(agent)) == {(False, False, False, False)}
    agent.optim.step = None
    with pytest.raises(TypeError):
        agent.update(data)
    encoder.ran = set()
    assert look(agent) == {(False, False, False, False)}  # after an error too


def test_hooks_that_ask_for_the_mode_are_told():
    agent = build()
    layer = next(m for m in agent.world.modules() if getattr(m, "weight", torch.zeros(())).ndim == 2)
    assert layer.training  # of a learner of this library no flag is ever switched: none reads it
    torch.nn.utils.spectral_norm(layer)
    agent.rest()
    assert not layer.training


def test_copies_of_moments_without_values_are_moments():
    """As when the operations of an update are counted."""
    kept, rows = (OptimConfig(warmup=0).build, ["own", "optim"]), batch(own(DreamerV3)).to("meta")
    with torch.device("meta"):
        agent = OwnOptimiser(*kept, OBS, ACTIONS["discrete"], DreamerV3Config().merge(TINY), torch.device("meta"))
        agent.update(rows)


def test_a_checkpoint_may_hold_moments_by_other_names():
    class Flat(DreamerV3):
        def extra_state(self):
            return {name: getattr(self.optim, name) for name in ("square", "momentum", "updates")}

    agent = own(Flat)
    agent.update(batch(agent))


def updated(**changes):
    agent = build(**changes)
    return agent.update(batch(agent))


def test_building_does_not_disturb_the_global_generator():
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    build()
    assert torch.equal(torch.rand(1), expected)


def test_bfloat16_computes_low_and_keeps_float32_parameters():
    agent = build(precision="bfloat16")
    data = batch(agent)
    losses = agent.losses(*agent.split_context(data))
    assert losses.post.latent.deter.dtype == torch.bfloat16
    assert all(v.dtype == torch.float32 for v in losses.terms.values())
    agent.update(data)
    assert all(p.dtype == torch.float32 for p in agent.parameters())
    assert agent.extra_spec["deter"].dtype == "float16"


class Sum(RSSM):
    """A cell whose h grows beyond what float16 can hold."""

    def sequence_step(self, latent, action, cell):
        return super().sequence_step(latent, action, cell) + latent.deter + 40_000


@dataclass(frozen=True, kw_only=True)
class SumConfig(RSSMConfig):
    """Sizes."""

    def build(self, embed, action):
        return Sum(embed, action, self)


def test_a_large_state_of_ones_own_cell_is_stored_as_it_is():
    agent = DreamerV3Config(rssm=SumConfig(), precision="bfloat16").merge(TINY).build(OBS, ACTIONS["discrete"])
    latent = agent.world.rssm.initial(2, torch.bfloat16)
    cell = agent.world.rssm.cell(torch.bfloat16)
    for _ in range(2):
        latent = agent.world.rssm.imagine_step(latent, torch.zeros(2, 4), cell)
    assert torch.equal(agent.pack(latent)["deter"], latent.deter.float())
    assert latent.deter.min() > 65_504


def test_stored_latents_are_where_the_window_starts():
    agent = build()
    data = batch(agent)
    data.is_first[:] = False
    context, rows = agent.split_context(data)
    assert torch.equal(context.latent.deter, data.extras["deter"][:, 0])
    assert torch.equal(context.latent.stoch.argmax(-1) + 1, data.extras["classes"][:, 0].long())
    assert torch.equal(context.action, data.action[:, 0])
    assert torch.equal(rows.reward, data.reward[:, 1:])


def test_packed_latents_survive_the_round_trip():
    agent = build()
    policy = agent.policy
    step = Step(
        obs={k: v[:, 0] for k, v in batch(agent).obs.items()}, reward=torch.zeros(3),
        is_first=torch.ones(3, dtype=torch.bool), is_last=torch.zeros(3, dtype=torch.bool),
        is_terminal=torch.zeros(3, dtype=torch.bool),
    )  # fmt: skip
    action, state = policy.act(step, policy.initial(3), "explore")
    assert action.shape == (3, 4)
    assert torch.equal(action.sum(-1), torch.ones(3))
    packed = policy.extras(state)
    data = batch(agent)
    data.extras["deter"][:, 0], data.extras["classes"][:, 0] = packed["deter"], packed["classes"]
    context, _ = agent.split_context(data)
    assert torch.equal(context.latent.deter, state.latent.deter)
    assert torch.equal(context.latent.stoch, state.latent.stoch)


def test_columns_of_zeros_are_the_initial_latent():
    """As rows of others have them, and those of a checkpoint without latents."""
    agent = build()
    data = batch(agent)
    blank = {key: torch.zeros_like(value) for key, value in data.extras.items()}
    context, _ = agent.split_context(replace(data, extras=blank))
    without, _ = agent.split_context(replace(data, extras={}))
    for latent in (context.latent, without.latent):
        for found, expected in zip(latent, agent.world.rssm.initial(3, torch.float32), strict=True):
            assert torch.equal(found, expected)


@pytest.mark.parametrize(("classes", "dtype"), [(255, "uint8"), (256, "int16"), (300, "int16")])
def test_every_class_has_a_number(classes, dtype):
    agent = build(rssm__classes=classes)
    assert agent.extra_spec["classes"].dtype == dtype
    index = torch.tensor([[0, classes // 2, classes - 1]]).expand(3, 3)  # [B, S]
    latent = Latent(torch.zeros(3, 16), torch.nn.functional.one_hot(index, classes).float())
    data = batch(agent)
    extras = {key: value[:, None].expand(-1, 7, -1) for key, value in agent.pack(latent).items()}
    context, _ = agent.split_context(replace(data, extras=extras))
    assert torch.equal(context.latent.stoch, latent.stoch)


def see(agent, mode, seed):
    """What the policy does on the first rows of a batch."""
    step = Step(
        obs={k: v[:, 0] for k, v in batch(agent).obs.items()}, reward=torch.zeros(3),
        is_first=torch.ones(3, dtype=torch.bool), is_last=torch.zeros(3, dtype=torch.bool),
        is_terminal=torch.zeros(3, dtype=torch.bool),
    )  # fmt: skip
    torch.manual_seed(seed)
    action, state = agent.policy.act(step, agent.policy.initial(3), mode)
    return action, agent.actor(state.latent.feature)


def test_evaluation_takes_the_mode_and_exploration_samples():
    agent = build("continuous")
    for seed in range(5):
        action, policy = see(agent, "eval", seed)
        torch.testing.assert_close(action, policy.mode())
    drawn = torch.stack([see(agent, "explore", seed)[0] for seed in range(5)])
    assert (drawn.std(0) > 0).all()


@pytest.mark.parametrize(("unimix", "least"), [(0.01, 0.01 / 4), (0.2, 0.2 / 4), (0.0, 0.0)])
def test_the_policys_unimix_is_applied_and_can_be_switched_off(unimix, least):
    agent = build(**({} if unimix == 0.01 else {"actor__unimix": unimix}))
    with torch.no_grad():
        agent.actor.parts[0].logits.bias.copy_(torch.tensor([50.0, 0.0, 0.0, 0.0]))
    probs = see(agent, "eval", 0)[1].parts["action"].probs
    torch.testing.assert_close(probs[:, 0, 1:], torch.full((3, 3), least), rtol=1e-3, atol=1e-8)


def test_dreams_sample_latents_and_actions():
    agent = build("continuous")
    data = batch(agent, "continuous")
    context, rows = agent.split_context(data)
    with torch.no_grad():
        post = agent.world.observe(rows, context)
    agent.world.observe = lambda *_: post  # the same beginning, so that only the dream can differ
    dreams = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        dreams.append(agent.losses(context, rows).dream)
    assert torch.equal(dreams[0].feature[0], dreams[1].feature[0])
    assert not torch.equal(dreams[0].action[0], dreams[1].action[0])
    stoch = [d.feature[1, :, agent.cfg.rssm.deter :] for d in dreams]
    assert not torch.equal(*stoch)


def test_dreams_may_start_from_the_last_rows_only():
    agent = build(imagine_last=2)
    data = batch(agent)
    losses = agent.losses(*agent.split_context(data))
    assert torch.equal(losses.dream.feature[0], losses.post.latent.feature[:, -2:].flatten(0, 1))
    assert losses.terms["actor"].shape == (3, 2)
    assert losses.terms["replay_critic"].shape == (3, 1)
    context, rows = agent.split_context(data)
    with pytest.raises(ConfigError, match=r"imagine_last = 2, but windows have 1 row to learn from: use windows of at"):
        agent.losses(context, rows.rows(-1))


def test_an_update_moves_the_slow_critic_towards_the_critic():
    agent = build(slow_rate=0.25)
    before = agent.slow_critic.model.logits.weight.clone()
    agent.update(batch(agent))
    expected = before.lerp(agent.critic.logits.weight, 0.25)
    torch.testing.assert_close(agent.slow_critic.model.logits.weight, expected)
    assert not torch.equal(expected, before)


def test_acting_matches_observing():
    """The policy, step by step, holds the latents that training computes for the same rows."""
    agent = build(replay_context=0)
    data = batch(agent)
    data.is_first[:, 0] = True

    def mode(probs):
        return probs.argmax(-1)

    whole = agent.world.observe(data, agent.split_context(data)[0], mode).latent
    latent = agent.world.rssm.initial(3, torch.float32)
    for t in range(6):
        embed = agent.world.embed({k: v[:, t] for k, v in data.obs.items()})
        before = data.action[:, t - 1] if t else torch.zeros_like(data.action[:, 0])
        latent = agent.world.rssm.observe_step(latent, embed, before, data.is_first[:, t], mode)
        torch.testing.assert_close(latent.deter, whole.deter[:, t], rtol=1e-4, atol=1e-5)


def test_continuation_learns_terminal_and_never_a_time_limit():
    """Twice the same rows, once ended by death and once by the clock: only death is learned as an end."""
    agent = build()
    data = batch(agent)
    context, rows = agent.split_context(data)
    post = agent.world.observe(rows, context)
    rows.is_last[:] = True
    rows.is_terminal[:] = False
    clock, _ = agent.world_losses(rows, post)
    rows.is_last[:] = False
    neither, _ = agent.world_losses(rows, post)
    rows.is_terminal[:] = True
    death, _ = agent.world_losses(rows, post)
    assert torch.equal(clock["cont"], neither["cont"])
    assert not torch.equal(death["cont"], clock["cont"])


def test_classes_without_any_probability_left_cost_no_nan():
    """As softmax leaves them without unimix, where nothing compiled stands in its place."""
    agent = build(rssm__unimix=0.0)
    context, rows = agent.split_context(batch(agent, "discrete"))
    post = agent.world.observe(rows, context)
    certain = torch.zeros_like(post.probs)
    certain[..., 0] = 1
    agent.world.rssm.prior = lambda deter: certain
    terms, metrics = agent.world_losses(rows, post._replace(probs=certain.flip(-1)))
    assert all(torch.isfinite(terms[name]).all() for name in ("dynamics", "representation"))
    assert all(torch.isfinite(value).all() for value in metrics.values())


def test_the_replayed_critic_tells_terminal_from_last():
    agent = build(slow_regulariser=0.0)
    data = batch(agent).rows(1)
    data.is_first[:], data.is_last[:], data.is_terminal[:] = False, False, False
    feature = torch.randn(3, 6, agent.world.rssm.feature_width)
    boot = torch.full((3, 6), 50.0)
    data.reward[:] = 0.0
    seen = {}
    agent.value_loss = lambda value, returns, slow: seen.setdefault(len(seen), returns.clone())
    agent.replay_critic_loss(data, feature, boot)
    data.is_last[:, 3] = True
    masked = agent.replay_critic_loss(data, feature, boot)
    data.is_terminal[:, 3] = True
    agent.replay_critic_loss(data, feature, boot)
    plain, truncated, terminal = seen[0], seen[1], seen[2]
    gamma = agent.cfg.discount
    torch.testing.assert_close(truncated[:, 2], torch.full((3,), gamma * 50.0))  # its bootstrap, unmixed
    assert torch.equal(terminal[:, 2], torch.zeros(3))  # worth nothing
    assert torch.equal(plain[:, 4:], truncated[:, 4:])
    assert not masked[:, 3].any()  # the value of a last row is never a target: no action was taken there


def test_dream_shows_what_was_seen_and_imagines_the_rest():
    agent = build()
    data = batch(agent)
    out = agent.dream(data, context=3)
    assert out["image"].shape == data.obs["image"].shape
    assert out["state"].shape == data.obs["state"].shape
    assert out["token"].shape == (3, 7, 2, 3)
    assert out["reward"].shape == out["cont"].shape == (3, 7)
    with torch.no_grad():
        for parameter in agent.world.cont.logit.parameters():
            parameter.fill_(0)
        agent.world.cont.logit.bias.fill_(math.log(agent.cfg.discount / (1 - agent.cfg.discount)))
    torch.testing.assert_close(agent.dream(data, context=3)["cont"], torch.ones(3, 7))  # as it learns where all goes on
    with pytest.raises(ConfigError, match="context = 7"):
        agent.dream(data, context=7)


def test_report_shows_dreams_and_disturbs_nothing():
    agent = build()
    before, state = copy.deepcopy(agent.state_dict()["model"]), torch.get_rng_state()
    videos = agent.report(batch(agent))
    assert {k: v.shape for k, v in videos.items()} == {"report/image": (7, 1 + 3 * 8, 3 * 8, 3)}
    assert [sorted(set(frame.ravel().tolist())) for frame in videos["report/image"][:, 0]] == [[0]] * 3 + [[255]] * 4
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(v, before[k]) for k, v in agent.state_dict()["model"].items())


def test_learning_lowers_the_loss_on_one_batch():
    agent = build(optim__lr=1e-2)
    torch.manual_seed(0)
    data = batch(agent)
    metrics = [agent.update(data).metrics for _ in range(100)]
    for term in ("reconstruction/state", "reconstruction/token", "reward"):
        assert float(metrics[-1][f"loss/{term}"]) < 0.5 * float(metrics[0][f"loss/{term}"]), term


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"horizon": 0}, "horizon = 0"), ({"lam": 1.5}, "lam = 1.5"), ({"batch_size": 0}, "batch_size = 0"),
        ({"discount_horizon": 1.0}, "discount_horizon = 1.0"), ({"replay_context": -1}, "replay_context = -1"),
        ({"imagine_last": 65}, "imagine_last = 65"), ({"precision": "float8"}, "precision = 'float8'"),
        ({"imagine_last": 1}, "imagine_last = 1: expected 0, or from 2 to batch_length = 64"),
        ({"slow_rate": 0.0}, "slow_rate = 0.0"), ({"slow_rate": 1.5}, "slow_rate = 1.5"),
        ({"return_rate": -1.0}, "return_rate = -1.0"), ({"return_limit": 0.0}, "return_limit = 0.0"),
        ({"entropy": float("nan")}, "entropy = nan: expected a finite number, 0 or more"),
        ({"free_nats": -1.0}, "free_nats = -1.0"), ({"slow_regulariser": -1.0}, "slow_regulariser = -1.0"),
        ({"scales.reward": -1.0}, "scales.reward = -1.0: expected a finite"),
        ({"scales.cont": math.nan}, "scales.cont = nan"), ({"optim.eps": -1.0}, "optim.eps = -1.0"),
        ({"optim.lr": math.inf}, "optim.lr = inf"),
        ({"optim.warmup": 1e30}, r"optim.warmup = 10+\d+: expected at least 0, below 2\^63"),
        ({"encoder.keys": "("}, r"encoder.keys = '\(': expected a valid regular expression \(missing \)"),
        ({"decoder.keys": "["}, "decoder.keys = '\\['"), ({"encoder.kernel": 2}, "encoder.kernel = 2: expected an odd"),
        ({"decoder.kernel": 0}, "decoder.kernel = 0"), ({"actor.units": 0}, "actor.units = 0: expected at least 1"),
        ({"critic.scale": math.nan}, "critic.scale = nan"),
        ({"rssm.posterior_layers": -1}, "rssm.posterior_layers = -1"),
        ({"horizn": 3}, r"unknown option 'horizn'\. Did you mean 'horizon'"),
        ({"rssm.deterr": 3}, r"unknown option 'rssm\.deterr'\. Did you mean 'rssm\.deter'"),
    ],
)  # fmt: skip
def test_bad_settings(bad, says):
    with pytest.raises(ConfigError, match=says):
        DreamerV3Config().merge(bad)


# ---------------------------------------------------------------- a learner of one's own


class Acting(DreamerV3):
    """Replaces the actor, as a user might."""

    def __init__(self, *given):
        super().__init__(*given)
        self.actor = Actor(self.world.rssm.feature_width, ACTIONS["discrete"], ActorConfig(units=8))


class Module(torch.nn.Module):
    """Somebody's policy."""


class Misplaced(DreamerV3):
    """Assigns a policy to the wrong name."""

    def __init__(self, *given):
        super().__init__(*given)
        self.policy = Module()


def test_the_policy_acts_with_the_actor_that_is_there():
    learner = Acting(OBS, ACTIONS["discrete"], DreamerV3Config().merge(TINY), torch.device("cpu"))
    assert learner.policy.actor is learner.actor
    other = copy.deepcopy(learner)
    assert other.policy.actor is other.actor is not learner.actor


def test_a_policy_at_the_wrong_place_is_told():
    learner = Misplaced(OBS, ACTIONS["discrete"], DreamerV3Config().merge(TINY), torch.device("cpu"))
    with pytest.raises(ConfigError, match=r"Misplaced: assign the policy to self\._policy, not to self\.policy"):
        _ = learner.policy


def test_an_actor_that_imagination_would_not_call_is_refused():
    with pytest.raises(TypeError, match=r"Mine\.forward would only be called while acting: imagination calls"):
        type("Mine", (Actor,), {"forward": lambda self, feature: None})


def test_starts_of_imagination_have_one_axis():
    learner = build()
    start = Latent(torch.zeros(2, 3, 16), torch.zeros(2, 3, 3, 4))
    with pytest.raises(ValueError, match=r"deter has shape \(2, 3, 16\): expected \(2, 16\)"):
        imagine(learner.world.rssm, learner.actor, start, 2)


class Residual(torch.nn.Sequential):
    """Two layers, of which the second adds to the first."""

    def forward(self, x):
        x = self[0](x)
        return x + torch.tanh(self[1](x))


class Wrapped(torch.nn.Module):
    """A module that is no sequence of layers."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


@pytest.mark.parametrize("wrap", [Wrapped, lambda mlp: mlp])
def test_imagination_on_a_gpu_calls_an_mlp_of_ones_own(wrap, monkeypatch):
    learner, found = build(), []
    rssm, actor = learner.world.rssm, learner.actor
    units = actor.mlp.width
    for p in actor.parts.parameters():
        torch.nn.init.normal_(p)  # so that other hidden layers lead to other actions
    actor.mlp = wrap(Residual(torch.nn.Linear(rssm.feature_width, units), torch.nn.Linear(units, units)))
    for on_gpu in (False, True):
        known = SimpleNamespace(ready=lambda *given, yes=on_gpu: yes)
        monkeypatch.setattr("reverie.algos.imagination.gpu", known)
        torch.manual_seed(0)
        found.append(imagine(rssm, actor, rssm.initial(4, torch.float32), 3))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*found, strict=True))
    assert torch.equal(found[1].hidden, actor.mlp(found[1].feature[:-1]))
