//! Tests of failed starts of `serve` and `stdio`, and of warnings at start.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;

use tempfile::TempDir;

use super::{TestCommandLine, run};
use crate::support::{ServerLaunchOptions, TempWorkspace, wait_until};

#[test]
fn a_port_in_use_is_reported_with_advice() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    let done = run(TempWorkspace::new().root(), &["serve", "--listen", &addr]);
    assert_eq!(done.code, 2, "{done:?}");
    assert!(done.err.contains(&addr) && done.err.contains("--listen 127.0.0.1:0"), "{done:?}");
}

#[test]
fn a_missing_folder_is_reported() {
    let workspace = TempWorkspace::new();
    let cases = [
        &["serve", "none"][..],
        &["stdio", "none"],
        &["tools", "--root", "none"],
        &["check-config", "none"],
    ];
    for args in cases {
        let done = run(workspace.root(), args);
        assert_eq!(done.code, 2, "{done:?}");
        assert!(done.err.contains("none"), "{done:?}");
    }
    let done = run(workspace.root(), &["stdio", "README.md"]);
    assert_eq!(done.code, 2, "{done:?}");
    assert!(done.err.contains("README.md"), "{done:?}");
}

#[test]
fn a_public_address_without_credentials_is_refused() {
    for listen in ["0.0.0.0:0", "[::]:0", "192.0.2.1:80"] {
        let done = run(TempWorkspace::new().root(), &["serve", "--listen", listen]);
        assert_eq!(done.code, 2, "{done:?}");
        assert!(done.err.contains("no credential is configured"), "{done:?}");
    }
    let workspace = TempWorkspace::new();
    let line = TestCommandLine::new(workspace.root(), &["serve"]);
    assert_eq!(line.env("TOOLGATE_SERVER_LISTEN", "0.0.0.0:0").run().code, 2);
}

#[test]
fn an_unknown_dialect_is_refused_with_the_known_ones() {
    let done = run(TempWorkspace::new().root(), &["stdio", "--dialect", "klingon"]);
    assert_eq!(done.code, 2, "{done:?}");
    assert!(done.err.contains("`klingon`") && done.err.contains("mcp"), "{done:?}");
}

#[test]
fn without_a_terminal_the_address_is_one_line() {
    let workspace = TempWorkspace::new();
    // Root gets a warning.
    let served = ServerLaunchOptions::over(&workspace).set("log_level", "error").served();
    let folder = workspace.root().canonicalize().unwrap();
    assert_eq!(
        served.log(),
        format!("toolgate: serving {} at {}\n", folder.display(), served.url())
    );
}

#[test]
fn the_example_in_the_help_of_stdio_gets_an_answer() {
    let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    let done = TestCommandLine::new(TempWorkspace::new().root(), &["stdio"])
        .input(&format!("{ping}\n"))
        .run();
    assert_eq!((done.code, done.out.trim()), (0, r#"{"jsonrpc":"2.0","id":1,"result":{}}"#));
}

#[test]
fn serving_the_whole_home_folder_gets_a_warning() {
    let workspace = TempWorkspace::new().file("sub/a.txt", "a");
    let log = |folder: &str| {
        let line = TestCommandLine::new(workspace.root(), &["stdio", folder]);
        line.env("HOME", workspace.root()).run().err
    };
    assert!(log(".").contains("your home folder"), "{}", log("."));
    assert!(!log("sub").contains("your home folder"), "{}", log("sub"));
}

#[test]
fn a_session_key_that_others_can_read_gets_a_warning() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("session.key");
    fs::write(&file, [7; 32]).unwrap();
    for (mode, has_warning) in [(0o600, false), (0o640, true), (0o604, true)] {
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        let launch = ServerLaunchOptions::over(&TempWorkspace::new())
            .set("server_session_key", file.display());
        let served = launch.served();
        served.session("2025-06-18");
        let is_warned = || served.log().contains("the key of server.session_key, can be read");
        match has_warning {
            true => wait_until("the warning is logged", is_warned),
            false => assert!(!is_warned(), "{}", served.log()),
        }
    }
}

#[test]
fn a_rule_that_fails_for_most_tools_gets_a_warning() {
    let rule = "[[policy.rules]]\nname = \"no-infra\"\neffect = \"deny\"\n";
    let when = "when = \"under(input.path, 'infra')\"\n";
    let guarded = "when = \"has(input.path) && under(input.path, 'infra')\"\n";
    for (rest, has_warning) in [
        (when.to_owned(), true),
        (guarded.to_owned(), false),
        (format!("tools = [\"files.write\"]\n{when}"), false),
    ] {
        let workspace = TempWorkspace::new().file("toolgate.toml", format!("{rule}{rest}"));
        for args in [&["check-config"][..], &["stdio"]] {
            let done = run(workspace.root(), args);
            assert_eq!(done.code, 0, "{done:?}");
            let is_warned = done.err.contains("policy.rules, `no-infra`")
                && done.err.contains("without the argument `path`");
            assert_eq!(is_warned, has_warning, "{args:?} {rest}: {done:?}");
        }
    }
}
