//! Tests that no tool can read toolgate's own secrets inside the workspace.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::{ServerLaunchOptions, TempWorkspace, call, modern, refusal, structured};

/// Returns start options of a server whose state folder and key file are in its workspace.
fn launch(workspace: &TempWorkspace) -> ServerLaunchOptions {
    workspace.put("keys.toml", "a-secret-of-the-keys\n");
    let launch =
        ServerLaunchOptions::over(workspace).env("XDG_STATE_HOME", workspace.path("state"));
    launch.set("audit_to", "state").set("server_keys_file", workspace.path("keys.toml").display())
}

#[test]
fn no_tool_reads_or_moves_the_audit_key_or_the_key_file() {
    let workspace = TempWorkspace::new().file("plain.txt", "plain text\n");
    let workspace = workspace.link("link", Path::new("state/toolgate/audit.key"));
    let mut stdio = launch(&workspace).stdio();
    let plain = stdio.ask(&call(0, "files_read", json!({ "path": "plain.txt" })));
    assert_eq!(structured(&plain)["content"], "plain text\n");
    let key = fs::read_to_string(workspace.path("state/toolgate/audit.key")).unwrap();
    let secrets = [key.trim(), "a-secret-of-the-keys"];

    let mut id = 0;
    let mut ask_safely = |message: &str, params: Value| {
        id += 1;
        let answer = stdio.ask(&modern(id, message, params));
        let text = answer.to_string();
        for secret in secrets {
            assert!(!text.contains(secret), "{message}: {text}");
        }
        answer
    };
    let root = workspace.root().canonicalize().unwrap();
    for path in ["state/toolgate/audit.key", "link", "keys.toml", "./state/../keys.toml"] {
        for (tool, arguments) in [
            ("files_read", json!({ "path": path })),
            ("files_copy", json!({ "source": path, "destination": "copy" })),
            ("files_edit", json!({ "path": path, "edits": [{ "old": "a", "new": "b" }] })),
            ("files_write", json!({ "path": path, "content": "" })),
            ("files_move", json!({ "source": path, "destination": "moved" })),
            ("docs_load_fetch", json!({ "path": path })),
        ] {
            // Moving a link does not move its target.
            if (tool, path) == ("files_move", "link") {
                continue;
            }
            let answer = ask_safely("tools/call", json!({ "name": tool, "arguments": arguments }));
            refusal(&answer);
        }
        let uri = format!("file://{}/{path}", root.display());
        refusal(&ask_safely("resources/read", json!({ "uri": uri })));
    }
    let tree = json!({ "source": "state", "destination": "copy", "recursive": true });
    refusal(&ask_safely("tools/call", json!({ "name": "files_copy", "arguments": tree })));
    for text in secrets {
        for (tool, arguments) in [
            ("files_search", json!({ "text": &text[..10], "path": "." })),
            ("search_text", json!({ "query": &text[..10] })),
        ] {
            ask_safely("tools/call", json!({ "name": tool, "arguments": arguments }));
        }
    }
    assert!(!workspace.path("copy").exists());
    assert_eq!(workspace.read("keys.toml"), "a-secret-of-the-keys\n");
    let again = fs::read_to_string(workspace.path("state/toolgate/audit.key")).unwrap();
    assert_eq!(again, key);
}
