"""The training loop and the life cycle of a run: collect, train, evaluate, checkpoint, resume, signals.

May import only core: algorithms, replay and environments are accessed through ``core.protocols``. Start reading at
``loop.train_loop``, the training loop; ``run.run_experiment`` calls it.
"""
