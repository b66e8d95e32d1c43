"""An OpenID provider: prints its address at start, issues tokens to its clients (RFC 6749 client
credentials, RFC 9068 access tokens), rotates its keys, and misbehaves on request.

    provider.py AUDIENCE

Paths below /test are for tests only, such as tokens that no honest provider would issue.
"""

import base64
import hmac
import json
import sys
import threading
import time

from authlib.integrations.flask_oauth2 import AuthorizationServer
from authlib.oauth2.rfc6749 import ClientMixin, grants
from authlib.oauth2.rfc9068 import JWTBearerTokenGenerator
from flask import Flask, Response, jsonify, redirect, request
from joserfc.jwk import ECKey, KeySet, OctKey, OKPKey, RSAKey
from joserfc.jws import JWSRegistry
from werkzeug.serving import make_server

AUDIENCE = sys.argv[1]
SECRET = "of no use elsewhere"

app = Flask(__name__)


class State:
    """What it is and does at the moment."""

    serial = 0
    keys = []  # the newest last; published are all
    before = []  # published no more
    mode = "well"
    asked = 0


def fresh(kind):
    State.serial += 1
    kid = f"{kind}-{State.serial}"
    parameters = {"kid": kid, "use": "sig"}
    if kind == "rsa":
        return RSAKey.generate_key(2048, parameters={**parameters, "alg": "RS256"})
    if kind == "ps":
        return RSAKey.generate_key(2048, parameters={**parameters, "alg": "PS256"})
    if kind == "ec":
        return ECKey.generate_key("P-256", parameters=parameters)
    if kind == "ec384":
        return ECKey.generate_key("P-384", parameters=parameters)
    return OKPKey.generate_key("Ed25519", parameters=parameters)


class Client(ClientMixin):
    def __init__(self, name):
        self.client_id = name

    def get_client_id(self):
        return self.client_id

    def get_allowed_scope(self, scope):
        return scope or ""

    def check_client_secret(self, client_secret):
        return client_secret == SECRET

    def check_endpoint_auth_method(self, method, endpoint):
        return method == "client_secret_basic"

    def check_grant_type(self, grant_type):
        return grant_type == "client_credentials"


class Generator(JWTBearerTokenGenerator):
    def get_jwks(self):
        signing = [key for key in State.keys if key.kid.startswith("rsa")][-1]
        return KeySet([signing]).as_dict(private=True)

    def get_audiences(self, client, user, scope):
        return AUDIENCE


def issuer():
    return request.host_url.rstrip("/")


@app.get("/.well-known/openid-configuration")
def configuration():
    if State.mode == "another issuer":
        return jsonify(issuer="https://id.example", jwks_uri=f"{issuer()}/jwks")
    if State.mode == "jwks elsewhere":
        return jsonify(issuer=issuer(), jwks_uri="http://169.254.169.254/latest")
    return jsonify(
        issuer=issuer(),
        jwks_uri=f"{issuer()}/jwks",
        token_endpoint=f"{issuer()}/token",
        # What a client could be led astray by, and no server has any use for.
        authorization_endpoint="file:///x?$(touch w)",
    )


@app.get("/jwks")
def jwks():
    State.asked += 1
    if State.mode == "away":
        return Response("gone for lunch", status=503)
    if State.mode == "slow":
        time.sleep(30)
    if State.mode == "huge":
        return Response(b'{"keys":[' + b" " * (1 << 20) + b"]}", mimetype="application/json")
    if State.mode == "redirecting":
        return redirect("/elsewhere")
    if State.mode == "garbage":
        return Response(b"<html>sign in</html>", mimetype="text/html")
    published = KeySet(State.keys).as_dict(private=False)
    # A secret does not become a key by standing here.
    published["keys"].append({"kty": "oct", "kid": "oct", "k": "c2VjcmV0"})
    return jsonify(published)


@app.get("/elsewhere")
def elsewhere():
    return jsonify(KeySet(State.keys).as_dict(private=False))


@app.post("/token")
def token():
    return server.create_token_response()


@app.post("/test/rotate")
def rotate():
    """Publishes new keys alone."""
    State.before = State.keys
    State.keys = [fresh(kind) for kind in ("rsa", "ps", "ec", "ec384", "ed")]
    return jsonify([key.kid for key in State.keys])


@app.post("/test/mode/<mode>")
def mode(mode):
    State.mode = mode
    return "ok"


@app.get("/test/asked")
def asked():
    return jsonify(State.asked)


def encoded(part):
    return base64.urlsafe_b64encode(part).rstrip(b"=").decode()


@app.post("/test/token")
def forged():
    """A token of whatever header and claims, signed by the key that is asked for."""
    wanted = request.get_json()
    kind, alg = wanted.get("key", "rsa"), wanted.get("alg", "RS256")
    keys = State.before if wanted.get("before") else State.keys
    now = int(time.time())
    claims = {
        "iss": issuer(),
        "aud": AUDIENCE,
        "sub": "ada",
        "iat": now,
        "exp": now + 300,
        **wanted.get("claims", {}),
    }
    for name in ("exp", "nbf"):
        if isinstance(claims.get(name), str):
            claims[name] = now + int(claims[name])
    claims = {name: value for name, value in claims.items() if value is not None}
    if kind == "stranger":
        key = RSAKey.generate_key(2048)
        kid = [key for key in keys if key.kid.startswith("rsa")][-1].kid
    elif kind == "public as a secret":
        public = [key for key in keys if key.kid.startswith("rsa")][-1]
        key, kid = public, public.kid
    elif kind == "oct":
        key, kid = OctKey.import_key(b"secret"), "oct"
    elif kind == "none":
        key, kid = None, None
    else:
        key = [key for key in keys if key.kid.rsplit("-", 1)[0] == kind][-1]
        kid = key.kid
    header = {"alg": alg, "typ": "at+jwt", "kid": kid, **wanted.get("header", {})}
    header = {name: value for name, value in header.items() if value is not None}
    signed = f"{encoded(json.dumps(header).encode())}.{encoded(json.dumps(claims).encode())}"
    if key is None:
        return f"{signed}."
    if kind == "public as a secret":
        signature = hmac.digest(key.as_pem(private=False), signed.encode(), "sha256")
        return f"{signed}.{encoded(signature)}"
    by = JWSRegistry.algorithms[wanted.get("signed by", alg)]
    signature = by.sign(signed.encode(), key)
    return f"{signed}.{encoded(signature)}"


listening = make_server("127.0.0.1", 0, app, threaded=True)
at = f"http://127.0.0.1:{listening.server_port}"
server = AuthorizationServer(
    app, query_client=Client, save_token=lambda token, request: None
)
server.register_grant(grants.ClientCredentialsGrant)
server.register_token_generator("default", Generator(issuer=at))
State.keys = [fresh(kind) for kind in ("rsa", "ps", "ec", "ec384", "ed")]

print(at, flush=True)
# Whoever started it closes its input in the end, however it ends itself.
threading.Thread(target=listening.serve_forever, daemon=True).start()
sys.stdin.read()
