"""Makes `python -m jaxcomm.cli` run `jaxcomm`."""

import sys

from jaxcomm.cli import main

sys.exit(main())
