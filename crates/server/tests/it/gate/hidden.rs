//! What toolgate itself is held by, where it lies in the folder that is served: no tool reads it.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::{Launch, Workspace, call, modern, refusal, structured};

/// A workspace in which the state folder lies, and a file of keys.
fn launch(workspace: &Workspace) -> Launch {
    workspace.put("keys.toml", "a-secret-of-the-keys\n");
    let launch = Launch::over(workspace).env("XDG_STATE_HOME", workspace.path("state"));
    launch.set("audit_to", "state").set("server_keys_file", workspace.path("keys.toml").display())
}

#[test]
fn no_tool_reads_the_key_of_the_audit_log_or_the_file_of_keys_and_none_moves_them() {
    let workspace = Workspace::new().file("plain.txt", "plain text\n");
    let workspace = workspace.link("link", Path::new("state/toolgate/audit.key"));
    let mut stdio = launch(&workspace).stdio();
    let plain = stdio.ask(&call(0, "files_read", json!({ "path": "plain.txt" })));
    assert_eq!(structured(&plain)["content"], "plain text\n");
    let key = fs::read_to_string(workspace.path("state/toolgate/audit.key")).unwrap();
    let secrets = [key.trim(), "a-secret-of-the-keys"];

    let mut id = 0;
    let mut told = |message: &str, params: Value| {
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
            // A link is moved, and what it leads to is not.
            if (tool, path) == ("files_move", "link") {
                continue;
            }
            let answer = told("tools/call", json!({ "name": tool, "arguments": arguments }));
            refusal(&answer);
        }
        let uri = format!("file://{}/{path}", root.display());
        refusal(&told("resources/read", json!({ "uri": uri })));
    }
    let tree = json!({ "source": "state", "destination": "copy", "recursive": true });
    refusal(&told("tools/call", json!({ "name": "files_copy", "arguments": tree })));
    for text in secrets {
        for (tool, arguments) in [
            ("files_search", json!({ "text": &text[..10], "path": "." })),
            ("search_text", json!({ "query": &text[..10] })),
        ] {
            told("tools/call", json!({ "name": tool, "arguments": arguments }));
        }
    }
    assert!(!workspace.path("copy").exists());
    assert_eq!(workspace.read("keys.toml"), "a-secret-of-the-keys\n");
    let again = fs::read_to_string(workspace.path("state/toolgate/audit.key")).unwrap();
    assert_eq!(again, key);
}
