"""The binary as the Synesthetic adapter: requests in, results out, in order."""

import json
import os
import subprocess
import sys
import threading


def answers(binary, folder, calls, **variables):
    """The result of each of `calls`, pairs of a method and its params."""
    environment = {"PATH": os.environ["PATH"], "HOME": folder, **variables}
    environment["MCP_READY_FILE"] = os.path.join(folder, "ready")
    command = [binary, "stdio", "--dialect", "synesthetic"]
    server = subprocess.Popen(
        command, cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )

    def send():
        for number, (method, params) in enumerate(calls):
            request = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
            server.stdin.write(json.dumps(request).encode() + b"\n")
        server.stdin.close()

    sender = threading.Thread(target=send)
    sender.start()
    results = []
    for number, line in enumerate(server.stdout):
        answer = json.loads(line)
        assert answer.get("id") == number and "result" in answer, answer
        results.append(answer["result"])
    sender.join()
    code = server.wait()
    assert code == 0, f"the server ended with {code}"
    assert len(results) == len(calls), f"{len(results)} answers to {len(calls)} requests"
    return results


def report(what, count, failures):
    """Prints what came of `count` cases and ends with it."""
    for failure in failures[:10]:
        print(f"FAIL {failure}")
    print(f"{count} {what}, {len(failures)} failed")
    sys.exit(1 if failures else 0)
