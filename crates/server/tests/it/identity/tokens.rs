//! Tokens of a real provider: whose are taken, and that no others are.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::provider::{AUDIENCE, Provider};
use crate::support::{COMMANDS, Post, Response, Served, at_once, call, initialize, wait_until};

/// A call with `token`.
fn called(served: &Served, token: &str) -> Response {
    let post = Post::mcp(&call(1, "files_exists", json!({ "path": "README.md" })));
    served.send(&post.with("Authorization", &format!("Bearer {token}")))
}

#[track_caller]
fn taken(served: &Served, token: &str) {
    let answer = called(served, token);
    assert_eq!(answer.status, 200, "{answer:?}\n{}", served.log());
    assert_eq!(answer.json()["result"]["isError"], false, "{answer:?}");
}

#[test]
fn a_token_of_its_issuer_is_taken_whatever_it_is_signed_with_and_its_subject_is_on_record() {
    let provider = Provider::start();
    let served = provider.served("");
    taken(&served, &provider.granted("ada", "files:read"));
    for (key, alg) in
        [("rsa", "RS256"), ("ps", "PS256"), ("ec", "ES256"), ("ec384", "ES384"), ("ed", "EdDSA")]
    {
        taken(&served, &provider.forged(&json!({ "key": key, "alg": alg })));
    }
    for claims in [
        json!({ "aud": ["https://other.example", AUDIENCE] }),
        json!({ "exp": "-30" }),
        json!({ "nbf": "30" }),
        json!({ "sub": "auth0|ada:b@example.com" }),
    ] {
        taken(&served, &provider.saying(claims));
    }
    taken(&served, &provider.forged(&json!({ "header": { "typ": "JWT" } })));
    taken(&served, &provider.forged(&json!({ "header": { "typ": null } })));
    assert_eq!(provider.asked(), 1, "its keys were asked for once");
    wait_until("the calls are on record", || served.records().len() >= 12);
    let callers: Vec<_> = served.records().iter().map(|one| one["caller"].clone()).collect();
    assert_eq!(callers[0], "id:ada");
    assert!(callers.contains(&json!("id:auth0|ada:b@example.com")), "{callers:?}");
}

/// Tokens that are none, and why.
fn forgeries(provider: &Provider) -> Vec<(String, Value)> {
    let claims = |claims: Value| json!({ "claims": claims });
    let header = |header: Value| json!({ "header": header });
    let url = provider.url();
    let wanted = [
        claims(json!({ "aud": "https://other.example/mcp" })),
        claims(json!({ "aud": format!("{AUDIENCE}/") })),
        claims(json!({ "aud": "https://TOOLS.example/mcp" })),
        claims(json!({ "aud": null })),
        claims(json!({ "aud": [] })),
        claims(json!({ "iss": "https://id.example" })),
        claims(json!({ "iss": format!("{url}/") })),
        claims(json!({ "exp": null })),
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
        wanted.into_iter().map(|wanted| (provider.forged(&wanted), wanted)).collect();
    let good = provider.saying(json!({}));
    let parts: Vec<&str> = good.split('.').collect();
    let [head, said, seal] = parts[..] else { panic!("{good}") };
    let other = provider.saying(json!({ "sub": "root" }));
    let other = other.split('.').nth(1).unwrap();
    for (token, why) in [
        (format!("{head}.{other}.{seal}"), "another's claims"),
        (format!("{head}.{said}."), "no signature"),
        (format!("{head}.{said}"), "two parts"),
        (format!("{head}.{said}.{seal}.{seal}"), "four parts"),
        (format!("{head}.{said}.{seal}=="), "padded"),
        (format!("eyJ{}.{said}.{seal}", "A".repeat(17 << 10)), "too long"),
    ] {
        forged.push((token, json!(why)));
    }
    forged
}

#[test]
fn no_other_token_is_taken_and_none_is_told_why() {
    let provider = Provider::start();
    let mut told = Vec::new();
    // One address may not say more wrong ones than this within a minute.
    for some in forgeries(&provider).chunks(9) {
        let served = provider.served("");
        taken(&served, &provider.saying(json!({})));
        for (token, why) in some {
            let refused = called(&served, token);
            assert_eq!(refused.status, 401, "{why}: {refused:?}\n{}", served.log());
            let place = "/.well-known/oauth-protected-resource/mcp";
            let challenge = format!(
                "Bearer error=\"invalid_token\", resource_metadata=\"http://{}{place}\"",
                served.addr
            );
            assert_eq!(refused.header("www-authenticate"), Some(challenge.as_str()), "{why}");
            assert!(!served.log().contains(token.as_str()));
            told.push(refused.text());
        }
        let log = served.log();
        assert!(!log.contains("etc/passwd") && !log.contains("OR 1=1"), "{log}");
    }
    told.dedup();
    assert_eq!(told.len(), 1, "{told:?}");
}

#[test]
fn a_token_stands_in_authorization_and_nowhere_else() {
    let provider = Provider::start();
    let served = provider.served("");
    let token = provider.saying(json!({}));
    let post = Post::mcp(&initialize(0, "2025-06-18"));
    let bearer = format!("Bearer {token}");
    let status = |post: &Post| served.send(post).status;
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
    // Which of the two is meant is for nobody to choose.
    let twice = post.and("Authorization", &bearer).and("authorization", "Bearer other");
    let refused = served.send(&twice);
    assert_eq!(refused.status, 400, "{refused:?}");
    let challenge = refused.header("www-authenticate").unwrap();
    assert!(challenge.starts_with("Bearer error=\"invalid_request\", resource"), "{challenge}");
    let socket = format!("/v1/ws/mcp?api_key={token}");
    let (said, _) = served.socket(&socket).rest();
    assert_eq!(said, [json!({ "error": "Unauthorized" })]);
}

#[test]
fn who_says_an_old_token_guesses_nothing_and_who_forges_on_is_told_to_wait() {
    let provider = Provider::start();
    let served = provider.served("");
    let old = provider.saying(json!({ "exp": "-120" }));
    let early = provider.saying(json!({ "nbf": "120" }));
    for _ in 0..6 {
        for token in [&old, &early] {
            assert_eq!(called(&served, token).status, 401);
        }
    }
    let forged = provider.forged(&json!({ "key": "stranger" }));
    for nth in 1..=11 {
        let begun = Instant::now();
        let status = called(&served, &forged).status;
        assert_eq!(status, if nth < 10 { 401 } else { 429 }, "{nth}");
        assert!(begun.elapsed() >= Duration::from_millis(100), "{:?}", begun.elapsed());
    }
    taken(&served, &provider.saying(json!({})));
}

#[test]
fn keys_that_are_rotated_are_known_at_once_and_a_key_nobody_has_is_asked_for_once_a_minute() {
    let provider = Provider::start();
    let served = provider.served("");
    let first = provider.saying(json!({}));
    taken(&served, &first);
    provider.rotate();
    taken(&served, &provider.saying(json!({})));
    assert_eq!(provider.asked(), 2);
    let gone = provider.forged(&json!({ "before": true }));
    for gone in [first, gone] {
        assert_eq!(called(&served, &gone).status, 401, "the key before is no more");
    }
    for nth in 0..5 {
        let unknown = provider.forged(&json!({ "header": { "kid": format!("rsa-1{nth}") } }));
        assert_eq!(called(&served, &unknown).status, 401);
    }
    assert_eq!(provider.asked(), 2);
    taken(&served, &provider.saying(json!({})));
    // What is known stays known while the provider is away.
    provider.mode("away");
    taken(&served, &provider.saying(json!({ "sub": "bob" })));
}

#[test]
fn a_provider_that_is_away_slow_or_astray_is_not_waited_for_long_and_is_believed_nothing() {
    let modes = [
        ("away", "the answer was 503"),
        ("slow", "no answer within 5"),
        ("huge", "more than 262144 bytes"),
        ("redirecting", "the answer was 302"),
        ("garbage", "no set of keys"),
        ("another issuer", "it says that it is another issuer"),
        ("jwks elsewhere", "is not encrypted"),
    ];
    at_once(modes, |(mode, told)| {
        let provider = Provider::start();
        provider.mode(mode);
        let key = "\n[[keys]]\nname = \"ci\"\n\
                   sha256 = \"e99cd6f9c57b85b112d134efdd0bdba9528cdace6a8613dde31aa2795a821594\"\n";
        let served = provider.served(key);
        let token = provider.saying(json!({}));
        std::thread::scope(|scope| {
            let refused = scope.spawn(|| {
                let begun = Instant::now();
                assert_eq!(called(&served, &token).status, 401, "{mode}");
                assert!(begun.elapsed() < Duration::from_secs(8), "{mode}: {:?}", begun.elapsed());
            });
            std::thread::sleep(Duration::from_millis(200));
            // Nobody else waits for it.
            let begun = Instant::now();
            assert_eq!(called(&served, "devkey").status, 200);
            assert!(begun.elapsed() < Duration::from_secs(5), "{mode}: {:?}", begun.elapsed());
            refused.join().unwrap();
        });
        let log = served.log();
        assert!(log.contains(told), "{mode}: {log}");
        // Who has a token cannot help that, and guesses nothing.
        for _ in 0..11 {
            assert_eq!(called(&served, &token).status, 401, "{mode}");
        }
        provider.mode("well");
        wait_until("it is asked again", || called(&served, &token).status == 200);
    });
}

#[test]
fn nobody_is_somebody_else_by_what_an_issuer_calls_them() {
    let provider = Provider::start();
    // The key `devkey` of the caller `ci`.
    let config = "[[keys]]\nname = \"ci\"\n\
                  sha256 = \"e99cd6f9c57b85b112d134efdd0bdba9528cdace6a8613dde31aa2795a821594\"\n";
    let served = provider.served(&format!("{config}{COMMANDS}"));
    let start = |secret: &str| {
        let params = json!({ "name": "draw-one", "mode": "async" });
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
        let post = Post::bytes(body.to_string().as_bytes()).to("/v1/mcp");
        let answer = served.send(&post.with("Authorization", &format!("Bearer {secret}"))).json();
        answer["result"]["job_id"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
    };
    let seen = |secret: &str, job: &str| {
        let get = Post::bare("GET", &format!("/v1/jobs/{job}"));
        served.send(&get.with("Authorization", &format!("Bearer {secret}"))).status
    };
    let token = |sub: &str| provider.saying(json!({ "sub": sub }));
    let job = start("devkey");
    for sub in ["ci", "local", "http", "id:ci", "zyra"] {
        assert_eq!(seen(&token(sub), &job), 404, "{sub}");
    }
    assert_eq!(seen("devkey", &job), 200);
    let job = start(&token("ci"));
    assert_eq!((seen("devkey", &job), seen(&token("ada"), &job)), (404, 404));
    // Another token of the same subject is the same caller.
    assert_eq!(seen(&provider.saying(json!({ "sub": "ci", "jti": "2" })), &job), 200);
}
