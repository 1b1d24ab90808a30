"""`python -m plrp.cli`: the `plrp` command."""

import sys

from . import main

sys.exit(main())
