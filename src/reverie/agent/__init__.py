"""A trained agent: act, evaluate, dream, extract features, estimate returns.

May import experiment and all below it; viewer, api and cli may import it. Start reading at ``player.Player``, which
acts. ``agent.Agent`` is a player with further methods, each in the file of its topic: ``evaluating``, ``planning``,
``reaching`` and ``world_model_inspector``; ``loading.load`` makes an agent from a run.
"""
