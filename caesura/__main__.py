"""`python -P -m caesura`: what editors start, for it never takes a module from the project they have open."""

import sys

from caesura.cli import main

sys.exit(main())
