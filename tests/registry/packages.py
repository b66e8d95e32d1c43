"""A registry of npm and a package index of Python on this machine, each with one small MCP server.

    python3 packages.py SOURCE

SOURCE is the source of the MCP server in Python. The program prints its port, and then each request.
"""

import http.server, io, json, sys, tarfile, zipfile

# The MCP server for npx. Its tool fetches the URLs in its arguments through the proxy.
NODE_SERVER = """#!/usr/bin/env node
const http = require('node:http');
const proxy = new URL(process.env.HTTP_PROXY);
const status = (url) => new Promise((resolve) => {
  const headers = { host: new URL(url).host };
  const options = { host: proxy.hostname, port: proxy.port, path: url, headers };
  http.get(options, (answer) => { answer.resume(); resolve(String(answer.statusCode)); });
});
const methods = {
  initialize: () => ({
    protocolVersion: '2025-06-18', capabilities: { tools: {} }, serverInfo: { name: 'notes', version: '1' },
  }),
  'tools/list': () => ({ tools: [{ name: 'fetch', inputSchema: { type: 'object' } }] }),
  'tools/call': async () => {
    const statuses = await Promise.all(process.argv.slice(2).map(status));
    return { content: [{ type: 'text', text: statuses.join(' ') }] };
  },
};
require('node:readline').createInterface({ input: process.stdin }).on('line', async (line) => {
  const { id, method } = JSON.parse(line);
  if (id === undefined) return;
  const answer = methods[method] ? { result: await methods[method]() } : { error: { code: -32601, message: 'unknown' } };
  console.log(JSON.stringify({ jsonrpc: '2.0', id, ...answer }));
});
"""

MANIFEST = {"name": "example-notes-mcp", "version": "1.0.0", "bin": {"example-notes-mcp": "server.js"}}
WHEEL = "example_weather_mcp-1.0-py3-none-any.whl"


def tarball():
    """Returns the package of npm."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, text in {"package.json": json.dumps(MANIFEST), "server.js": NODE_SERVER}.items():
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size, entry.mode = len(text.encode()), 0o755
            archive.addfile(entry, io.BytesIO(text.encode()))
    return packed.getvalue()


def wheel(source):
    """Returns the package of Python, whose program runs `source`."""
    packed, info = io.BytesIO(), "example_weather_mcp-1.0.dist-info"
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("example_weather_mcp/server.py", source)
        start = "import pathlib\n\ndef main():\n    path = pathlib.Path(__file__).with_name('server.py')\n"
        archive.writestr("example_weather_mcp/__init__.py", f"{start}    exec(path.read_text(), {{}})\n")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: example-weather-mcp\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/entry_points.txt", "[console_scripts]\nexample-weather-mcp = example_weather_mcp:main\n")
        archive.writestr(f"{info}/RECORD", "")
    return packed.getvalue()


class Registry(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        print(self.headers["host"], self.path, flush=True)
        port = self.server.server_port
        dist = {"tarball": f"http://one.localhost:{port}/notes.tgz"}
        listed = {"1.0.0": MANIFEST | {"dist": dist}}
        pages = {
            "/example-notes-mcp": json.dumps({"name": MANIFEST["name"], "dist-tags": {"latest": "1.0.0"}, "versions": listed}),
            "/notes.tgz": PACKAGES[0],
            "/simple/example-weather-mcp/": f'<a href="http://files.localhost:{port}/{WHEEL}">wheel</a>',
            f"/{WHEEL}": PACKAGES[1],
            "/api": "ok",
        }
        body = pages.get(self.path)
        self.send_response(404 if body is None else 200)
        body = (body or "").encode() if not isinstance(body, bytes) else body
        self.send_header("content-type", "text/html" if self.path.startswith("/simple/") else "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, *_):
        pass


PACKAGES = [tarball(), wheel(sys.argv[1])]
with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Registry) as server:
    print(server.server_port, flush=True)
    server.serve_forever()
