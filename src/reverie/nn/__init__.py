"""Networks and the stateful parts of learning: encoders, RSSM, heads, distributions, optimizers, normalization.

May import objectives and core.
Begin with ``layers``; then ``rssm`` for world models, ``actor_critic`` for model-free agents.
"""
