"""The loop and a run's life: collect, train, evaluate, checkpoint, resume, signals.

May import core alone: it sees algorithms, replay and environments through ``core.protocols``.
Begin with ``train.train_loop``, the loop; ``run.run_experiment`` is all around it.
"""
