"""`python -m plrp`: the `plrp` command."""

import sys

from plrp.cli import main

sys.exit(main())
