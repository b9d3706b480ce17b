"""The definition of a run: its settings (``config``), their layers and presets, and the assembly of its parts.

May import everything except agent, distributed, viewer, api and cli. Start reading at ``config``, then ``build``, which
assembles ``environments`` and ``offline`` rows; for the layers of settings, at ``settings: resolve``.
"""
