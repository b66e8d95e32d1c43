//! Tests that the server accepts and refuses tokens of a real OpenID provider.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::provider::{AUDIENCE, TestIdentityProvider};
use crate::support::{
    COMMANDS, HttpServerProcess, TestHttpRequest, TestHttpResponse, at_once, call, initialize,
    wait_until,
};

/// Calls a tool with the bearer token `token`.
fn call_with_token(served: &HttpServerProcess, token: &str) -> TestHttpResponse {
    let post = TestHttpRequest::mcp(&call(1, "files_exists", json!({ "path": "README.md" })));
    served.send(&post.with("Authorization", &format!("Bearer {token}")))
}

#[track_caller]
fn check_accepted(served: &HttpServerProcess, token: &str) {
    let answer = call_with_token(served, token);
    assert_eq!(answer.status, 200, "{answer:?}\n{}", served.log());
    assert_eq!(answer.json()["result"]["isError"], false, "{answer:?}");
}

#[test]
fn tokens_of_all_algorithms_are_accepted_and_their_subjects_recorded() {
    let provider = TestIdentityProvider::start();
    let served = provider.served("");
    check_accepted(&served, &provider.request_token("ada", "files:read"));
    for (key, alg) in
        [("rsa", "RS256"), ("ps", "PS256"), ("ec", "ES256"), ("ec384", "ES384"), ("ed", "EdDSA")]
    {
        check_accepted(&served, &provider.forge_token(&json!({ "key": key, "alg": alg })));
    }
    for claims in [
        json!({ "aud": ["https://other.example", AUDIENCE] }),
        json!({ "exp": "-30" }),
        json!({ "nbf": "30" }),
        json!({ "sub": "auth0|ada:b@example.com" }),
    ] {
        check_accepted(&served, &provider.with_claims(claims));
    }
    check_accepted(&served, &provider.forge_token(&json!({ "header": { "typ": "JWT" } })));
    check_accepted(&served, &provider.forge_token(&json!({ "header": { "typ": null } })));
    assert_eq!(provider.fetch_count(), 1, "the keys are fetched once");
    wait_until("the calls are recorded", || served.records().len() >= 12);
    let callers: Vec<_> = served.records().iter().map(|one| one["caller"].clone()).collect();
    assert_eq!(callers[0], "id:ada");
    assert!(callers.contains(&json!("id:auth0|ada:b@example.com")), "{callers:?}");
}

/// Returns invalid tokens, each with a description that says what makes it invalid.
fn forgeries(provider: &TestIdentityProvider) -> Vec<(String, Value)> {
    let claims = |claims: Value| json!({ "claims": claims });
    let header = |header: Value| json!({ "header": header });
    let url = provider.url();
    let wanted = [
        claims(json!({ "aud": "https://other.example/mcp" })),
        claims(json!({ "aud": format!("{AUDIENCE}/") })),
        claims(json!({ "aud": "https://TOOLS.example/mcp" })),
        claims(json!({ "aud": null })),
        claims(json!({ "aud": [] })),
        claims(json!({ "aud": [""] })),
        claims(json!({ "iss": "https://id.example" })),
        claims(json!({ "iss": format!("{url}/") })),
        // A part of the issuer, as in CVE-2024-53861 (PyJWT).
        claims(json!({ "iss": &url[..url.len() - 1] })),
        claims(json!({ "iss": [url] })),
        claims(json!({ "exp": null })),
        // A wrong type does not count as missing, as in CVE-2026-25537 (jsonwebtoken).
        claims(json!({ "exp": true })),
        claims(json!({ "nbf": ["9999999999"] })),
        claims(json!({ "sub": null })),
        claims(json!({ "sub": "" })),
        claims(json!({ "sub": "ada\nlocal" })),
        claims(json!({ "sub": "a".repeat(256) })),
        claims(json!({ "cnf": { "jkt": "abc" } })),
        header(json!({ "kid": "../../etc/passwd" })),
        header(json!({ "kid": "rsa-1' OR 1=1 --" })),
        header(json!({ "kid": null })),
        header(json!({ "typ": "logout+jwt" })),
        header(json!({ "crit": ["exp"] })),
        header(json!({ "b64": false })),
        header(json!({ "zip": "DEF" })),
        json!({ "key": "none", "alg": "none" }),
        json!({ "key": "none", "alg": "RS256" }),
        json!({ "key": "public as a secret", "alg": "HS256" }),
        json!({ "key": "oct", "alg": "HS256" }),
        json!({ "key": "stranger" }),
        json!({ "key": "rsa", "alg": "PS256" }),
        json!({ "key": "ec", "alg": "RS256", "signed by": "ES256" }),
        json!({ "key": "stranger", "header": {
            "jwk": { "kty": "RSA", "n": "AQAB", "e": "AQAB" },
            "jku": "http://127.0.0.1:1/jwks",
            "x5u": "http://127.0.0.1:1/x",
        } }),
    ];
    let mut forged: Vec<_> =
        wanted.into_iter().map(|wanted| (provider.forge_token(&wanted), wanted)).collect();
    let good = provider.with_claims(json!({}));
    let parts: Vec<&str> = good.split('.').collect();
    let [head, body, seal] = parts[..] else { panic!("{good}") };
    let other = provider.with_claims(json!({ "sub": "root" }));
    let other = other.split('.').nth(1).unwrap();
    for (token, why) in [
        (format!("{head}.{other}.{seal}"), "claims of another token"),
        (format!("{head}.{body}."), "no signature"),
        (format!("{head}.{body}"), "two parts"),
        (format!("{head}.{body}.{seal}.{seal}"), "four parts"),
        (format!("{head}.{body}.{seal}=="), "padded"),
        (format!("eyJ{}.{body}.{seal}", "A".repeat(17 << 10)), "too long"),
    ] {
        forged.push((token, json!(why)));
    }
    forged
}

#[test]
fn invalid_tokens_are_refused_without_the_reason() {
    let provider = TestIdentityProvider::start();
    let mut answers = Vec::new();
    // One address may send at most nine invalid tokens a minute.
    for some in forgeries(&provider).chunks(9) {
        let served = provider.served("");
        check_accepted(&served, &provider.with_claims(json!({})));
        for (token, why) in some {
            let refused = call_with_token(&served, token);
            assert_eq!(refused.status, 401, "{why}: {refused:?}\n{}", served.log());
            let metadata = "/.well-known/oauth-protected-resource/mcp";
            let challenge = format!(
                "Bearer error=\"invalid_token\", resource_metadata=\"http://{}{metadata}\"",
                served.addr
            );
            assert_eq!(refused.header("www-authenticate"), Some(challenge.as_str()), "{why}");
            assert!(!served.log().contains(token.as_str()));
            answers.push(refused.text());
        }
        let log = served.log();
        assert!(!log.contains("etc/passwd") && !log.contains("OR 1=1"), "{log}");
    }
    answers.dedup();
    assert_eq!(answers.len(), 1, "{answers:?}");
}

#[test]
fn a_token_is_accepted_in_authorization_only() {
    let provider = TestIdentityProvider::start();
    let served = provider.served("");
    let token = provider.with_claims(json!({}));
    let post = TestHttpRequest::mcp(&initialize(0, "2025-06-18"));
    let bearer = format!("Bearer {token}");
    let status = |post: &TestHttpRequest| served.send(post).status;
    assert_eq!(status(&post.clone().with("Authorization", &bearer)), 200);
    for query in ["access_token", "api_key", "token"] {
        let target = format!("/mcp?{query}={token}");
        assert_eq!(status(&post.clone().to(&target)), 401, "{query}");
    }
    for (name, value) in
        [("X-API-Key", &token), ("Cookie", &format!("token={token}")), ("Authorization", &token)]
    {
        assert_eq!(status(&post.clone().with(name, value)), 401, "{name}");
    }
    for scheme in ["DPoP", "Basic", "Bearer2"] {
        let other = post.clone().with("Authorization", &format!("{scheme} {token}"));
        assert_eq!(status(&other), 401, "{scheme}");
    }
    // Two credentials are ambiguous.
    let twice = post
        .with_additional("Authorization", &bearer)
        .with_additional("authorization", "Bearer other");
    let refused = served.send(&twice);
    assert_eq!(refused.status, 400, "{refused:?}");
    let challenge = refused.header("www-authenticate").unwrap();
    assert!(challenge.starts_with("Bearer error=\"invalid_request\", resource"), "{challenge}");
    let socket = format!("/v1/ws/mcp?api_key={token}");
    let (messages, _) = served.socket(&socket).read_rest();
    assert_eq!(messages, [json!({ "error": "Unauthorized" })]);
}

#[test]
fn expired_tokens_are_not_guesses_and_forged_ones_are_throttled() {
    let provider = TestIdentityProvider::start();
    let served = provider.served("");
    let old = provider.with_claims(json!({ "exp": "-120" }));
    let early = provider.with_claims(json!({ "nbf": "120" }));
    for _ in 0..6 {
        for token in [&old, &early] {
            assert_eq!(call_with_token(&served, token).status, 401);
        }
    }
    let forged = provider.forge_token(&json!({ "key": "stranger" }));
    for nth in 1..=11 {
        let started = Instant::now();
        let status = call_with_token(&served, &forged).status;
        assert_eq!(status, if nth < 10 { 401 } else { 429 }, "{nth}");
        assert!(started.elapsed() >= Duration::from_millis(100), "{:?}", started.elapsed());
    }
    check_accepted(&served, &provider.with_claims(json!({})));
}

#[test]
fn rotated_keys_are_fetched_at_once_and_unknown_ones_once_a_minute() {
    let provider = TestIdentityProvider::start();
    let served = provider.served("");
    let first = provider.with_claims(json!({}));
    check_accepted(&served, &first);
    provider.rotate();
    check_accepted(&served, &provider.with_claims(json!({})));
    assert_eq!(provider.fetch_count(), 2);
    let old = provider.forge_token(&json!({ "before": true }));
    for old in [first, old] {
        assert_eq!(call_with_token(&served, &old).status, 401, "the old key is no longer valid");
    }
    for nth in 0..5 {
        let unknown = provider.forge_token(&json!({ "header": { "kid": format!("rsa-1{nth}") } }));
        assert_eq!(call_with_token(&served, &unknown).status, 401);
    }
    assert_eq!(provider.fetch_count(), 2);
    check_accepted(&served, &provider.with_claims(json!({})));
    // Cached keys are used while the provider is unavailable.
    provider.set_mode("away");
    check_accepted(&served, &provider.with_claims(json!({ "sub": "bob" })));
}

#[test]
fn a_broken_provider_delays_only_its_tokens_and_is_not_trusted() {
    let modes = [
        ("away", "the answer was 503"),
        ("slow", "timed out after 5"),
        ("huge", "more than 262144 bytes"),
        ("redirecting", "the answer was 302"),
        ("garbage", "not a key set"),
        ("another issuer", "names a different issuer"),
        ("jwks elsewhere", "is not encrypted"),
    ];
    at_once(modes, |(mode, reason)| {
        let provider = TestIdentityProvider::start();
        provider.set_mode(mode);
        let key = "\n[[keys]]\nname = \"ci\"\n\
                   sha256 = \"e99cd6f9c57b85b112d134efdd0bdba9528cdace6a8613dde31aa2795a821594\"\n";
        let served = provider.served(key);
        let token = provider.with_claims(json!({}));
        std::thread::scope(|scope| {
            let refused = scope.spawn(|| {
                let started = Instant::now();
                assert_eq!(call_with_token(&served, &token).status, 401, "{mode}");
                assert!(
                    started.elapsed() < Duration::from_secs(8),
                    "{mode}: {:?}",
                    started.elapsed()
                );
            });
            std::thread::sleep(Duration::from_millis(200));
            // Callers with keys do not wait for it.
            let started = Instant::now();
            assert_eq!(call_with_token(&served, "devkey").status, 200);
            assert!(started.elapsed() < Duration::from_secs(5), "{mode}: {:?}", started.elapsed());
            refused.join().unwrap();
        });
        let log = served.log();
        assert!(log.contains(reason), "{mode}: {log}");
        // A token that cannot be checked is not a guess.
        for _ in 0..11 {
            assert_eq!(call_with_token(&served, &token).status, 401, "{mode}");
        }
        provider.set_mode("well");
        wait_until("the keys are fetched again", || call_with_token(&served, &token).status == 200);
    });
}

#[test]
fn the_subject_of_a_token_never_equals_another_caller() {
    let provider = TestIdentityProvider::start();
    // The key `devkey` of the caller `ci`.
    let config = "[[keys]]\nname = \"ci\"\n\
                  sha256 = \"e99cd6f9c57b85b112d134efdd0bdba9528cdace6a8613dde31aa2795a821594\"\n";
    let served = provider.served(&format!("{config}{COMMANDS}"));
    let start = |secret: &str| {
        let params = json!({ "name": "draw-one", "mode": "async" });
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
        let post = TestHttpRequest::bytes(body.to_string().as_bytes()).to("/v1/mcp");
        let answer = served.send(&post.with("Authorization", &format!("Bearer {secret}"))).json();
        answer["result"]["job_id"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
    };
    let seen = |secret: &str, job: &str| {
        let get = TestHttpRequest::bare("GET", &format!("/v1/jobs/{job}"));
        served.send(&get.with("Authorization", &format!("Bearer {secret}"))).status
    };
    let token = |sub: &str| provider.with_claims(json!({ "sub": sub }));
    let job = start("devkey");
    for sub in ["ci", "local", "http", "id:ci", "zyra"] {
        assert_eq!(seen(&token(sub), &job), 404, "{sub}");
    }
    assert_eq!(seen("devkey", &job), 200);
    let job = start(&token("ci"));
    assert_eq!((seen("devkey", &job), seen(&token("ada"), &job)), (404, 404));
    // Another token of the same subject is the same caller.
    assert_eq!(seen(&provider.with_claims(json!({ "sub": "ci", "jti": "2" })), &job), 200);
}
