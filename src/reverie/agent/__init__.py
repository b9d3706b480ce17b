"""A trained agent: act, evaluate, dream, extract features, estimate returns.

May import ``build`` and all below it; seeds, api and cli may import it.
Begin with ``loading.load``, then ``agent.Agent``; ``dreaming``, ``extract`` and ``dream_env`` are for world models.
"""
