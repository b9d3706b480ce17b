"""One file per paper, and shared modules: ``base``, ``world_model``, ``imagination``.

May import nn, objectives and core; another paper's file only to subclass it, as that paper does.
Start reading at ``base.Algorithm``; then ``td3`` for a model-free agent, ``dreamer_v3`` for a world model.
"""
