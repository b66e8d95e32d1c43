#!/usr/bin/env python3
"""Judges `populate_backend` by Python's `ssl`.

    backend.py BINARY
"""

import argparse
import datetime
import http.server
import ipaddress
import json
import pathlib
import ssl
import tempfile
import threading

from adapter import answers, report
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

ASSET = {"$schemaRef": "x", "name": "é", "numbers": [1, 1.0, 1e300, 2**63], "nothing": None}
UNREACHED = {"ok": False, "reason": "backend_error", "status": 503, "detail": "network_unreachable"}


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("binary")
    binary = arguments.parse_args().binary
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        for what, address, is_trusted, is_reached in [
            ("a backend that is trusted", "127.0.0.1", True, True),
            ("one that is not", "127.0.0.1", False, False),
            ("one that is another", "127.0.0.2", True, False),
        ]:
            certificate = certify(pathlib.Path(folder), address)
            elsewhere = certify(pathlib.Path(folder) / "elsewhere", "127.0.0.1")
            backend = Backend(certificate)
            trusted = certificate if is_trusted else elsewhere
            call = ("populate_backend", {"asset": ASSET, "validate_first": False})
            variables = {"SYN_BACKEND_URL": backend.url, "SSL_CERT_FILE": str(trusted)}
            [result] = answers(binary, folder, [call], **variables)
            backend.shutdown()
            taken = {"ok": True, "asset_id": "7", "backend_url": backend.url}
            if list(result.items()) != list((taken if is_reached else UNREACHED).items()):
                failures.append(f"{what}: {result}")
            sent = [("/synesthetic-assets/", repr(ASSET))] if is_reached else []
            if backend.seen != sent:
                failures.append(f"{what} saw {backend.seen}")
    report("backends", 3, failures)


class Backend(http.server.ThreadingHTTPServer):
    """Takes assets over TLS."""

    def __init__(self, certificate):
        super().__init__(("127.0.0.1", 0), Taking)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, certificate.with_suffix(".key"))
        self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        self.url = f"https://127.0.0.1:{self.server_port}"
        self.seen = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request, client_address):
        """A handshake that fails is expected."""


class Taking(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        asset = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.seen.append((self.path, repr(asset)))
        self.send_response(201)
        self.end_headers()
        self.wfile.write(b'{"id": 7}')

    def log_message(self, *_):
        pass


def certify(folder, address):
    """A certificate for `address` that signs itself, and beside it its key."""
    folder.mkdir(exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a backend")])
    now = datetime.datetime.now(datetime.timezone.utc)
    hour = datetime.timedelta(hours=1)
    alternative = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - hour)
        .not_valid_after(now + hour)
        .add_extension(alternative, critical=False)
        .sign(key, hashes.SHA256())
    )
    path = folder / "backend.pem"
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
    path.with_suffix(".key").write_bytes(key.private_bytes(*form, serialization.NoEncryption()))
    return path


if __name__ == "__main__":
    main()
