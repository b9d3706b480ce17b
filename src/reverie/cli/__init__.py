"""The command line, one module per command.

May import everything; start reading at ``main``. ``--help`` imports no torch.
"""

from reverie.cli.main import main as main  # the installed script calls it
