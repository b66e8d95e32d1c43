"""An MCP server on FastMCP whose callers need a token of an authorization server.

Usage: protected.py ISSUER KEYS PORT [SCOPE...]. The tool `whoami` returns the subject and the
scopes of the call's token. The tool `forget` revokes all tokens that the server has received.
"""

import sys

from fastmcp import FastMCP
from fastmcp.server.auth import RemoteAuthProvider
from fastmcp.server.auth.providers.jwt import JWTVerifier
from fastmcp.server.dependencies import get_access_token
from pydantic import AnyHttpUrl

issuer, keys, port, *scopes = sys.argv[1:]
here = f"http://127.0.0.1:{port}"
seen, gone = set(), set()


class Verifier(JWTVerifier):
    async def verify_token(self, token):
        seen.add(token)
        return None if token in gone else await super().verify_token(token)


verifier = Verifier(
    jwks_uri=keys, issuer=issuer, audience=f"{here}/mcp", required_scopes=scopes or None,
)
auth = RemoteAuthProvider(
    token_verifier=verifier, authorization_servers=[AnyHttpUrl(issuer)], base_url=here,
)
server = FastMCP("protected", auth=auth)


@server.tool
def whoami() -> str:
    token = get_access_token()
    return f"{token.claims.get('sub')} {' '.join(sorted(token.scopes))}"


@server.tool
def forget() -> str:
    gone.update(seen)
    return "forgotten"


server.run(transport="http", host="127.0.0.1", port=int(port), show_banner=False)
