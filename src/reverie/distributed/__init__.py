"""More than one process: learners as ranks of ``torch.distributed``, actors beside them, seeds, trials of a search.

May import experiment and all below it; api and cli may import it. Nothing below knows it: learners tell each other
numbers through ``core/collectives.py``; the clock gets a common watch, and the loop a collector and a source that speak
for all ranks (``team``). Begin with ``learners``; for actors with ``actor_feed``, the learner's side; ``seeds`` trains
runs beside each other, in the processes of ``run_processes``, and ``search`` the trials of a search.
"""
