"""For the reference: the roles of docstrings, such as ``:class:`~reverie.core.types.Batch```, become links."""

from __future__ import annotations

from typing import Any

from documentation import linked
from griffe import Extension, Object


class Roles(Extension):
    """Rewrites the docstring of each object when it is read."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        """See griffe."""
        if obj.docstring:
            obj.docstring.value = linked(obj.docstring.value)
