"""For `jaxcomm top` on another host: prints the snapshots of this host's processes, one line per line of input."""

import json
import sys

from jaxcomm.errors import JaxcommError
from jaxcomm.watch.folder import VERSION
from jaxcomm.watch.hosts import ANSWER
from jaxcomm.watch.reader import Reader

reader = Reader()
try:
    for _ in sys.stdin:
        answer = {"version": VERSION, "snapshots": reader.read()}
        print(f"{ANSWER.decode()}{json.dumps(answer)}", flush=True)
except JaxcommError as error:
    sys.exit(str(error))
