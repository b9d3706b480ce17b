"""More than one process for one run: learners as ranks of ``torch.distributed``, and actors beside the learner.

May import ``build`` and all below it; api and cli may import it. Nothing below knows it: learners tell each other
numbers through ``core/learners.py``, and the loop gets a clock, a collector and a source that speak for all ranks.
Begin with ``learners.py``; for actors with ``actor_feed.py``, the learner's side.
"""
