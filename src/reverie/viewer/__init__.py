"""The viewer: an episode and its imagined continuation side by side, in a browser (``reverie view``).

May import agent and all below it; cli may import it.
Begin with ``session.Session``, which knows nothing of browsers; ``server`` puts sessions behind websockets, and
``static/`` is the page itself.
"""
