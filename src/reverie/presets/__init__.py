"""Published settings, and the layers of settings above them. May import all but api and cli; begin with ``layers``."""
