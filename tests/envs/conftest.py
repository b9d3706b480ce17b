"""What the tests of vector environments share."""

import pytest

from reverie.envs.config import EnvConfig
from roads import make_vector_env


@pytest.fixture
def make():
    made = []

    def make(factory=None, seed=0, render=False, **options):
        made.append(make_vector_env(EnvConfig(**options), seed=seed, factory=factory, render=render))
        return made[-1]

    yield make
    for env in made:
        env.close()
        env.close()
