"""Faster versions of operations that are defined elsewhere in plain PyTorch: C, Triton, CUDA graphs, tapes.

May import core, objectives, nn, algos, replay and store; only ``core.kernel_dispatch`` imports it, by name.
Begin with ``registry``, which lists what replaces what; without this package everything is slower, otherwise the same.
"""
