"""`python -m privsgp` is the command `privsgp`."""

from privsgp.cli import main

main()
