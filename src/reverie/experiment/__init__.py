"""The definition of a run: its settings (``config``), their layers and presets, and the assembly of its parts.

May import everything except agent, distributed, viewer, api and cli. Start reading at ``config``, then ``build``, which
assembles ``environments`` and ``offline`` rows; for presets, at ``config_layers``. ``resolve`` adds settings from an
earlier run or a dataset.
"""
