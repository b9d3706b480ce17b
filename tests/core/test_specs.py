"""Specifications refuse what means nothing."""

from __future__ import annotations

from typing import Any

import pytest

from reverie.core.errors import ConfigError
from reverie.core.specs import ActionPart, ObsPart


@pytest.mark.parametrize(
    ("kind", "given", "said"),
    [
        (ObsPart, {"kind": "vectr", "shape": (3,), "dtype": "float32"}, "kind = 'vectr': .* Did you mean 'vector'"),
        (ObsPart, {"kind": None, "shape": (3,), "dtype": "float32"}, "kind = None: expected image or vector or cat"),
        (ActionPart, {"kind": "discrete", "classes": (4,)}, "kind = 'discrete': expected categorical or continuous"),
        (ActionPart, {"kind": "continuous"}, "size = 0: expected at least 1"),
        (ActionPart, {"kind": "categorical", "size": 4}, r"classes = \(\): expected the number of classes"),
    ],
)
def test_a_part_that_means_nothing_is_refused(kind: Any, given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        kind(**given)
