"""Lets `python -m jaxcomm.cli` be `jaxcomm`."""

import sys

from jaxcomm.cli import main

sys.exit(main())
