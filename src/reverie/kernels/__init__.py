"""Faster versions of operations that are defined elsewhere in plain PyTorch: C, Triton, CUDA graphs, tapes.

May import core, objectives, nn, algos, replay and store; nobody imports it but ``core.accelerate``, by name.
Begin with ``table``, which says what replaces what; without this room all is slower and otherwise the same.
"""
