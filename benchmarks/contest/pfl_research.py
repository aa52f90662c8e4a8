"""Start pfl-research, in one process or in two.

    python pfl_research.py FOLDER [--processes N]
More processes as "Fast distributed simulations" has it: PFL_WORKER_RANK and PFL_WORKER_ADDRESSES. pfl
reads them when it is imported, so they come first.
"""

import argparse
import os
import socket
import subprocess
import sys


def second(folder: str) -> subprocess.Popen[str]:
    """The other process of two, on a free port."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    os.environ["PFL_WORKER_ADDRESSES"] = f"localhost:{port},localhost:{port + 1}"
    follower = subprocess.Popen(
        [sys.executable, __file__, folder, "--follow"],
        env={**os.environ, "PFL_WORKER_RANK": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    os.environ["PFL_WORKER_RANK"] = "0"
    return follower


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--processes", type=int, default=1, choices=(1, 2))
    parser.add_argument("--follow", action="store_true")
    given = parser.parse_args()
    follower = second(given.folder) if given.processes == 2 else None
    from pfl_rounds import run

    run(given.folder, follower, 2 if given.follow else given.processes)


if __name__ == "__main__":
    main()
