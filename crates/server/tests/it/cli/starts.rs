//! What keeps `serve` and `stdio` from starting, and what they say.

use std::net::TcpListener;

use super::{Line, run};
use crate::support::{Launch, Workspace};

#[test]
fn a_port_that_is_taken_is_told_with_the_way_out() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap().to_string();
    let done = run(Workspace::new().root(), &["serve", "--listen", &addr]);
    assert_eq!(done.code, 2, "{done:?}");
    assert!(done.err.contains(&addr) && done.err.contains("--listen 127.0.0.1:0"), "{done:?}");
}

#[test]
fn a_folder_that_is_not_there_is_told() {
    let workspace = Workspace::new();
    let cases = [
        &["serve", "none"][..],
        &["stdio", "none"],
        &["tools", "--root", "none"],
        &["check-config", "none"],
    ];
    for words in cases {
        let done = run(workspace.root(), words);
        assert_eq!(done.code, 2, "{done:?}");
        assert!(done.err.contains("none"), "{done:?}");
    }
    let done = run(workspace.root(), &["stdio", "README.md"]);
    assert_eq!(done.code, 2, "{done:?}");
    assert!(done.err.contains("README.md"), "{done:?}");
}

#[test]
fn an_address_others_reach_is_refused() {
    for listen in ["0.0.0.0:0", "[::]:0", "192.0.2.1:80"] {
        let done = run(Workspace::new().root(), &["serve", "--listen", listen]);
        assert_eq!(done.code, 2, "{done:?}");
        assert!(done.err.contains("no credential is configured"), "{done:?}");
    }
    let workspace = Workspace::new();
    let line = Line::new(workspace.root(), &["serve"]);
    assert_eq!(line.env("TOOLGATE_SERVER_LISTEN", "0.0.0.0:0").run().code, 2);
}

#[test]
fn an_unknown_dialect_is_told_with_those_there_are() {
    let done = run(Workspace::new().root(), &["stdio", "--dialect", "klingon"]);
    assert_eq!(done.code, 2, "{done:?}");
    assert!(done.err.contains("`klingon`") && done.err.contains("mcp"), "{done:?}");
}

#[test]
fn a_server_without_a_terminal_says_in_one_line_where_it_is() {
    let workspace = Workspace::new();
    let served = Launch::over(&workspace).served();
    let folder = workspace.root().canonicalize().unwrap();
    assert_eq!(
        served.log(),
        format!("toolgate: serving {} at {}\n", folder.display(), served.url())
    );
}

#[test]
fn the_help_example_of_stdio_is_answered() {
    let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    let done = Line::new(Workspace::new().root(), &["stdio"]).input(&format!("{ping}\n")).run();
    assert_eq!((done.code, done.out.trim()), (0, r#"{"jsonrpc":"2.0","id":1,"result":{}}"#));
}

#[test]
fn who_serves_their_whole_home_folder_is_told_so() {
    let workspace = Workspace::new().file("sub/a.txt", "a");
    let said = |folder: &str| {
        let line = Line::new(workspace.root(), &["stdio", folder]);
        line.env("HOME", workspace.root()).run().err
    };
    assert!(said(".").contains("whole home folder"), "{}", said("."));
    assert!(!said("sub").contains("whole home folder"), "{}", said("sub"));
}
