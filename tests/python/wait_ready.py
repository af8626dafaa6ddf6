"""Waits until the daemon's /ready says 200: wait_ready.py URL PID. Ends with 1 when the process is gone or after five minutes."""

import os
import sys
import time
import urllib.request

url, pid = sys.argv[1], int(sys.argv[2])
# Warming the demo household takes seconds; five minutes are for a busy machine.
deadline = time.monotonic() + 300
while time.monotonic() < deadline:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        sys.exit(1)
    try:
        with urllib.request.urlopen(f"{url}/ready", timeout=5):
            sys.exit(0)
    except OSError:  # not listening yet, or 503 with progress
        time.sleep(0.2)
sys.exit(1)
