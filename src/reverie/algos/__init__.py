"""One file for each paper, and what several share: ``base``, ``world_model``, ``imagination``.

May import nn, objectives and core; another paper's file only to subclass it, as that paper does.
Begin with ``base.Algorithm``; then ``td3`` for a model-free agent, ``dreamer_v3`` for a world model.
"""
