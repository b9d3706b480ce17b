"""A trained agent: act, evaluate, dream, extract features, estimate returns.

May import experiment and all below it; viewer, api and cli may import it. Start reading at ``player.Player``, which
acts. ``agent.Agent`` is a player with further methods, which are functions of ``recorded``, ``world_model_inspector``,
``probing``, ``evaluating`` and ``policy_file``; ``loading.load`` makes an agent from a run.
"""
