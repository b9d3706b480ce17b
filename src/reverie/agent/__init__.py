"""A trained agent: act, evaluate, dream, extract features, estimate returns.

May import experiment and all below it; look, api and cli may import it.
Begin with ``loading.load``, then ``agent.Agent``; ``dreaming``, ``extract`` and ``dream_env`` are for world models.
"""
