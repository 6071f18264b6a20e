"""Prints the snapshots of this host's processes, one line per line of input, for `jaxcomm top` on another host."""

import json
import sys

from jaxcomm.errors import JaxcommError
from jaxcomm.watch.reader import Reader

reader = Reader()
try:
    for _ in sys.stdin:
        print(json.dumps(reader.read()), flush=True)
except JaxcommError as error:
    sys.exit(str(error))
