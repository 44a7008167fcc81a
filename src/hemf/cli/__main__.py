"""``python -m hemf.cli`` is ``hemf``."""

from hemf.cli import main

main()
