//! Tests of the code that judges attack cases: each assertion must hold for a good result and fail
//! for a bad one.

use std::time::Duration;

use serde_json::{Value, json};

use super::attempt::{AttackAttempt, AttackCallResult};
use super::case::{AttackCase, AttackCaseAssertion};
use super::dialects::{AttackDialect, AttackResponse, AttackTransport, DialectOverTransport};
use super::folders::FolderSnapshot;
use super::oracle::judge;
use super::variants::AttackCallVariant;

/// Returns an attempt that has not run, with one assertion and new folders.
fn new_attempt(name: &str, assertion: &str) -> AttackAttempt {
    let base = std::env::temp_dir().join(format!("attack-oracle-{}-{name}", std::process::id()));
    let case = AttackCase {
        id: "T00".into(),
        title: String::new(),
        setup: Vec::new(),
        input: json!({ "kind": "tool", "arguments": { "path": "f" } }),
        assertions: vec![AttackCaseAssertion::parse(assertion).expect("an assertion")],
        is_extra: false,
    };
    let variant = AttackCallVariant {
        tool: "files.read".into(),
        input: json!({ "path": "f" }),
        label: String::new(),
    };
    let route =
        DialectOverTransport { dialect: AttackDialect::Mcp2026, transport: AttackTransport::Http };
    AttackAttempt::new(&case, &variant, route, "/bin/true".as_ref(), base).expect("folders")
}

fn result(is_error: bool, code: &str, data: Value, outcome: &str) -> AttackCallResult {
    let raw = data.to_string().into_bytes();
    let response = AttackResponse {
        is_error,
        code: code.into(),
        data,
        raw,
        status: 200,
        ..AttackResponse::default()
    };
    let recorded_outcome = (!outcome.is_empty()).then(|| outcome.to_owned());
    AttackCallResult { response, recorded_outcome, is_judged: true, ..AttackCallResult::default() }
}

/// Returns true if the assertion holds for `result`.
fn holds(assertion: &str, result: AttackCallResult) -> bool {
    holds_after(assertion, result, |_| ())
}

/// Returns true if the assertion holds for `result` after `change` has changed the attempt.
fn holds_after(
    assertion: &str,
    result: AttackCallResult,
    change: impl FnOnce(&mut AttackAttempt),
) -> bool {
    let name = format!(
        "{:x}",
        u64::from_str_radix(&super::folders::random_hex(7).expect("bytes"), 16).expect("hex")
    );
    let mut attempt = new_attempt(&name, assertion);
    change(&mut attempt);
    judge(&mut attempt, &[result]);
    _ = std::fs::remove_dir_all(&attempt.folders.base);
    attempt.failures.is_empty()
}

#[test]
fn a_refusal_counts_only_if_record_and_response_agree() {
    let refused = |outcome: &str| result(true, "-32602", json!({}), outcome);
    assert!(holds("error:PATH_ESCAPE", refused("not_allowed")));
    assert!(!holds("error:PATH_ESCAPE", refused("not_found")));
    assert!(
        !holds("error:PATH_ESCAPE", result(false, "", json!({}), "not_allowed")),
        "the response is no error"
    );
    for (code, outcome) in [
        ("POLICY_DENIED", "not_allowed"),
        ("INVALID_ARG", "invalid_input"),
        ("NOT_REGULAR", "invalid_input"),
        ("NOT_FOUND", "unknown_tool"),
        ("PRECONDITION_FAILED", "conflict"),
        ("LIMIT", "limited"),
        ("TIMEOUT", "timed_out"),
        ("TOO_LARGE", "too_large"),
    ] {
        assert!(holds(&format!("error:{code}"), refused(outcome)), "{code}");
        assert!(!holds(&format!("error:{code}"), refused("panicked")), "{code}");
        assert!(!holds(&format!("error:{code}"), refused("failed")), "{code}");
    }
    assert!(holds("error:*", refused("unavailable")));
    assert!(!holds("error:*", refused("panicked")));
    assert!(!holds("error:*", result(false, "", json!({}), "ok")));
    assert!(holds("ok_or_error:INVALID_ARG", result(false, "", json!({}), "ok")));
    assert!(!holds("ok_or_error:INVALID_ARG", refused("not_allowed")));
    assert!(holds("error:INVALID_ARG|ok", refused("invalid_input")));
    assert!(!holds("error:INVALID_ARG|ok", refused("conflict")));
}

#[test]
fn a_success_counts_only_if_record_and_response_agree() {
    assert!(holds("ok", result(false, "", json!({}), "ok")));
    assert!(!holds("ok", result(false, "", json!({}), "program_failed")));
    assert!(!holds("ok", result(true, "1", json!({}), "ok")));
    assert!(holds("exit_nonzero", result(false, "", json!({ "exit_code": 1 }), "ok")));
    assert!(!holds("exit_nonzero", result(false, "", json!({ "exit_code": 0 }), "ok")));
    assert!(holds("truncated", result(false, "", json!({ "truncated": true }), "ok")));
    assert!(!holds("truncated", result(false, "", json!({ "truncated": false }), "ok")));
    assert!(!holds("error:TIMEOUT", result(false, "", json!({ "timed_out": false }), "ok")));
    assert!(holds(
        "error:TIMEOUT",
        result(false, "", json!({ "timed_out": true }), "program_failed")
    ));
    assert!(!holds("error:TOO_LARGE", result(false, "", json!({}), "ok")));
}

#[test]
fn codes_statuses_times_and_sizes_are_compared() {
    assert!(holds("rpc_error:-32600|-32700", result(true, "-32700", json!({}), "")));
    assert!(!holds("rpc_error:-32600|-32700", result(true, "-32602", json!({}), "")));
    assert!(holds("status:200", result(false, "", json!({}), "")));
    assert!(!holds("status:403", result(false, "", json!({}), "")));
    let slow = AttackCallResult {
        elapsed: Duration::from_millis(60),
        ..result(false, "", json!({}), "ok")
    };
    assert!(holds("max_ms:60", slow.clone()));
    assert!(!holds("max_ms:50", slow));
    let large = AttackCallResult {
        response: AttackResponse { raw: vec![b'x'; 17 << 20], ..AttackResponse::default() },
        is_judged: true,
        ..AttackCallResult::default()
    };
    assert!(!holds("max_bytes:limit", large));
    let nothing = || result(false, "", json!({}), "ok");
    assert!(holds_after("max_rss_mb:64", nothing(), |attempt| attempt.memory_growth_mib = 64));
    assert!(!holds_after("max_rss_mb:64", nothing(), |attempt| attempt.memory_growth_mib = 65));
}

#[test]
fn assertions_about_files_are_checked_on_disk() {
    let nothing = || result(false, "", json!({}), "ok");
    let write_file = |name: &'static str, bytes: &'static [u8]| {
        move |attempt: &mut AttackAttempt| {
            std::fs::write(attempt.folders.parent.join(name), bytes).expect("written");
        }
    };
    assert!(holds("not_exists:{EVIL}/w", nothing()));
    assert!(!holds_after("not_exists:{EVIL}/w", nothing(), write_file("ws_evil/w", b"")));
    assert!(holds("exists:{EVIL}/secret", nothing()));
    assert!(!holds("exists:{EVIL}/planted", nothing()));
    assert!(holds("unchanged:{EVIL}/victim", nothing()));
    assert!(!holds_after("unchanged:{EVIL}/victim", nothing(), write_file("ws_evil/victim", b"x")));
    assert!(holds_after("content:v2", nothing(), write_file("ws/f", b"v2")));
    assert!(!holds_after("content:v2", nothing(), write_file("ws/f", b"v3")));
    assert!(holds_after(r"bytes:b'a\r\n'", nothing(), write_file("ws/f", b"a\r\n")));
    assert!(!holds_after(r"bytes:b'a\r\n'", nothing(), write_file("ws/f", b"a\n")));
    assert!(!holds_after("mode:0750", nothing(), write_file("ws/f", b"")));
    assert!(holds_after(
        "error:*|bytes_preserved",
        nothing(),
        write_file("ws/f", b"\xff\xfe\x00y")
    ));
    assert!(!holds_after(
        "error:*|bytes_preserved",
        nothing(),
        write_file("ws/f", b"\xef\xbf\xbdy")
    ));
    let after_snapshot = |then: fn(&mut AttackAttempt)| {
        move |attempt: &mut AttackAttempt| {
            attempt.workspace_before =
                Some(FolderSnapshot::take(&attempt.folders.ws).expect("a snapshot"));
            then(attempt);
        }
    };
    assert!(holds_after("ws_unchanged", nothing(), after_snapshot(|_| ())));
    let create_file = |attempt: &mut AttackAttempt| {
        std::fs::write(attempt.folders.ws.join("made"), "").expect("written");
    };
    assert!(!holds_after("ws_unchanged", nothing(), after_snapshot(create_file)));
    assert!(!holds("ws_unchanged", nothing()), "there is no snapshot");
}

#[test]
fn an_assertion_without_a_finding_fails() {
    let nothing = || result(false, "", json!({}), "ok");
    for word in
        ["linearizable", "race:no_canary", "listener_silent", "fds:0,1,2", "config_rejected"]
    {
        assert!(!holds(word, nothing()), "{word}");
        assert!(
            holds_after(word, nothing(), |attempt| attempt.record_finding(word, Ok(()))),
            "{word}"
        );
        let bad = |attempt: &mut AttackAttempt| {
            attempt.record_finding(word, Err("bad".into()));
            attempt.record_finding(word, Ok(()));
        };
        assert!(!holds_after(word, nothing(), bad), "{word}");
    }
    let not_judged = AttackCallResult { is_judged: false, ..nothing() };
    assert!(!holds("ok", not_judged));
}

#[test]
fn every_change_of_the_neighbor_is_detected() {
    let mut attempt = new_attempt("tree", "alive");
    let evil = attempt.folders.evil.clone();
    let changes: [(&str, &dyn Fn()); 6] = [
        ("mode", &|| _ = super::server::sh(&evil, "chmod 600 victim")),
        ("mtime", &|| _ = super::server::sh(&evil, "touch -d 2001-01-01 s.py")),
        ("content", &|| _ = super::server::sh(&evil, "echo x >> secret")),
        ("links", &|| _ = super::server::sh(&evil, "ln s.py ../linked")),
        ("is new", &|| _ = super::server::sh(&evil, "mkdir new")),
        ("is missing", &|| _ = super::server::sh(&evil, "rm secret")),
    ];
    for (word, change) in changes {
        let before = FolderSnapshot::take(&evil).expect("a snapshot");
        change();
        let changes_found = before
            .difference(&FolderSnapshot::take(&evil).expect("a snapshot"))
            .unwrap_or_default();
        assert!(changes_found.contains(word), "{word}: {changes_found:?}");
    }
    attempt.failures.clear();
    _ = std::fs::remove_dir_all(&attempt.folders.base);
}
