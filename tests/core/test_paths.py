"""Where a folder of this machine is expected, a URL is refused before anything is made."""

from __future__ import annotations

import pytest

import reverie
from reverie.core.errors import ConfigError, DataError
from reverie.data.readers.detect import open_reader


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_run_is_no_url(here):
    said = r"run = s3:/.*bucket: expected a path on this machine\. Only a replay store can be at a URL"
    settings = {"env": "CartPole-v1", "run": "s3://bucket", "say": lambda text: None}
    with pytest.raises(ConfigError, match=said):
        reverie.train("dqn", **settings)
    with pytest.raises(ConfigError, match=said):
        reverie.train_seeds("dqn", **settings)
    with pytest.raises(ConfigError, match=said):
        reverie.load("s3://bucket")
    assert not list(here.iterdir())


def test_a_dataset_is_no_url(here):
    (here / "s3:" / "bucket").mkdir(parents=True)
    with pytest.raises(DataError, match=r"s3://bucket is a URL: expected a dataset on this machine"):
        open_reader("s3://bucket")
