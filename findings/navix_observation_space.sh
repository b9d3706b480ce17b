#!/bin/sh
# navix 0.7.4: grids show values that their observation space does not declare, the player among them.
#
# Observations are grids of classes, so an agent embeds or one-hot encodes them with as many classes as the space
# declares: observation_space.maximum + 1.
#
# Guess, written down first: all observations are within minimum..maximum of the space, as in MiniGrid, which navix
# reimplements and whose spaces are Box(0, 255).
#
# Seen, with random actions from three seeds:
#   symbolic (the default) and categorical grids declare 0..8. The player is 10 in each of them, in every environment.
#   KeyCorridor: symbolic grids also have 254.
#   categorical grids have -1, too; what a first-person view cannot see is 100 there.
#   symbolic_first_person, which shows 0..9 (254 in KeyCorridor), is the one that declares 0..255.
#
# jax.nn.one_hot raises no error for a class beyond its number: it returns zeros. So with the declared nine classes the
# player's cell is a vector of zeros in every observation, the same as any other class that is not declared.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet navix==0.7.4 jax==0.10.2 jaxlib==0.10.2 flax==0.12.8 numpy==2.4.6
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import warnings

warnings.simplefilter("ignore")
import jax
import jax.numpy as jnp
import navix

def shown(name, kind):
    env = navix.make(name, observation_fn=getattr(navix.observations, kind))
    space, step, values = env.observation_space, jax.jit(env.step), set()
    for seed in range(3):
        time, key = env.reset(jax.random.key(seed)), jax.random.key(100 + seed)
        for _ in range(60):
            values |= set(time.observation.ravel().tolist())
            key, draw = jax.random.split(key)
            time = step(time, jax.random.randint(draw, (), 0, int(env.action_space.maximum) + 1))
    return (int(jnp.min(space.minimum)), int(jnp.max(space.maximum))), values

for name in ("Navix-Empty-5x5-v0", "Navix-DoorKey-5x5-v0", "Navix-KeyCorridorS3R1-v0"):
    for kind in ("symbolic", "categorical", "categorical_first_person", "symbolic_first_person"):
        declared, values = shown(name, kind)
        print(f"{name}, {kind}: declares {declared[0]}..{declared[1]}, shows {sorted(values)}")
        if kind == "symbolic_first_person":
            assert declared == (0, 255) and max(values) in (8, 9, 254)
        else:
            assert declared == (0, 8)
        if kind in ("symbolic", "categorical"):
            assert 10 in values
        if kind == "symbolic":
            assert (254 in values) == ("KeyCorridor" in name)
        if kind == "categorical":
            assert -1 in values
        if kind == "categorical_first_person":
            assert 100 in values

player = jax.nn.one_hot(10, 9)
print("one_hot(10, 9):", player.tolist())
assert not player.any()
print("as described")
PYTHON
