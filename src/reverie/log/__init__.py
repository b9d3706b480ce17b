"""Measurements on their way out: the meter, sinks, console, figures, videos, aggregates of seeds.

May import core alone.
Begin with ``sinks.LogOutputs``, which opens all that the settings ask for.
"""
