"""The command line, one module a command. May import everything; begin with ``main``. ``--help`` imports no torch."""

from reverie.cli.main import main as main  # the installed script calls it
