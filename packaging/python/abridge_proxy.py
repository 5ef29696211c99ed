"""The command `abridge-proxy` of the wheel, which is what `uvx abridge-proxy` runs: the `abridge` beside it."""

import os
import signal
import subprocess
import sys


def main():
    beside = os.path.join(os.path.dirname(os.path.realpath(sys.argv[0])), "abridge")
    if os.name == "nt":
        # Windows cannot replace a process. Ctrl-C reaches both, and is for the child to answer.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.exit(subprocess.call([beside + ".exe", *sys.argv[1:]]))
    os.execv(beside, ["abridge", *sys.argv[1:]])
