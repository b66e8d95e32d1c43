// An authorization server, on oidc-provider. Every visitor is Ada, who consents to every request.
//
// The server prints its address on standard error, then the keys of the clients `ec` and `rsa`, then one line for each
// request to its token endpoint. NO_PKCE removes PKCE from its metadata. LIFE is the lifetime of its access tokens, in
// seconds.

import { generateKeyPairSync } from "node:crypto";
import http from "node:http";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const require = createRequire(`${process.argv[2]}/`);
const { Provider, errors } = await import(pathToFileURL(require.resolve("oidc-provider")));

const EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange";
const server = http.createServer();
await new Promise((listens) => server.listen(0, "127.0.0.1", listens));
const issuer = `http://127.0.0.1:${server.address().port}`;
const life = Number(process.env.LIFE ?? 300);

const signers = [
  ["ec", generateKeyPairSync("ec", { namedCurve: "P-256" }), "ES256"],
  ["rsa", generateKeyPairSync("rsa", { modulusLength: 2048 }), "RS256"],
];

const about = (resource) => ({
  scope: "read write",
  audience: resource,
  accessTokenTTL: life,
  accessTokenFormat: "jwt",
});

const provider = new Provider(issuer, {
  clients: [
    {
      client_id: "service",
      client_secret: "the-secret-of-the-service",
      grant_types: ["client_credentials", EXCHANGE],
      redirect_uris: [],
      response_types: [],
    },
    ...signers.map(([client_id, { publicKey }, algorithm]) => ({
      client_id,
      token_endpoint_auth_method: "private_key_jwt",
      token_endpoint_auth_signing_alg: algorithm,
      jwks: { keys: [{ ...publicKey.export({ format: "jwk" }), kid: "first", use: "sig" }] },
      grant_types: ["client_credentials"],
      redirect_uris: [],
      response_types: [],
    })),
  ],
  scopes: ["openid", "offline_access", "read", "write"],
  findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
  interactions: { url: (_, { uid }) => `/agree/${uid}` },
  issueRefreshToken: () => true,
  rotateRefreshToken: true,
  cookies: { keys: ["a key of a test"] },
  features: {
    devInteractions: { enabled: false },
    clientCredentials: { enabled: true },
    registration: { enabled: true },
    resourceIndicators: {
      enabled: true,
      useGrantedResource: () => true,
      getResourceServerInfo: (_, resource) => about(resource),
    },
  },
});

// Token exchange, of RFC 8693: for a token of its own, one of the same subject for another resource.
provider.registerGrantType(
  EXCHANGE,
  async (ctx) => {
    const { subject_token: shown, resource } = ctx.oidc.params;
    const [, claims] = shown.split(".");
    const said = JSON.parse(Buffer.from(claims, "base64url"));
    if (said.iss !== issuer || said.exp * 1000 < Date.now()) {
      throw new errors.InvalidGrant("it is not good");
    }
    const { AccessToken, ResourceServer } = ctx.oidc.provider;
    const token = new AccessToken({
      client: ctx.oidc.client,
      accountId: said.sub,
      scope: "read",
      gty: "token_exchange",
      grantId: "none",
    });
    token.resourceServer = new ResourceServer(resource, about(resource));
    const value = await token.save();
    ctx.body = {
      access_token: value,
      issued_token_type: "urn:ietf:params:oauth:token-type:access_token",
      token_type: "Bearer",
      expires_in: life,
    };
  },
  ["subject_token", "subject_token_type", "requested_token_type", "resource", "audience"],
);

if (process.env.NO_PKCE) {
  provider.use(async (ctx, next) => {
    await next();
    if (ctx.path.startsWith("/.well-known/")) {
      delete ctx.body.code_challenge_methods_supported;
    }
  });
}

async function agree(request, response) {
  const { params, prompt, session } = await provider.interactionDetails(request, response);
  const accountId = session?.accountId ?? "ada";
  if (prompt.name === "login") {
    await provider.interactionFinished(request, response, { login: { accountId } });
    return;
  }
  const grant = new provider.Grant({ accountId, clientId: params.client_id });
  grant.addOIDCScope(params.scope);
  grant.addResourceScope(params.resource, params.scope);
  const consent = { grantId: await grant.save() };
  await provider.interactionFinished(request, response, { consent });
}

const serve = provider.callback();
server.on("request", (request, response) => {
  if (request.url.startsWith("/agree/")) {
    agree(request, response).catch((why) => response.writeHead(500).end(String(why)));
    return;
  }
  serve(request, response);
});
for (const event of ["grant.success", "grant.error"]) {
  provider.on(event, (ctx, why) => {
    const { grant_type: grant, scope } = ctx.oidc.params ?? {};
    console.error(`${event} ${grant} ${scope ?? ""} ${why ?? ""}`);
  });
}
for (const [client, { privateKey }] of signers) {
  const key = privateKey.export({ type: "pkcs8", format: "pem" });
  console.error(`the key of ${client} is ${JSON.stringify(key).slice(1, -1)}`);
}
console.error(`authorization server at ${issuer}`);
