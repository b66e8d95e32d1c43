"""Measures what the forwarder costs a program in the sandbox: the time that it adds to a connection,
and the throughput of a download of 100 MB.

    cargo xtask bench --forwarder [--rounds N]

The same program connects to the same server in turn: directly with the profile `network`, and
through the forwarder. The figures are medians. The targets are 0.3 ms and 60 %.

The server sends as fast as a network of 1 Gbit/s, and then without a limit. Without a limit, the
processors are the bottleneck. The forwarder moves large amounts inside the kernel, without copying
them, but it still is a third busy process beside the server and the program.
"""

import argparse, json, multiprocessing, os, pathlib, socket, statistics, subprocess, tempfile, threading

CONNECTIONS, DOWNLOAD = 500, 100 << 20
# The socket option that limits the bytes per second of a connection, and the limit.
SO_MAX_PACING_RATE, NETWORK_RATE = 47, 125_000_000

# The program in the sandbox. The server answers each line.
CLIENT = """
import json, os, socket, statistics, sys, time

port = int(sys.argv[1])
proxy = os.environ.get("HTTPS_PROXY")

def connect():
    if not proxy:
        return socket.create_connection(("127.0.0.1", port))
    connection = socket.create_connection(("127.0.0.1", int(proxy.rsplit(":", 1)[1])))
    connection.sendall(b"CONNECT one.localhost:%d HTTP/1.1\\r\\n\\r\\n" % port)
    head = b""
    while not head.endswith(b"\\r\\n\\r\\n"):
        head += connection.recv(4096)
    assert head.startswith(b"HTTP/1.1 200 "), head
    return connection

def ask(connection, line):
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(line)

times = []
for _ in range(int(sys.argv[2])):
    start = time.perf_counter()
    with connect() as connection:
        ask(connection, b"x\\n")
        assert connection.recv(1) == b"y"
        times.append(time.perf_counter() - start)
figures = {"connection_ms": statistics.median(times) * 1000}
for line in ["network", "unlimited"]:
    with connect() as connection:
        buffer, total, start = bytearray(1 << 20), 0, time.perf_counter()
        ask(connection, line.encode() + b"\\n")
        while length := connection.recv_into(buffer):
            total += length
        assert total == 100 << 20, total
        figures[line] = total / (time.perf_counter() - start) / 1e6
print(json.dumps(figures))
"""


def answer(connection):
    """Answers one line of a client."""
    with connection:
        line = connection.makefile("rb").readline()
        if line in [b"network\n", b"unlimited\n"]:
            if line == b"network\n":
                connection.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, NETWORK_RATE)
            block = bytes(1 << 20)
            for _ in range(DOWNLOAD // len(block)):
                connection.sendall(block)
        elif line:
            connection.sendall(b"y")


def serve(listener):
    """Answers clients until the process is stopped."""
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=answer, args=[connection], daemon=True).start()


def measure(toolgate, folder, port, sandbox):
    """Runs the client once with the settings `sandbox`, and returns its figures."""
    config = folder / "toolgate.toml"
    config.write_text(f"[sandbox]\n{sandbox}\n")
    root = folder / "root"
    root.mkdir(exist_ok=True)
    call = {"command": "/usr/bin/python3", "args": ["-c", CLIENT, str(port), str(CONNECTIONS)]}
    command = [toolgate, "call", "exec_run", json.dumps(call), "--json", "--root", root, "--config", config]
    run = subprocess.run(command, env=os.environ | {"HOME": str(folder)}, capture_output=True, text=True)
    result = json.loads(run.stdout) if run.returncode == 0 else {}
    assert result.get("exit_code") == 0, run.stdout + run.stderr
    return json.loads(result["stdout"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--toolgate", required=True)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    port = listener.getsockname()[1]
    server = multiprocessing.Process(target=serve, args=[listener], daemon=True)
    server.start()
    settings = {"directly": 'profile = "network"', "forwarded": f'hosts = ["one.localhost:{port}"]'}
    rounds = {name: [] for name in settings}
    try:
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(options.rounds):
                for name, sandbox in settings.items():
                    rounds[name].append(measure(options.toolgate, pathlib.Path(folder), port, sandbox))
    finally:
        server.terminate()

    def median(name, figure):
        return statistics.median(one[figure] for one in rounds[name])

    direct, forwarded = (median(name, "connection_ms") for name in settings)
    print(f"a connection and its first answer: {direct:.3f} ms directly, {forwarded:.3f} ms forwarded, "
          f"{forwarded - direct:.3f} ms more (target: at most 0.3)")
    for figure, name in [("network", "from a network of 1 Gbit/s"), ("unlimited", "without a limit")]:
        direct, forwarded = (median(one, figure) for one in settings)
        print(f"a download of 100 MB {name}: {direct:.0f} MB/s directly, {forwarded:.0f} MB/s forwarded, "
              f"{forwarded / direct:.0%} (target: at least 60 %)")


main()
