"""What a fork server forks in tests: says what it is, and ends with exit code 7."""

from __future__ import annotations

import json
import os
import sys

if __name__ == "__main__":
    passed = [os.fstat(int(fd)).st_ino for fd in sys.argv[2:]]
    is_ = {"arguments": sys.argv[1:2], "cwd": os.getcwd(), "environment": dict(os.environ), "passed": passed}
    ids: dict[str, object] = {
        "parent": os.getppid(),
        "session": os.getsid(0),
        "open": sorted(map(int, os.listdir("/proc/self/fd"))),
    }
    with open("/proc/self/cmdline") as file:
        ids["shown"] = file.read().rstrip("\0")
    print(json.dumps(is_ | ids), flush=True)
    sys.stdin.read()
    sys.exit(7)
