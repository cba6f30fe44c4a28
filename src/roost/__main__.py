"""``python -m roost``."""

import sys

from roost.cli import main

sys.exit(main())
