//! Tests of `toolgate call --url` against servers and against impostors.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;

use super::{TestCommandLine, run};
use crate::support::{ServerLaunchOptions, TempWorkspace};

/// Starts a server that is not an MCP server and answers every request with `response`. Returns its
/// URL.
fn impostor(response: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(response.as_bytes());
    });
    url
}

fn call_server(url: &str) -> (i32, String, String) {
    let workspace = TempWorkspace::new();
    let args = ["call", "files_read", r#"{"path":"README.md"}"#, "--url", url];
    let done = run(workspace.root(), &args);
    (done.code, done.out, done.err)
}

#[test]
fn an_answer_that_is_not_mcp_is_an_error() {
    let json = "HTTP/1.1 404 Not Found\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n{\"detail\":\"Not Found\"}";
    let progress = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{}}\n\n";
    let asking = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"resultType\":\"input_required\"}}";
    let page =
        "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nconnection: close\r\n\r\n<html>hello</html>";
    for response in [json, progress, asking, page, "HTTP/1.1 200 OK\r\n", ""] {
        let (code, out, err) = call_server(&impostor(response));
        assert_eq!((code, out.as_str()), (2, ""), "{response:?}: {err}");
        assert!(err.starts_with("toolgate: "), "{err}");
    }
}

#[test]
fn an_html_page_is_not_repeated() {
    let page =
        "HTTP/1.1 404 Not Found\r\ncontent-type: text/html\r\nconnection: close\r\n\r\n<p>hello";
    let url = impostor(page);
    let (code, _, err) = call_server(&url);
    assert!(code == 2 && err.contains("HTML page") && !err.contains("hello"), "{err}");
    let url = impostor(page);
    let top = url.trim_end_matches("mcp");
    let (code, _, err) = call_server(top);
    assert!(code == 2 && err.contains(&format!("MCP is at {url}")), "{err}");
    assert!(!err.contains("hello"), "{err}");
}

#[test]
fn a_password_in_the_url_is_refused_and_not_repeated() {
    let (code, out, err) = call_server("http://ada:secret@127.0.0.1:1/mcp");
    assert_eq!((code, out.as_str()), (2, ""));
    assert!(err.contains("password") && !err.contains("secret"), "{err}");
}

#[test]
fn a_refused_token_is_called_a_credential_not_a_key() {
    let url =
        impostor("HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    let server = url.trim_start_matches("http://").trim_end_matches("/mcp");
    let workspace = TempWorkspace::new();
    let args = ["call", "files_read", r#"{"path":"README.md"}"#, "--url", &url];
    let done = TestCommandLine::new(workspace.root(), &args).env("TOOLGATE_KEY", "eyJ.eyJ.x").run();
    let expected =
        format!("toolgate: {server} refused the credential in TOOLGATE_KEY: it is unknown");
    assert!(done.code == 2 && done.err.starts_with(&expected), "{done:?}");
}

#[test]
fn read_only_is_refused_for_a_call_at_a_server() {
    let workspace = TempWorkspace::new();
    let served = ServerLaunchOptions::over(&workspace).served();
    let arguments = r#"{"path":"new.txt","content":"x"}"#;
    let args = ["call", "files_write", arguments, "--read-only", "--url", &served.url()];
    let done = run(workspace.root(), &args);
    assert_eq!(done.code, 2, "{done:?}");
    assert!(!workspace.path("new.txt").exists());
}
