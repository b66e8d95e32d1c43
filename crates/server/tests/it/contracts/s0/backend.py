"""A backend that behaves as told, line by line on standard input.

It prints its port, then an answer to each line: `{"behave": {...}}` says how the next requests are
met, `{"requests": true}` returns those received since it was last sent.
"""

import json
import socket
import struct
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

behaviour = {"status": 201, "body": '{"id":"xyz"}'}
came = []
lock = threading.Lock()


class Backend(BaseHTTPRequestHandler):
    def do_POST(self):
        with lock:
            now = dict(behaviour)
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        with lock:
            came.append(
                {
                    "at": time.monotonic(),
                    "method": self.command,
                    "path": self.path,
                    "type": self.headers.get("content-type"),
                    "body": body.decode("utf-8"),
                }
            )
        time.sleep(now.get("delay", 0))
        if now.get("reset"):
            # Closing with nothing to linger for is a reset.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            return
        said = now.get("body", "").encode("utf-8")
        self.send_response(now.get("status", 200))
        for name, value in now.get("headers", {}).items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    do_GET = do_POST

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Backend)
server.daemon_threads = True
server.handle_error = lambda *_: None
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_address[1], flush=True)
for line in sys.stdin:
    word = json.loads(line)
    with lock:
        if "behave" in word:
            behaviour = word["behave"]
            print("null", flush=True)
        else:
            print(json.dumps(came), flush=True)
            came = []
