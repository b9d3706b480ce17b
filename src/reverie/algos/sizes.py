"""The named sizes of DreamerV3 and of its relatives."""

from __future__ import annotations

from typing import TypeVar

from reverie.core.config import Config
from reverie.core.errors import ConfigError, did_you_mean
from reverie.nn.decoder import DecoderConfig
from reverie.nn.encoder import EncoderConfig
from reverie.nn.heads import TwoHotConfig
from reverie.nn.rssm import RSSMConfig

AnyConfig = TypeVar("AnyConfig", bound=Config)

SIZES: dict[str, dict[str, int]] = {
    "nano": {"deter": 128, "hidden": 64, "classes": 8, "stoch": 16, "depth": 4, "units": 64, "bins": 63},
    "1m": {"deter": 512, "hidden": 64, "classes": 4, "depth": 4, "units": 64},
    "12m": {"deter": 2048, "hidden": 256, "classes": 16, "depth": 16, "units": 256},
    "25m": {"deter": 3072, "hidden": 384, "classes": 24, "depth": 24, "units": 384},
    "50m": {"deter": 4096, "hidden": 512, "classes": 32, "depth": 32, "units": 512},
    "100m": {"deter": 6144, "hidden": 768, "classes": 48, "depth": 48, "units": 768},
    "200m": {"deter": 8192, "hidden": 1024, "classes": 64, "depth": 64, "units": 1024},
    "400m": {"deter": 12288, "hidden": 1536, "classes": 96, "depth": 96, "units": 1536},
    "XS": {"deter": 256, "hidden": 256, "classes": 32, "depth": 24, "units": 256, "layers": 1},
    "S": {"deter": 512, "hidden": 512, "classes": 32, "depth": 32, "units": 512, "layers": 2},
    "M": {"deter": 1024, "hidden": 640, "classes": 32, "depth": 48, "units": 640, "layers": 3},
    "L": {"deter": 2048, "hidden": 768, "classes": 32, "depth": 64, "units": 768, "layers": 4},
    "XL": {"deter": 4096, "hidden": 1024, "classes": 32, "depth": 96, "units": 1024, "layers": 5},
}
"""Widths by name: one for two CPU cores, the authors' 1m to 400m, and RLlib's XS to XL with its published widths."""

PARTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("deter", "hidden", "classes", "stoch"), ("rssm",)), "bins": ("reward", "critic"),
    "units": ("encoder", "decoder", "reward", "cont", "actor", "critic"), "depth": ("encoder", "decoder"),
    "layers": ("encoder", "decoder", "actor", "critic"),
}  # fmt: skip
"""The parts that have each width."""


def set_widths(config: AnyConfig, size: str) -> AnyConfig:
    """Return ``config`` with the widths of the size of this name."""
    sizes = {name.lower(): widths for name, widths in SIZES.items()}
    if size.lower() not in sizes:
        raise ConfigError(f"size = {size!r}: expected one of {', '.join(SIZES)}.{did_you_mean(size, SIZES)}")
    default = {"stoch": RSSMConfig().stoch, "bins": TwoHotConfig().bins}  # nano changes both, and config may be nano
    widths = default | sizes[size.lower()]
    builders = {"encoder": EncoderConfig, "decoder": DecoderConfig}  # custom ones have no widths
    custom = {part for part, kind in builders.items() if not isinstance(getattr(config, part), kind)}
    return config.merge({f"{part}.{k}": v for k, v in widths.items() for part in PARTS[k] if part not in custom})
