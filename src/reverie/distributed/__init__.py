"""Runs in several processes: learners as ranks of ``torch.distributed``, actors, seeds, trials of a search.

May import experiment and all below it; api and cli may import it. Rooms below are independent of it: learners exchange
numbers through ``core/collectives.py``; the clock gets a shared watch, and the loop a collector and a source for all
ranks (``team``). Start reading at ``learners``; for actors at ``actor_collector``, the learner's side. ``seeds`` trains
runs in parallel, in the processes of ``run_processes``, and ``tune`` the trials of a search.
"""
