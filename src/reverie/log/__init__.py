"""Output of metrics: meter, sinks, console, figures, videos, aggregates of seeds.

May import only core. Start reading at ``sinks.LogOutputs``, which opens all enabled outputs.
"""
