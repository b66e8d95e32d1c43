"""Measures the console: the time to the first byte of each page over a long audit log, and what
open pages cost the callers of tools.

    cargo xtask bench --console [--records N] [--consoles N] [--seconds N]

The index of the log is generated directly, with the tables of crates/host/src/audit/index.rs.
Absolute figures depend on the machine; the targets are 200 ms for a page, and 3 % for 50 pages.
"""

import argparse, collections, http.client, json, math, multiprocessing, os, pathlib, random, re
import shutil, signal, socket, sqlite3, statistics, subprocess, tempfile, threading, time, urllib.parse

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
SOURCE = REPOSITORY / "crates/host/src/audit/index.rs"
TOOLS, CALLERS, DAYS = 1000, 20, 30
PAGES = [
    "/", "/console/calls", "/console/calls?failed=1&hours=1", "/console/calls?caller=caller-3",
    "/console/calls?caller=caller-3&tool=a.t007", "/console/calls?subject=nowhere",
    "/console/calls?tool=b.*", "/console/calls?outcome=no_such_outcome", "/console/jobs",
    "/console/tools", "/console/tools?q=t999", "/console/tools/a.t007", "/console/upstreams",
    "/console/policy?caller=caller-3&tool=a.t007", "/console/callers", "/console/search",
    "/console/settings",
]


def bucket(duration):
    """Returns the range of a duration as `duration_bucket` does."""
    exponent = max(duration, 1).bit_length() - 1
    quarter = duration >> exponent - 2 if exponent >= 2 else duration << 2 - exponent
    return exponent * 4 + (quarter & 3)


def generate(index, log, count):
    """Fills the index of `log` with `count` records before those that the server writes."""
    source = SOURCE.read_text()
    tables = re.search(r'const TABLES: &str = "(.*?)";', source, re.S)[1]
    version = int(re.search(r"const VERSION: i64 = (\d+);", source)[1])
    for suffix in ["", "-wal", "-shm"]:
        pathlib.Path(f"{index}{suffix}").unlink(missing_ok=True)
    db = sqlite3.connect(index)
    db.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF;" + tables)
    db.execute(f"PRAGMA user_version = {version}")
    hours, tool_hours, caller_hours = (collections.defaultdict(lambda count=count: [0] * count) for count in [3, 3, 4])
    rng, now = random.Random(1), time.time()

    def rows():
        for seq in range(-count, 0):
            start = now + seq * DAYS * 86400 / count
            tool, caller = f"a_t{rng.randrange(TOOLS):03}", f"caller-{rng.randrange(CALLERS)}"
            outcome = "ok" if rng.random() < 0.97 else rng.choice(["not_found", "tool_failed", "timed_out"])
            duration = int(math.exp(rng.gauss(8, 1.5)))
            hour, at = int(start // 3600), bucket(duration)
            for sums, key in [(hours, (hour, caller, tool, outcome, at)), (tool_hours, (hour, tool, outcome, at)),
                              (caller_hours, (hour, caller))]:
                one = sums[key]
                one[-3], one[-2], one[-1] = one[-3] + 1, one[-2] + duration, max(one[-1], duration)
            caller_hours[hour, caller][0] += outcome != "ok"
            stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(start))
            line = (f'{{"ts":"{stamp}.000000Z","caller":"{caller}","dialect":"mcp","tool":"{tool}","decision":"allow",'
                    f'"rule":"default","outcome":"{outcome}","subject":"src/file-{-seq % 5000}.rs","bytes_in":31,'
                    f'"bytes_out":212,"duration_us":{duration},"server":"1-00000000","seq":{seq & 2 ** 64 - 1},"mac":"{seq & 2 ** 256 - 1:064x}"}}')
            yield seq, int(start * 1e6) + duration, caller, tool, outcome, line

    db.executemany("INSERT INTO records VALUES (?, ?, ?, ?, ?, ?)", rows())
    for table, sums in [("hours", hours), ("tool_hours", tool_hours), ("caller_hours", caller_hours)]:
        marks = ", ".join("?" * sum(map(len, next(iter(sums.items())))))
        db.executemany(f"INSERT INTO {table} VALUES ({marks})", (key + tuple(one) for key, one in sums.items()))
    outcomes = {}
    for hour, _, _, outcome, _ in hours:
        outcomes[outcome] = max(hour, outcomes.get(outcome, hour))
    db.executemany("INSERT INTO outcomes VALUES (?, ?)", outcomes.items())
    # The index continues at the end of the log.
    db.execute("INSERT INTO place VALUES (0, ?, ?, NULL)", (log.stat().st_ino, log.stat().st_size))
    db.commit()
    print(f"{count} records, {len(hours)} rows of hours, index of {index.stat().st_size >> 20} MiB")
    db.close()


class Site:
    """A server with many tools, and a person who is signed in."""

    def __init__(self, toolgate, folder):
        self.toolgate, self.folder, self.root = toolgate, folder, folder / "root"
        self.root.mkdir()
        (folder / "home").mkdir()
        self.log = folder / "audit.jsonl"
        (self.root / "README.md").write_text("# A workspace\n")
        command = '[command."a.t{0:03}"]\nabout = "Says the number {0}. "\nprogram = "echo"\nargv = ["{0}"]\n'
        (self.root / "toolgate.toml").write_text("".join(command.format(at) for at in range(TOOLS)))
        self.env = {
            "PATH": os.environ["PATH"], "HOME": str(folder / "home"), "TOOLGATE_AUDIT_TO": str(self.log),
            "TOOLGATE_CONFIG": str(self.root / "toolgate.toml"),
        }

    def start(self):
        arguments = [self.toolgate, "serve", str(self.root), "--listen", "127.0.0.1:0", "--log", "quiet"]
        self.server = subprocess.Popen(arguments, env=self.env, stderr=subprocess.PIPE, text=True)
        for line in self.server.stderr:
            if found := re.search(r" at http://([^/\s]+)/mcp", line):
                self.address = found[1]
                break
        else:
            raise SystemExit("the server does not listen")
        threading.Thread(target=self.server.stderr.read, daemon=True).start()

    def stop(self):
        self.server.send_signal(signal.SIGTERM)
        self.server.wait()

    def sign_in(self):
        arguments = [self.toolgate, "console", str(self.root), "--no-browser", "--url", f"http://{self.address}"]
        link = subprocess.run(arguments, env=self.env, capture_output=True, text=True, check=True).stdout.strip()
        body = urllib.parse.urlencode({"token": link.split("token=")[1]})
        connection = http.client.HTTPConnection(self.address)
        connection.request("POST", "/console/sign-in", body, {"content-type": "application/x-www-form-urlencoded"})
        self.cookie = connection.getresponse().getheader("set-cookie").split(";")[0]

    def get(self, path, refresh=False):
        """Returns the seconds until the first byte of a page, and its length."""
        connection = http.client.HTTPConnection(self.address)
        headers = {"cookie": self.cookie} | ({"x-console-refresh": "1"} if refresh else {})
        begun = time.perf_counter()
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        seconds, body = time.perf_counter() - begun, answer.read()
        if answer.status != 200:
            raise SystemExit(f"{path}: status {answer.status}")
        return seconds, len(body)

    def watch(self, path, ended):
        """Keeps a page open as its script does: reads it again after each change."""
        connection = http.client.HTTPConnection(self.address)
        connection.request("GET", "/console/events", headers={"cookie": self.cookie})
        events = connection.getresponse()
        while not ended.is_set() and (line := events.readline()):
            if line.startswith(b"data:") and not ended.wait(1):
                self.get(path, refresh=True)
        connection.close()


def call_forever(address, counter, ended):
    """Calls a tool on one connection, again and again."""
    prefix = "io.modelcontextprotocol"
    meta = {f"{prefix}/protocolVersion": "2026-07-28", f"{prefix}/clientCapabilities": {},
            f"{prefix}/clientInfo": {"name": "bench", "version": "1"}}
    params = {"name": "files_exists", "arguments": {"path": "README.md"}, "_meta": meta}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    head = (f"POST /mcp HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n"
            "Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\n"
            f"Mcp-Method: tools/call\r\nMcp-Name: files_exists\r\nContent-Length: {len(body)}\r\n\r\n")
    request, name = (head + body).encode(), address.rsplit(":", 1)
    with socket.create_connection((name[0], int(name[1]))) as stream:
        while not ended.is_set():
            stream.sendall(request)
            received = stream.recv(65536)
            while b"\r\n\r\n" not in received:
                received += stream.recv(65536)
            head, rest = received.split(b"\r\n\r\n", 1)
            length = int(re.search(rb"(?i)content-length: (\d+)", head)[1])
            while len(rest) < length:
                rest += stream.recv(65536)
            if not head.startswith(b"HTTP/1.1 200") or b'"isError":false' not in rest:
                raise SystemExit(f"a call failed: {rest[:200]}")
            counter.value += 1


def calls_per_second(site, consoles, seconds):
    ended, pages_ended = multiprocessing.Event(), threading.Event()
    pages = ["/", "/console/calls", "/console/upstreams"]
    watchers = [threading.Thread(target=site.watch, args=(pages[at % 3], pages_ended)) for at in range(consoles)]
    for one in watchers:
        one.start()
    counters = [multiprocessing.Value("Q", 0, lock=False) for _ in range(4)]
    callers = [multiprocessing.Process(target=call_forever, args=(site.address, one, ended)) for one in counters]
    for one in callers:
        one.start()
    # Pages and connections settle first.
    time.sleep(3)
    before, begun = sum(one.value for one in counters), time.perf_counter()
    time.sleep(seconds)
    rate = (sum(one.value for one in counters) - before) / (time.perf_counter() - begun)
    ended.set()
    pages_ended.set()
    for one in callers + watchers:
        one.join()
    return rate


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--toolgate", required=True)
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--consoles", type=int, default=50)
    parser.add_argument("--seconds", type=int, default=20)
    options = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="toolgate-console-"))
    try:
        site = Site(options.toolgate, folder)
        # The first run creates the log.
        site.start()
        site.stop()
        site.log.touch()
        generate(pathlib.Path(f"{site.log}.index"), site.log, options.records)
        site.start()
        site.sign_in()
        for path in PAGES:
            times = []
            for _ in range(5):
                seconds, size = site.get(path)
                times.append(seconds * 1000)
                # Results are shared for almost a second.
                time.sleep(1)
            print(f"{path:48} {statistics.median(times):7.1f} ms  first {times[0]:7.1f} ms  {size / 1000:6.1f} KB")
        rates = []
        for _ in range(3):
            alone, watched = (calls_per_second(site, count, options.seconds) for count in [0, options.consoles])
            rates.append(1 - watched / alone)
            print(f"{alone:.0f} calls/s alone, {watched:.0f} with {options.consoles} open pages")
        print(f"cost of {options.consoles} open pages: {statistics.median(rates):.1%}")
        site.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
