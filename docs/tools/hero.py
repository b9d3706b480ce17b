#!/usr/bin/env python3
"""The README's film: HalfCheetah beside the dream of a world model that has seen only its first rows.

    python docs/tools/hero.py collect    # 125,000 env steps of two gaits and of stumbles: half a minute
    python docs/tools/hero.py train      # a world model, from these rows alone: 8 minutes of one CPU core
    python docs/tools/hero.py film       # docs/images/dream*.gif: an episode that the model has never seen

Needs the extra ``mujoco``; without a display, set MUJOCO_GL=egl.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

import gymnasium
import mujoco
import numpy as np
from PIL import Image, ImageColor, ImageDraw, ImageFont

import reverie
from reverie.agent.dream_report import predict_open_loop
from reverie.core.seeding import seeded_rng
from reverie.log.colors import BACKGROUND, BLUE, BORDER, DARK, HUES, MUTED, ORANGE, TEXT

ROOT = Path(__file__).resolve().parents[2]
ENV, STEP, POSE = "HalfCheetah-v5", 0.05, 8
"""The environment, the seconds of its step, and the number of positions in an observation, before the speed."""
UPDATES = 5_000
SETTINGS = {
    "size": "nano", "algo.rssm.deter": 256, "algo.rssm.hidden": 128, "algo.rssm.classes": 16, "algo.rssm.unimix": 0.002,
    "algo.encoder.units": 128, "algo.decoder.units": 128, "algo.loss_scales.reconstruction": 30.0,
    "algo.batch_size": 16, "algo.batch_length": 64, "algo.horizon": 2, "algo.imagine_last": 2,
    "algo.optim.lr": [[0, 1e-3], [UPDATES / 2, 1e-3], [UPDATES, 5e-5]],
}  # fmt: skip
"""They make the decoder accurate, and the updates of actor and critic, which are not needed, short."""
TROT = np.array([
    1.48, 0.84, -0.54, -1.62, 0.93, 0.86, -3.13, 0.72, 0.08, 0.27, 0.75, 0.87, 0.47, -0.71, 0.66, -0.62, -0.46, -0.15,
    0.03, *[0.0] * 12,
])  # fmt: skip
GALLOP = np.array([
    1.0, 2.55, 2.61, -1.51, 1.2, -1.14, -2.49, 0.86, 1.35, 0.65, 0.48, -0.22, 0.22, -0.21, -0.87, -1.45, 0.06, -1.33,
    -0.38, 0.1, -0.33, -0.14, -0.34, -0.03, 0.58, -0.88, -0.42, -0.23, 0.42, 1.08, 1.48,
])  # fmt: skip
"""Gaits that the cross-entropy method found: log of the frequency, then six phases, amplitudes, offsets and gains."""


class Theme(NamedTuple):
    """The colors of the viewer."""

    paper: str = BACKGROUND
    ink: str = TEXT
    soft: str = MUTED
    line: str = BORDER
    real: str = BLUE
    dream: str = ORANGE
    bad: str = HUES[4]


THEMES = {"dream.gif": Theme(), "dream_dark.gif": Theme(*(DARK[color] for color in Theme()))}
"""By the name of the film."""
CONTEXT, STUMBLE, ROWS = 20, 100, 150
"""Rows of the film that the model sees, rows before the stumble, and all rows."""
LIMIT, EPISODES = 0.5, 50
"""The error at which a dream has drifted, and the number of episodes in which this is counted."""
SLOW = range(STUMBLE, STUMBLE + 16)
"""Rows in slow motion."""
PANEL, COLORS, MILLISECONDS, HOLD = (384, 270), 48, 70, 2000
"""Size of a panel in pixels, colors of the GIF, and how long it shows a frame and the last one."""
SENTENCES = ("It saw 1 second. The rest is imagined.", "MuJoCo draws the poses that the model predicts.")


# ---------------------------------------------------------------- data


def compute_torques(gait: np.ndarray, phase: float, obs: np.ndarray) -> np.ndarray:
    """Return the torques of a gait: oscillations, corrected by the pitch and its velocity."""
    shift, amplitude, offset, by_pitch, by_rate = gait[1:].reshape(5, 6)
    wave = amplitude * np.sin(2 * np.pi * phase + np.pi * shift)
    return wave + offset * 0.5 + by_pitch * obs[1] + by_rate * obs[10] * 0.1


def sample_gait(rng: np.random.Generator) -> np.ndarray:
    """Return random oscillations: a stumble."""
    frequency = np.log(rng.uniform(0.5, 4, 1))
    return np.concatenate([frequency, rng.uniform(-1, 1, 6), rng.uniform(0, 1.2, 6), rng.normal(size=6), [0] * 12])


def vary_gait(rng: np.random.Generator) -> tuple[np.ndarray, float]:
    """Return a gait, often with changes or at random, and the scale of the noise that is added to its torques."""
    kind, gait = rng.random(), (GALLOP if rng.random() < 0.7 else TROT).copy()
    if kind < 0.5:
        gait += rng.normal(size=31) * rng.choice([0.05, 0.1, 0.3])
    elif kind < 0.65:
        gait = sample_gait(rng)
    gait[7:13] *= rng.choice([1, 1, 1, 1, rng.random()])
    return gait, rng.choice([0, 0.05, 0.1, 0.3])


def record(episodes: int, steps: int, seed: int) -> dict[str, np.ndarray]:
    """Return rows of random gaits under D4RL's names; the gait changes every few seconds."""
    env, rng = gymnasium.make(ENV), np.random.default_rng(seed)
    rows: dict[str, list[object]] = {name: [] for name in ("observations", "next_observations", "actions", "rewards")}
    for _ in range(episodes):
        obs, _ = env.reset(seed=int(rng.integers(2**31)))
        noise, phase, left = np.zeros(6), rng.random(), 0
        for _ in range(steps):
            if left == 0:
                left, (gait, scale) = int(rng.integers(40, 160)), vary_gait(rng)
            left -= 1
            phase += np.exp(gait[0]) * STEP
            noise = 0.8 * noise + scale * rng.normal(size=6)
            action = np.clip(compute_torques(gait, phase, obs) + noise, -1, 1).astype(np.float32)
            before, (obs, reward, *_) = obs, env.step(action)
            for column, value in zip(rows.values(), (before, obs, action, reward), strict=True):
                column.append(value)
    arrays = {name: np.asarray(column, np.float32) for name, column in rows.items()}
    ends = np.arange(episodes * steps) % steps == steps - 1
    return arrays | {"terminals": np.zeros(len(ends), bool), "timeouts": ends}


# ---------------------------------------------------------------- film


def perform(seed: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return observations and actions of an episode: a gallop, and after ``STUMBLE`` rows a random gait."""
    env, rng = gymnasium.make(ENV), np.random.default_rng(seed)
    seen, actions, phase = [env.reset(seed=seed)[0]], list[np.ndarray](), 0.0
    gaits = [GALLOP] * STUMBLE + [sample_gait(rng)] * (ROWS - STUMBLE - 1)
    for gait in gaits:
        phase += np.exp(gait[0]) * STEP
        actions.append(np.clip(compute_torques(gait, phase, seen[-1]), -1, 1).astype(np.float32))
        seen.append(env.step(actions[-1])[0])
    return seen, actions


def dream(agent: reverie.Agent, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the poses ``[ROWS, 9]`` of an episode and of its dream, and the error of the dream ``[ROWS]``.

    The error is the root-mean-square error of the pose over the last half second, without the distance; 1 is the
    standard deviation of the pose in the episode.
    """
    batch = agent.make_episode(*perform(seed))
    real = batch.obs["observation"][0].numpy()
    with seeded_rng(seed):
        dreamt = predict_open_loop(agent, batch, CONTEXT)["observation"][0]
    dreamt[:CONTEXT, POSE] = real[:CONTEXT, POSE]  # distances are compared from the first imagined row on
    poses = [np.column_stack([rows[:, POSE].cumsum() * STEP, rows[:, :POSE]]) for rows in (real, dreamt)]
    square = np.square(dreamt - real)[:, :POSE].mean(1) / real[:, :POSE].var(0).mean()
    return *poses, np.sqrt([square[max(0, t - 9) : t + 1].mean() for t in range(ROWS)])


class Stage:
    """Draws a cheetah in a color of the viewer."""

    def __init__(self, color: str, theme: Theme) -> None:
        env = gymnasium.make(ENV).unwrapped
        self.model, self.data = model, _ = env.model, env.data
        model.vis.global_.offwidth, model.vis.global_.offheight = PANEL
        model.geom_rgba[1:, :3], model.geom_matid[1:] = to_rgb(color) / 255, -1
        model.geom_size[1:, 0] *= 1.3
        for texture, dark in ((0, theme.paper), (2, theme.line)):  # the sky, and the checkered floor
            start = model.tex_adr[texture]
            size = model.tex_height[texture] * model.tex_width[texture]
            pixels = model.tex_data[start : start + 3 * size].reshape(-1, 3)
            pixels[:] = np.where(pixels.mean(1, keepdims=True) < 128, to_rgb(dark), to_rgb(theme.paper))
        model.geom_rgba[0], model.mat_reflectance[:], model.light_castshadow[:] = 1, 0, 0
        model.vis.headlight.ambient[:], model.vis.headlight.diffuse[:] = 0.55, 0.45
        model.light_diffuse[:], model.light_specular[:] = 0.35, 0
        self.renderer = mujoco.Renderer(model, PANEL[1], PANEL[0])
        self.camera = mujoco.MjvCamera()
        self.camera.distance, self.camera.azimuth, self.camera.elevation = 3.1, 90, -10

    def draw(self, pose: np.ndarray) -> Image.Image:
        """Return the picture of a pose, whose first number is the distance that the cheetah has run."""
        self.data.qpos[:] = pose
        mujoco.mj_forward(self.model, self.data)
        self.camera.lookat[:] = pose[0], 0, 0.3
        self.renderer.update_scene(self.data, self.camera)
        return Image.fromarray(self.renderer.render())


def to_rgb(color: str) -> np.ndarray:
    """Return a color as three numbers from 0 to 255."""
    return np.array(ImageColor.getrgb(color))


def film(real: np.ndarray, dreamt: np.ndarray, error: np.ndarray, theme: Theme) -> list[Image.Image]:
    """Return the frames: the environment, its dream, and below them the error up to this row."""
    stages = Stage(theme.real, theme), Stage(theme.dream, theme)
    drift = next((t for t in range(CONTEXT, ROWS) if error[t] >= LIMIT), ROWS)
    return [draw_frame(t, real, dreamt, error, drift, stages, theme) for t in range(ROWS)]


def draw_frame(
    t: int, real: np.ndarray, dreamt: np.ndarray, error: np.ndarray, drift: int, stages: tuple[Stage, Stage],
    theme: Theme,
) -> Image.Image:  # fmt: skip
    """Return one frame; the dream has drifted from row ``drift`` on."""
    frame = Image.new("RGB", (800, 560), theme.paper)
    draw, (width, height), top = ImageDraw.Draw(frame), PANEL, 98
    big, small = ImageFont.load_default(38), ImageFont.load_default(26)
    seconds = f"{(t - CONTEXT + 1) * STEP:.1f} s"
    state = f"imagines {seconds}" if t < drift else f"has drifted, {seconds}"
    shade = theme.dream if t < drift else theme.bad
    state, shade, edge = ("observes", theme.real, theme.real) if t < CONTEXT else (state, shade, theme.dream)
    gait = "gallops" if t <= STUMBLE else "stumbles"
    sides = (("Environment", gait, theme.real, theme.real, real), ("Dream", state, shade, edge, dreamt))
    for x, stage, color, (title, words, words_color, edge_color, poses) in zip(
        (8, 408), stages, (theme.real, theme.dream), sides, strict=True
    ):
        draw.text((x, 4), title, color, big)
        draw.text((x, 56), words, words_color, small)
        draw.text((x + width, 56), f"{poses[t, 0]:z.1f} m", theme.ink, small, anchor="ra")
        frame.paste(stage.draw(poses[t]), (x, top))
        draw.rectangle((x - 2, top - 2, x + width + 1, top + height + 1), outline=edge_color, width=4)
    if t in SLOW:
        draw.text((8 + width - 8, top + 8), "slow motion", theme.soft, small, anchor="ra")
    draw_error(draw, error[: t + 1], theme, small)
    draw.text((8, 522), SENTENCES[t >= (CONTEXT + ROWS) // 2], theme.ink, small)
    return frame


def draw_error(draw: ImageDraw.ImageDraw, error: np.ndarray, theme: Theme, font: ImageFont.FreeTypeFont) -> None:
    """Draw the error of the dream up to a row, in standard deviations of the pose."""
    bottom, scale = 512, 80
    across = 8 + 784 * np.arange(ROWS) / (ROWS - 1)
    limit = bottom - LIMIT * scale
    draw.line((8, limit, 792, limit), theme.bad)
    draw.line((8, bottom, 792, bottom), theme.soft)
    draw.line((across[CONTEXT], bottom - 1.2 * scale, across[CONTEXT], bottom), theme.real, 2)
    draw.text((across[CONTEXT] + 8, bottom - 1.3 * scale), "error of the pose", theme.soft, font)
    draw.text((792, limit - 4), f"{LIMIT:g} deviations", theme.bad, font, anchor="rd")
    points = list(zip(across[: len(error)], bottom - scale * error.clip(max=1.3), strict=True))
    draw.line(points if len(points) > 1 else points * 2, theme.dream, 4)


# ---------------------------------------------------------------- commands


def main() -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("collect", "train", "film"))
    parser.add_argument("--data", type=Path, default=Path("runs/gaits.npz"))
    parser.add_argument("--run", type=Path, default=Path("runs/hero"))
    parser.add_argument("--out", type=Path, default=ROOT / "docs/images")
    parser.add_argument("--seed", type=int, default=240)
    args = parser.parse_args()
    if args.command == "collect":
        args.data.parent.mkdir(parents=True, exist_ok=True)
        np.savez(args.data, **record(episodes=500, steps=250, seed=0))
    elif args.command == "train":
        reverie.train("dreamer_v3", ENV, data=args.data, run=args.run, updates=UPDATES, eval_episodes=0, **SETTINGS)
    else:
        agent = reverie.load(args.run)
        errors = [dream(agent, seed)[2] for seed in range(EPISODES)]
        holding = sum(max(error[CONTEXT:STUMBLE]) < LIMIT for error in errors)
        print(f"{holding} of {EPISODES} dreams hold until the stumble")
        for name, theme in THEMES.items():
            frames = film(*dream(agent, args.seed), theme)
            palette = Image.fromarray(np.concatenate(frames[:CONTEXT] + frames[CONTEXT::8])).quantize(COLORS)
            first, *others = (frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames)
            times = [MILLISECONDS * (1 + 2 * (t in SLOW)) for t in range(ROWS - 1)] + [HOLD]
            file = args.out / name
            first.save(file, save_all=True, append_images=others, duration=times, loop=0, optimize=True)
            print(file, f"{file.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
