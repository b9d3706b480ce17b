"""What a run is: its settings (``config``), their layers and the published ones, and how its parts are built.

May import all but agent, scale, look, api and cli. Begin with ``config``, then ``build``, which assembles
``environments`` and ``offline`` rows; for presets with ``layers``. ``resolve`` adds what an earlier run or data say.
"""
