"""A trained agent: act, evaluate, dream, extract features, estimate returns.

May import experiment and all below it; look, api and cli may import it.
Begin with ``player.Player``, which acts. ``agent.Agent`` is a player whose further methods are functions of
``recorded``, ``imagining``, ``probing``, ``evaluating`` and ``policy_file``; ``loading.load`` makes one from a run.
"""
