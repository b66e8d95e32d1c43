#!/usr/bin/env python3
"""Judges the REST surface by its description at `/openapi.json`, with schemathesis.

    openapi.py [--cases N] [--seed N] BINARY
"""

import argparse
import os
import pathlib
import queue
import re
import subprocess
import sys
import tempfile
import threading

from adapter import report

# These checks do not apply. The media type is checked before the method, so a POST without one gets
# 415 where 405 is expected. Which arguments a job takes depends on its tool, and the description
# cannot say it, so arguments that match it may be refused.
EXCLUDED = "unsupported_method,positive_data_acceptance"
START_SECONDS = 30


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default="50", help="largest number of random cases of an operation")
    parser.add_argument("--seed", default="1")
    parser.add_argument("binary")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = pathlib.Path(folder) / "home"
        root = pathlib.Path(folder) / "root"
        for made in (home, root):
            made.mkdir()
        environment = {"PATH": os.environ["PATH"], "HOME": str(home)}
        server = subprocess.Popen(
            [options.binary, "serve", str(root), "--listen", "127.0.0.1:0"],
            # Zyra has its own answers below the same paths.
            env={**environment, "TOOLGATE_SERVER_DIALECTS": "mcp"},
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            judged = judge(address(server), folder, environment, options)
        finally:
            server.terminate()
            server.wait()
    count = re.search(r"(\d+) generated", judged.stdout)
    failures = [judged.stdout + judged.stderr] if judged.returncode else []
    report("cases", int(count.group(1)) if count else 0, failures)


def judge(address, folder, environment, options):
    """Runs schemathesis against the server at `address`."""
    program = pathlib.Path(sys.executable).with_name("schemathesis")
    command = [program, "run", f"http://{address}/openapi.json", "--checks", "all"]
    command += ["--exclude-checks", EXCLUDED, "--max-examples", options.cases]
    command += ["--seed", options.seed, "--no-color", "--request-timeout", "30", "--warnings", "off"]
    # Examples are not stored in the repository.
    command += ["--generation-database", "none"]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def address(server):
    """The address that the server prints. Everything that it prints later is discarded."""
    found = queue.Queue()

    def read():
        for line in server.stderr:
            if match := re.search(r" at http://([^/\s]+)/mcp", line):
                found.put(match.group(1))

    threading.Thread(target=read, daemon=True).start()
    return found.get(timeout=START_SECONDS)


if __name__ == "__main__":
    main()
