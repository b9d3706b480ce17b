"""More than one process: actors that act beside the learner.

May import everything below ``agent``. Begin with ``feed.py``, the learner's side; ``actors.py`` is an actor,
``wire.py`` what both exchange, ``weights.py`` what a policy needs of a learner, ``lanes.py`` the replays.
"""
