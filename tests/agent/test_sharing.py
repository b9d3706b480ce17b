"""Agents are passed on to a hub, to storage and to folders, and act there as they did here."""

import html
import json
import os
import re
import shutil
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
import yaml

import reverie
from hub_server import hub as hub
from reverie.cli.main import main
from reverie.core.errors import ConfigError, RunError, UntrustedError


def played(agent):
    env = gymnasium.make("CartPole-v1")
    torch.manual_seed(0)  # of the latents
    obs, state, taken = env.reset(seed=3)[0], None, []
    for _ in range(20):
        action, state = agent.act(obs, state)
        taken.append(int(action))
        obs, _, ended, _, _ = env.step(action)
        obs = env.reset()[0] if ended else obs
    return taken


def test_an_agent_at_the_hub_is_the_one_that_was_pushed(hub, trained, capsys, tmp_path):
    assert main(["push", str(trained), "hf://me/pole", "--no-page"]) == 0
    first, files = hub.files("me/pole")
    folder = next(name for name in files if name.endswith(".safetensors")).rpartition("/")[0]
    assert {*files} == {
        ".gitattributes", "README.md", "agent.json", "config.yaml", "spec.json", "eval.json", "curve.png",
        "provenance.json",
        *(f"{folder}/{name}" for name in ("tensors.safetensors", "state.json", "manifest.json")),
    } - ({"curve.png"} if not (trained / "curve.png").exists() else set())  # fmt: skip
    assert played(reverie.load("hf://me/pole")) == played(reverie.load(trained))
    assert [path.name for path in Path("runs").iterdir()] == [f"pole-{first[:7]}"]
    asked = len(hub.asked)
    reverie.load("hf://me/pole")  # it is here
    assert not any("safetensors" in line for line in hub.asked[asked:])
    hub.commits("me/pole")[-1][1]["environments.zip"] = b"a pickle"
    assert main(["push", str(trained), "hf://me/pole", "--no-page"]) == 0  # another commit, without two checkpoints
    assert sum(name.endswith(".safetensors") for name in hub.files("me/pole")[1]) == 1
    pulled = reverie.pull(f"hf://me/pole@{first}", "old")
    assert sorted(path.name for path in pulled.iterdir() if path.name != "curve.png") == [
        "README.md", "agent.json", "checkpoints", "config.yaml", "eval.json", "provenance.json", "spec.json"
    ]  # fmt: skip
    (process,) = json.loads((pulled / "provenance.json").read_text())["processes"]
    assert process.keys() == {"step", "git", "versions", "machine", "modules"}  # no command, folder, host
    begin = ["train", "dreamer_v3", "--config", "old/config.yaml", "--init-from", "hf://me/pole", "--run", "on"]
    assert main([*begin, "--steps", "4", "--learning-starts", "3", "--eval-episodes", "1"]) == 0
    with pytest.raises(RunError, match="old already exists"):
        reverie.pull("hf://me/pole", "old")
    capsys.readouterr()
    assert main(["list", "hf://me"]) == 0
    assert "hf://me/pole  dreamer_v3 in CartPole-v1" in capsys.readouterr().out
    assert main(["eval", "hf://me/nothing"]) == 1
    assert re.fullmatch(r"reverie: hf://me/nothing: the Hugging Face Hub: .*\n", capsys.readouterr().err)


def test_the_report_and_the_card_say_what_it_is_and_how_to_get_it_again(copied, tmp_path, monkeypatch):
    """With one finding, the same numbers, and commands that work."""
    monkeypatch.chdir(tmp_path)
    before = {file: file.read_bytes() for file in copied.rglob("*") if file.is_file()}
    monkeypatch.setattr("reverie.viewer.report.EPISODES", 3)
    monkeypatch.setattr("reverie.viewer.report.DREAMS", 4)
    monkeypatch.setattr("reverie.viewer.report.make_walk", lambda *_: None)  # tracing takes long
    reverie.push(copied, str(tmp_path / "agent"))
    _, front, card = Path("agent/README.md").read_text().split("---\n", 2)
    head = yaml.safe_load(front)
    assert {"reverie", "dreamer_v3", "CartPole-v1"} < {*head["tags"]}
    assert head["model-index"][0]["results"][0]["metrics"][0]["type"] == "mean_reward"
    assert {file: file.read_bytes() for file in copied.rglob("*") if file.is_file()} == before
    report = Path("agent/report.html").read_text(encoding="utf-8")
    (finding,) = re.findall(r"^\*\*(.*)\*\* ", card, re.MULTILINE)
    assert f'"title":"{html.unescape(finding)}"' in report
    assert "[report.html](report.html)" in card
    for value, unit in re.findall(r"^\| \*\*(.*)\*\* \| (.*) \|$", card, re.MULTILINE):
        assert f'["{value}","{unit}"]' in report
    assert 'reverie.load(\\"agent\\")' in report
    for text in (card, report):
        assert not [word for word in (tmp_path, copied, Path.home(), Path.cwd()) if str(word) in text]
    command = next(line for line in card.splitlines() if line.startswith("reverie train")).partition("#")[0].split()[1:]
    assert main([*command, "--steps", "4", "--learning-starts", "3", "--eval-episodes", "1"]) == 0
    assert Path("runs/again/config.yaml").is_file()


@pytest.mark.parametrize("place", ["memory://shelf/pole", "file://{}/pole", "{}/pole", "s3://shelf/pole"])
def test_storage_and_folders_hold_agents_and_overwrite_nothing(place, trained, tmp_path, monkeypatch, capsys, request):
    monkeypatch.chdir(tmp_path)
    if place.startswith("s3"):
        bucket(*request.getfixturevalue("s3_server"), monkeypatch)
    there = place.format(tmp_path / "shelf")
    assert main(["push", str(trained), there, "--no-page"]) == 0
    reverie.push(trained, there, page=False)
    assert played(reverie.load(there)) == played(reverie.load(trained))
    assert main(["list", there.removesuffix("/pole")]) == 0
    assert f"{there}  dreamer_v3 in CartPole-v1" in capsys.readouterr().out
    assert reverie.pull(there, "here") == Path("here")
    assert played(reverie.load("here")) == played(reverie.load(trained))
    assert main(["info", "here"]) == 0
    assert re.search(r"^updates +-\nepisodes +-$", capsys.readouterr().out, re.MULTILINE)  # those are not shared
    with pytest.raises(ConfigError, match="but no pushed agent: choose another destination"):
        reverie.push(trained, str(shutil.copytree(trained, tmp_path / "another")), page=False)


def bucket(host, port, monkeypatch):
    """An empty bucket at a stand-in for S3, which the environment names as users do."""
    import boto3

    for name, value in {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1",
                        "AWS_ENDPOINT_URL": f"http://{host}:{port}"}.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    boto3.client("s3").create_bucket(Bucket="shelf")


def test_no_code_of_others_runs(trained, tmp_path, monkeypatch):
    """An environment in a module beside it is neither imported nor asked for by a pull."""
    monkeypatch.chdir(tmp_path)
    reverie.push(trained, "shelf", page=False)
    config = Path("shelf/config.yaml")
    config.write_text(config.read_text().replace("CartPole-v1", "harm:CartPole-v1"))
    for module in ("harm.py", "shelf/harm.py"):
        Path(module).write_text("open('harmed', 'w')")
    with pytest.raises(UntrustedError, match="harm"):
        reverie.load(reverie.pull("file://shelf", "got"))
    assert (Path("got/harm.py").exists(), Path("harmed").exists()) == (False, False)


@pytest.mark.usefixtures("_no_collection")
@pytest.mark.parametrize("content", [b"{", b"[]", b"3", b"[" * 99_999, b'{"algorithm": [1], "env": {}, "score": null}'])
def test_a_damaged_description_hides_no_other_agent(content, tmp_path, capsys):
    for name, text in {"bad": content, "good": b'{"algorithm": "dqn", "env": "Walk-v0"}'}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "agent.json").write_bytes(text)
    assert main(["list", str(tmp_path)]) == 0
    assert re.search(r"/bad.*\n.*/good  dqn in Walk-v0\n2 agents", capsys.readouterr().out)


def test_a_folder_without_agents_is_no_list(tmp_path, capsys):
    assert main(["list", str(tmp_path)]) == 1
    assert f"there is no agent at {tmp_path}." in capsys.readouterr().err


def test_a_pipe_among_agents_ends_no_list(tmp_path, capsys):
    os.mkfifo(tmp_path / "agent.json")
    assert main(["list", str(tmp_path)]) == 1
    assert "agent.json is not a regular file" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["agent.json", "config.yaml", "checkpoints/tensors.safetensors"])
def test_files_of_a_terabyte_are_neither_listed_nor_pulled(name, copied, tmp_path, capsys):
    reverie.push(copied, str(tmp_path / "shelf/agent"), page=False)
    os.truncate(next((tmp_path / "shelf/agent").rglob(name.rpartition("/")[2])), 10**12)
    told = r"has 1,000,000,000,000 bytes"
    if name == "agent.json":
        assert main(["list", str(tmp_path / "shelf")]) == 1
        assert re.search(told, capsys.readouterr().err)
    with pytest.raises(RunError, match=told):
        reverie.pull(str(tmp_path / "shelf/agent"), tmp_path / "here")
    assert not (tmp_path / "here").exists()


def test_a_pulled_folder_has_no_links_out_of_it(copied, tmp_path):
    reverie.push(copied, str(tmp_path / "shelf"), page=False)
    (tmp_path / "mine").write_text("secret")
    (tmp_path / "shelf/README.md").unlink()
    (tmp_path / "shelf/README.md").symlink_to(tmp_path / "mine")
    with pytest.raises(RunError, match=r"README\.md is a link to .*mine, outside of "):
        reverie.pull(str(tmp_path / "shelf"), tmp_path / "here")
    assert not (tmp_path / "here").exists()


OWN = "/home/jane doe/secret/"


def test_no_path_of_this_machine_leaves_it(copied, tmp_path, monkeypatch):
    """In all that is written: settings of any kind, the page and the name of the destination."""
    monkeypatch.chdir(tmp_path)
    config = yaml.safe_load((copied / "config.yaml").read_text())
    changes = {"init_from": f"{OWN}run", "heldout_data": [f"{OWN}a.npz", "minari:D4RL/pen/human-v2"]}
    config["experiment"] |= changes
    config["experiment"]["replay"]["store_path"] = f"{tmp_path}/store"
    config["experiment"]["env"]["wrappers"] = [
        f"mine:Map(file='{tmp_path}/maps/a.xml', url='s3://shelf/a')",
        "~/x.yaml",
    ]
    config["custom"] = {"sinks": f"{OWN}sink.py"}
    (copied / "config.yaml").write_text(yaml.safe_dump(config))
    folder = tmp_path / "shelf"
    monkeypatch.setattr("reverie.agent.sharing.check_code", lambda *_: None)
    reverie.push(copied, str(folder))
    written = {file.name: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    assert "README.md" in written
    for name, content in written.items():
        for text in (tmp_path, OWN, "jane", Path.home(), Path.cwd()):
            assert str(text).encode() not in content, (name, text)
    shared = yaml.safe_load(written["config.yaml"])["experiment"]
    assert (shared["init_from"], shared["heldout_data"]) == ("run", ["a.npz", "minari:D4RL/pen/human-v2"])
    assert shared["env"]["wrappers"] == ["mine:Map(file='a.xml', url='s3://shelf/a')", "x.yaml"]
    assert shared["env"]["id"] == "CartPole-v1"


def test_the_page_of_an_agent_of_recorded_data_is_true_of_it(tmp_path, monkeypatch, capsys):
    """It names the data, counts updates, and its commands work."""
    monkeypatch.chdir(tmp_path)
    steps = np.arange(60)
    np.savez(tmp_path / "log.npz", observations=np.sin(steps)[:, None], actions=np.cos(steps)[:, None],
             rewards=np.ones(60), terminals=steps % 10 == 9, timeouts=np.zeros(60))  # fmt: skip
    quiet = {"tensorboard": False, "data.estimate_updates": 0}
    reverie.train("bc", data=str(tmp_path / "log.npz"), updates=2, run="run", **quiet)
    reverie.push("run", "agent")
    page = Path("agent/README.md").read_text()
    assert "# bc on log.npz" in page
    assert "agent after 2 updates on log.npz" in page
    assert "- none" not in page
    assert "reverie eval agent --env ENV\n" in page
    command = next(line for line in page.splitlines() if line.startswith("reverie train")).partition("#")[0].split()[1:]
    assert main(command) == 0
    reverie.load("agent")
    capsys.readouterr()
    assert main(["list", "agent"]) == 0
    assert "bc on log.npz" in capsys.readouterr().out


def test_the_page_of_an_agent_of_data_in_memory_asks_for_data(tmp_path):
    arrays = {"observations": np.zeros((20, 1)), "actions": np.ones((20, 1)), "rewards": np.ones(20)}
    data = arrays | {"terminals": np.arange(20) % 5 == 4}
    reverie.train("bc", data=data, updates=1, run=tmp_path / "run", tensorboard=False, **{"data.estimate_updates": 0})
    reverie.push(tmp_path / "run", str(tmp_path / "agent"))
    page = (tmp_path / "agent/README.md").read_text()
    assert "# bc on data in memory" in page
    assert "--config agent/config.yaml --data DATA --run" in page
