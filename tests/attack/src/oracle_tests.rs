//! Each word of an assert holds where it must and breaks where it must not.

use std::time::Duration;

use serde_json::{Value, json};

use super::case::{Assert, Case};
use super::names::Form;
use super::oracle::judge;
use super::play::{Came, Play};
use super::spoken::{Dialect, Over, Said, Way};
use super::stage::Tree;

/// A play of nothing, in a folder of its own.
fn play(name: &str, assert: &str) -> Play {
    let base = std::env::temp_dir().join(format!("attack-oracle-{}-{name}", std::process::id()));
    let case = Case {
        id: "T00".into(),
        title: String::new(),
        setup: Vec::new(),
        input: json!({ "kind": "tool", "arguments": { "path": "f" } }),
        asserts: vec![Assert::read(assert).expect("a word")],
        more: false,
    };
    let form =
        Form { tool: "files.read".into(), input: json!({ "path": "f" }), label: String::new() };
    let way = Way { dialect: Dialect::Mcp2026, over: Over::Http };
    Play::set(&case, &form, way, "/bin/true".as_ref(), base).expect("a stage")
}

fn came(error: bool, code: &str, data: Value, outcome: &str) -> Came {
    let raw = data.to_string().into_bytes();
    let said = Said { error, code: code.into(), data, raw, status: 200, ..Said::default() };
    let outcome = (!outcome.is_empty()).then(|| outcome.to_owned());
    Came { said, outcome, judged: true, ..Came::default() }
}

/// Whether the assert holds of what came.
fn holds(assert: &str, came: Came) -> bool {
    holds_after(assert, came, |_| ())
}

/// The same after something was done to the play.
fn holds_after(assert: &str, came: Came, change: impl FnOnce(&mut Play)) -> bool {
    let name = format!(
        "{:x}",
        u64::from_str_radix(&super::stage::random(7).expect("bytes"), 16).expect("hex")
    );
    let mut play = play(&name, assert);
    change(&mut play);
    judge(&mut play, &[came]);
    _ = std::fs::remove_dir_all(&play.stage.base);
    play.wrong.is_empty()
}

#[test]
fn a_refusal_counts_only_if_record_and_wire_have_its_reason() {
    let refused = |outcome: &str| came(true, "-32602", json!({}), outcome);
    assert!(holds("error:PATH_ESCAPE", refused("not_allowed")));
    assert!(!holds("error:PATH_ESCAPE", refused("not_found")));
    assert!(
        !holds("error:PATH_ESCAPE", came(false, "", json!({}), "not_allowed")),
        "the wire says ok"
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
    assert!(!holds("error:*", came(false, "", json!({}), "ok")));
    assert!(holds("ok_or_error:INVALID_ARG", came(false, "", json!({}), "ok")));
    assert!(!holds("ok_or_error:INVALID_ARG", refused("not_allowed")));
    assert!(holds("error:INVALID_ARG|ok", refused("invalid_input")));
    assert!(!holds("error:INVALID_ARG|ok", refused("conflict")));
}

#[test]
fn a_success_counts_only_if_record_and_wire_agree() {
    assert!(holds("ok", came(false, "", json!({}), "ok")));
    assert!(!holds("ok", came(false, "", json!({}), "program_failed")));
    assert!(!holds("ok", came(true, "1", json!({}), "ok")));
    assert!(holds("exit_nonzero", came(false, "", json!({ "exit_code": 1 }), "ok")));
    assert!(!holds("exit_nonzero", came(false, "", json!({ "exit_code": 0 }), "ok")));
    assert!(holds("truncated", came(false, "", json!({ "truncated": true }), "ok")));
    assert!(!holds("truncated", came(false, "", json!({ "truncated": false }), "ok")));
    assert!(!holds("error:TIMEOUT", came(false, "", json!({ "timed_out": false }), "ok")));
    assert!(holds(
        "error:TIMEOUT",
        came(false, "", json!({ "timed_out": true }), "program_failed")
    ));
    assert!(!holds("error:TOO_LARGE", came(false, "", json!({}), "ok")));
}

#[test]
fn codes_statuses_times_and_sizes_are_compared() {
    assert!(holds("rpc_error:-32600|-32700", came(true, "-32700", json!({}), "")));
    assert!(!holds("rpc_error:-32600|-32700", came(true, "-32602", json!({}), "")));
    assert!(holds("status:200", came(false, "", json!({}), "")));
    assert!(!holds("status:403", came(false, "", json!({}), "")));
    let slow = Came { took: Duration::from_millis(60), ..came(false, "", json!({}), "ok") };
    assert!(holds("max_ms:60", slow.clone()));
    assert!(!holds("max_ms:50", slow));
    let large = Came {
        said: Said { raw: vec![b'x'; 17 << 20], ..Said::default() },
        judged: true,
        ..Came::default()
    };
    assert!(!holds("max_bytes:limit", large));
    let nothing = || came(false, "", json!({}), "ok");
    assert!(holds_after("max_rss_mb:64", nothing(), |play| play.grown_mb = 64));
    assert!(!holds_after("max_rss_mb:64", nothing(), |play| play.grown_mb = 65));
}

#[test]
fn asserts_about_files_are_checked_on_disk() {
    let nothing = || came(false, "", json!({}), "ok");
    let put = |name: &'static str, bytes: &'static [u8]| {
        move |play: &mut Play| {
            std::fs::write(play.stage.parent.join(name), bytes).expect("written");
        }
    };
    assert!(holds("not_exists:{EVIL}/w", nothing()));
    assert!(!holds_after("not_exists:{EVIL}/w", nothing(), put("ws_evil/w", b"")));
    assert!(holds("exists:{EVIL}/secret", nothing()));
    assert!(!holds("exists:{EVIL}/planted", nothing()));
    assert!(holds("unchanged:{EVIL}/victim", nothing()));
    assert!(!holds_after("unchanged:{EVIL}/victim", nothing(), put("ws_evil/victim", b"x")));
    assert!(holds_after("content:v2", nothing(), put("ws/f", b"v2")));
    assert!(!holds_after("content:v2", nothing(), put("ws/f", b"v3")));
    assert!(holds_after(r"bytes:b'a\r\n'", nothing(), put("ws/f", b"a\r\n")));
    assert!(!holds_after(r"bytes:b'a\r\n'", nothing(), put("ws/f", b"a\n")));
    assert!(!holds_after("mode:0750", nothing(), put("ws/f", b"")));
    assert!(holds_after("error:*|bytes_preserved", nothing(), put("ws/f", b"\xff\xfe\x00y")));
    assert!(!holds_after("error:*|bytes_preserved", nothing(), put("ws/f", b"\xef\xbf\xbdy")));
    let remembered = |then: fn(&mut Play)| {
        move |play: &mut Play| {
            play.inside = Some(Tree::of(&play.stage.ws).expect("a tree"));
            then(play);
        }
    };
    assert!(holds_after("ws_unchanged", nothing(), remembered(|_| ())));
    let made = |play: &mut Play| std::fs::write(play.stage.ws.join("made"), "").expect("written");
    assert!(!holds_after("ws_unchanged", nothing(), remembered(made)));
    assert!(!holds("ws_unchanged", nothing()), "nobody looked before");
}

#[test]
fn an_assert_without_a_check_fails() {
    let nothing = || came(false, "", json!({}), "ok");
    for word in
        ["linearizable", "race:no_canary", "listener_silent", "fds:0,1,2", "config_rejected"]
    {
        assert!(!holds(word, nothing()), "{word}");
        assert!(holds_after(word, nothing(), |play| play.show(word, Ok(()))), "{word}");
        let bad = |play: &mut Play| {
            play.show(word, Err("bad".into()));
            play.show(word, Ok(()));
        };
        assert!(!holds_after(word, nothing(), bad), "{word}");
    }
    let unjudged = Came { judged: false, ..nothing() };
    assert!(!holds("ok", unjudged));
}

#[test]
fn every_change_of_a_neighbour_is_detected() {
    let mut play = play("tree", "alive");
    let evil = play.stage.evil.clone();
    let changes: [(&str, &dyn Fn()); 6] = [
        ("mode", &|| _ = super::server::sh(&evil, "chmod 600 victim")),
        ("mtime", &|| _ = super::server::sh(&evil, "touch -d 2001-01-01 s.py")),
        ("content", &|| _ = super::server::sh(&evil, "echo x >> secret")),
        ("links", &|| _ = super::server::sh(&evil, "ln s.py ../linked")),
        ("is new", &|| _ = super::server::sh(&evil, "mkdir new")),
        ("is gone", &|| _ = super::server::sh(&evil, "rm secret")),
    ];
    for (word, change) in changes {
        let before = Tree::of(&evil).expect("a tree");
        change();
        let changes_found = before.changed(&Tree::of(&evil).expect("a tree")).unwrap_or_default();
        assert!(changes_found.contains(word), "{word}: {changes_found:?}");
    }
    play.wrong.clear();
    _ = std::fs::remove_dir_all(&play.stage.base);
}
