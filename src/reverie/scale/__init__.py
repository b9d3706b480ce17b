"""More than one process for one run: learners as ranks of ``torch.distributed``, and what starts them.

May import ``build`` and all below it; api and cli may import it. Nothing below knows it: learners tell each other
numbers through ``core/learners.py``, and the loop gets a clock, a collector and a source that speak for all ranks.
Begin with ``learners.py``.
"""
