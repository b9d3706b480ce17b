"""The viewer: an episode and its imagined continuation side by side, in a browser (``reverie view``).

May import agent and all below it; cli may import it.
Start reading at ``session.Session``, which is independent of the browser; ``server`` serves sessions over websockets,
and ``static/`` is the page itself.
"""
