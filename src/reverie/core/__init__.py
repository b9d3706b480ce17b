"""The common base of all rooms: rows, specs, spaces, protocols, settings, errors, clock, seeds.

Imports no other room. The modules for worker processes (``spaces``, the codecs, ``specs``) import no torch. Start
reading at ``types``, the rows; then ``protocols``, and ``config`` for settings.
"""
