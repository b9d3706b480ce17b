"""What every room speaks of: rows, specs, spaces, protocols, settings, errors, clock, seeds.

Imports no other room. What worker processes need (``spaces``, the codecs, ``specs``) imports no torch.
Begin with ``types``, the rows; then ``protocols``, and ``config`` for settings.
"""
