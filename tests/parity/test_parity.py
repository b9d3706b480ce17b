"""The recordings of the authors' code, and whether the comparison finds what differs."""

import json
from pathlib import Path

import numpy as np
import pytest

import parity

ROOT = Path(__file__).parents[2]
FILES = ["dreamerv3_image_discrete.npz", "dreamerv3_vector_context.npz"]
EARLIER = [
    "dreamerv2_image_discrete.npz", "dreamerv2_vector_gaussian.npz", "dreamerv1_image.npz", "dreamerv1_image_pcont.npz",
    "plan2explore_dv2_discrete.npz", "plan2explore_dv2_continuous.npz", "dreamerv2_mixed_image.npz",
    "dreamerv2_dynamics_discrete.npz", "dreamerv2_mixed_tanh.npz", "dreamerv2_mixed_discrete.npz",
    "pydreamer_minigrid.npz", "pydreamer_dynamics.npz", "pydreamer_iwae3.npz", "pydreamer_cnn_goals.npz",
]  # fmt: skip
ON_POLICY = [
    "ppo_discrete.npz", "ppo_discrete_tail1.npz", "ppo_continuous.npz", "ppo_multidiscrete.npz", "ppo_masked.npz",
    "ppo_masked_multi.npz", "ppo_recurrent.npz", "ppo_recurrent_shared.npz", "ppo_recurrent_ffcritic.npz",
    "a2c_discrete.npz", "a2c_eps.npz", "a2c_rmsprop.npz",
]  # fmt: skip


@pytest.mark.parametrize("name", FILES + EARLIER)
def test_equal_to_the_authors_tensor_by_tensor(name):
    result = parity.compare(ROOT / "tests" / "golden" / name)
    assert len(result.lines) > 230
    assert not result.failed, str(result)
    if name in EARLIER:
        with np.load(ROOT / "tests" / "golden" / name) as z:
            recorded = {k for k in z.files if k.split("/")[0] in ("out", "grad", "step1", "step2", "step3")}
        compared = {line[0] for line in result.lines}
        halves = {k for k in recorded - compared if "actor/hout/" in k or k.endswith("_cell/bias")}  # two of ours
        assert recorded - compared == halves


@pytest.mark.parametrize("name", ["r2dreamer_image.npz", "r2dreamer_image_b.npz"])
def test_r2dreamer_and_its_siblings_are_equal_to_the_authors(name):
    file = ROOT / "tests" / "golden" / name
    result = parity.compare(file)
    assert not result.failed, str(result)
    with np.load(file) as z:
        recorded = {k for k in z.files if k.split("/")[0] in ("out", "grad", "step1", "step3")}
    assert recorded <= {line[0] for line in result.lines}


@pytest.mark.parametrize("name", ON_POLICY)
def test_ppo_and_a2c_are_equal_to_stable_baselines_at_each_minibatch(name):
    file = ROOT / "tests" / "golden" / name
    result = parity.compare(file)
    assert not result.failed, str(result)
    with np.load(file) as z:
        compared = {name for name, *_ in result.lines}
        first = {k for k in z.files if k.startswith("mb/00/")} - compared
        assert {k.rpartition("/")[-1] for k in first} <= {
            "index", "mask", "episode_start", "seq_start", "seq_len", "lstm_pi_h", "lstm_pi_c", "lstm_vf_h", "lstm_vf_c"
        }  # fmt: skip
        assert {k for k in z.files if k.split("/")[0] in ("first", "step1", "end")} <= compared
        traced = {k.replace("trace/", f"trace/{i:02d}/") for k in z.files if k.startswith("trace/grad/")
                  for i in range(len(z[k]))}  # fmt: skip
        assert traced <= compared
        losses = {f"mb/{k:02d}/{n}" for k in range(len(z["mb/loss"])) for n in ("loss", "policy_loss", "value_loss")}
        assert losses <= compared


def test_tdmpc2_is_equal_to_the_authors_plans_and_updates():
    file = ROOT / "tests" / "golden" / "tdmpc2_state.npz"
    result = parity.compare(file)
    assert not result.failed, str(result)
    with np.load(file) as z:
        recorded = {k for k in z.files if k.split("/")[0] in ("out", "grad", "step1", "step3")}
    assert recorded == {name for name, *_ in result.lines}


def test_bmpc_is_equal_to_the_authors_plan_and_updates():
    file = ROOT / "tests" / "golden" / "bmpc.npz"
    result = parity.compare(file)
    assert not result.failed, str(result)
    with np.load(file) as z:
        count = len(json.loads(bytes(z["meta"]))["parameters"])
        recorded = {k for k in z.files if k.startswith("out/")}
    compared = [name for name, *_ in result.lines]
    assert recorded <= set(compared)
    assert len([k for k in compared if k.startswith("step3/")]) == count
    assert len([k for k in compared if k.startswith("grad/")]) == count - 11  # without targets and the scale


@pytest.mark.parametrize("name", ["rebrac.npz", "fql.npz", "qc_fql.npz", "decision_transformer.npz"])
def test_offline_learners_are_equal_to_the_authors_updates(name):
    file = ROOT / "tests" / "golden" / name
    result = parity.compare(file)
    assert not result.failed, str(result)
    with np.load(file) as z:
        recorded = {k for k in z.files if k.split("/")[0] in ("out", "step1", "step2", "step3", "step4")}
    assert recorded == {name for name, *_ in result.lines}


GOAL_CONDITIONED = [
    "gcbc", "gcbc_discrete", "gcivl", "gcivl_discrete", "hiql", "hiql_discrete", "gciql", "gciql_awr", "gciql_discrete",
    "crl", "crl_awr", "crl_discrete", "qrl", "qrl_awr", "qrl_discrete",
]  # fmt: skip


@pytest.mark.parametrize("name", GOAL_CONDITIONED)
def test_goal_conditioned_learners_are_equal_to_the_authors_updates(name):
    file = ROOT / "tests" / "golden" / f"ogbench_{name}.npz"
    result = parity.compare(file)
    assert not result.failed, str(result)
    with np.load(file) as z:
        recorded = {k for k in z.files if k.split("/")[0] in ("out", "step1", "step3")}
    assert recorded == {name for name, *_ in result.lines}


def test_simba_v2_is_equal_to_the_authors_updates():
    file = ROOT / "tests" / "golden" / "simba_v2.npz"
    result = parity.compare(file)
    assert not result.failed, str(result)
    with np.load(file) as z:
        recorded = {k for k in z.files if k.split("/")[0].startswith(("initial", "out", "step"))}
    assert recorded == {name for name, *_ in result.lines}


def test_xqc_is_equal_to_the_authors_updates():
    file = ROOT / "tests" / "golden" / "xqc.npz"
    result = parity.compare(file)
    assert not result.failed, str(result)
    with np.load(file) as z:
        recorded = {k for k in z.files if k.split("/")[0].startswith(("out", "step"))}
    rounding = {k for k in recorded if k.endswith("BatchNormEmbedder_0/BatchNorm_0/bias")}
    without_actor = {f"out/update{i}/{name}" for i in (1, 2) for name in ("actor_loss", "entropy")}
    assert recorded - rounding - without_actor == {name for name, *_ in result.lines}


def disturbed(source, target, change):
    with np.load(source) as z:
        arrays = {k: z[k] for k in z.files}
    change(arrays)
    np.savez(target, **arrays)
    return target


TARGET = "step3/_target_Qs.0.weight"
SCALE = {"out/update1/td_targets": 1.001, TARGET: 1.01, "mb/value_loss": 1.001, "out/imag/target": 1.001}
SHIFT = {"out/plan/tn_eval/std": 1e-3, "out/advantage": 1e-3, "step3/param/actor/dense0/bias": 1e-2}
CHANGES = [
    ("tdmpc2_state.npz", {"out/plan/tn_eval/std": np.s_[1, 0, 0], "out/update1/td_targets": ..., TARGET: np.s_[0, 0]}),
    ("ppo_discrete.npz", {"mb/value_loss": np.s_[3], "out/advantage": np.s_[2, 1]}),
    ("dreamerv2_vector_gaussian.npz", {"step3/param/actor/dense0/bias": ..., "out/imag/target": ...}),
]


@pytest.mark.parametrize(("name", "places"), CHANGES)
def test_changed_tensors_are_found(tmp_path, name, places):
    def change(arrays):
        for key, place in places.items():
            arrays[key][place] = arrays[key][place] * SCALE.get(key, 1) + SHIFT.get(key, 0)

    file = disturbed(ROOT / "tests" / "golden" / name, tmp_path / "x.npz", change)
    assert set(parity.compare(file).failed) == {"mb/03/value_loss" if key == "mb/value_loss" else key for key in places}


@pytest.mark.parametrize("name", FILES)
def test_every_recorded_tensor_is_compared(name):
    with np.load(ROOT / "tests" / "golden" / name) as z:
        recorded = {k for k in z.files if k.split("/")[0] in ("out", "grad", "step1", "step2", "step3")}
    compared = {line[0] for line in parity.compare(ROOT / "tests" / "golden" / name).lines}
    missing = recorded - compared
    # The authors' count of slow updates and their row handles are the only things expressed otherwise.
    assert {m.rsplit("/", 1)[-1] for m in missing} <= {"value", "stepid"}, missing
    assert not {m for m in missing if m.endswith("/value") and "slowval_count" not in m}


def test_a_changed_tensor_is_found(tmp_path, capsys):
    def change(arrays):
        arrays["out/imag/return"] = arrays["out/imag/return"] * 1.001

    file = disturbed(ROOT / "tests" / "golden" / FILES[1], tmp_path / "x.npz", change)
    assert parity.main([str(file)]) == 1
    assert "OVER" in capsys.readouterr().out
    assert parity.main([str(file), "--tolerance", "0.01"]) == 0


def test_another_setting_of_theirs_is_refused(tmp_path, capsys):
    def change(arrays):
        meta = json.loads(bytes(arrays["meta"]))
        meta["agent"]["contdisc"] = False
        arrays["meta"] = np.frombuffer(json.dumps(meta).encode(), np.uint8)

    file = disturbed(ROOT / "tests" / "golden" / FILES[1], tmp_path / "x.npz", change)
    assert parity.main([str(file)]) == 2
    assert "contdisc" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("setting", "value", "says"),
    [("rssm.ensemble", 3, "rssm.ensemble = 3"), ("actor_ent", "linear(1,0,5)", "is a constant"), ("new", 1, "new")],
)
def test_a_setting_of_an_earlier_dreamer_that_we_lack_is_refused(tmp_path, capsys, setting, value, says):
    def change(arrays):
        meta = json.loads(bytes(arrays["meta"]))
        meta["agent"][setting] = value
        arrays["meta"] = np.frombuffer(json.dumps(meta).encode(), np.uint8)

    file = disturbed(ROOT / "tests" / "golden" / EARLIER[1], tmp_path / "x.npz", change)
    assert parity.main([str(file)]) == 2
    assert says in capsys.readouterr().err


def test_a_file_that_is_not_there(capsys):
    assert parity.main(["nowhere.npz"]) == 2
    assert "nowhere.npz" in capsys.readouterr().err
