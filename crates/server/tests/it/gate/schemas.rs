//! Tests that results of tools match their own output schemas.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::{TempWorkspace, over_both};

/// Returns typical calls of every tool.
fn representative_calls(
    output_id: &str,
    etag: &str,
    [failed, endless]: &[String; 2],
) -> Vec<(&'static str, Value)> {
    vec![
        ("files_read", json!({ "path": "README.md" })),
        ("files_read", json!({ "path": "README.md", "start_line": -1, "line_count": 1 })),
        ("files_read", json!({ "path": "blob", "encoding": "base64", "max_bytes": 10 })),
        ("files_read", json!({ "path": "README.md", "if_none_match": etag })),
        ("files_read", json!({ "paths": ["README.md", "none", "src/main.rs"] })),
        ("files_write", json!({ "path": "new/a.txt", "content": "a", "mkdirs": true })),
        (
            "files_write",
            json!({ "path": "new/a.txt", "content_base64": "YQ==", "overwrite": true }),
        ),
        ("files_edit", json!({ "path": "new/a.txt", "edits": [{ "old": "a", "new": "b" }] })),
        (
            "files_edit",
            json!({ "path": "new/a.txt", "edits": [{ "old": "b", "new": "c" }], "dry_run": true }),
        ),
        ("files_list", json!({})),
        ("files_list", json!({ "limit": 1 })),
        ("files_tree", json!({})),
        ("files_tree", json!({ "limit": 1, "depth": 1 })),
        ("files_info", json!({ "path": "README.md", "etag": true })),
        ("files_info", json!({ "path": "src" })),
        ("files_info", json!({ "path": "link" })),
        ("files_info", json!({ "path": "dangling" })),
        ("files_search", json!({ "text": "small", "context": 2 })),
        ("files_search", json!({ "glob": "*.md" })),
        ("files_search", json!({ "text": ".", "limit": 1 })),
        ("search_semantic", json!({ "query": "workspace", "include_vectors": true })),
        ("search_text", json!({ "text": "small", "context": 2 })),
        ("search_text", json!({ "text": "(?s)A.*small", "multiline": true })),
        ("search_text", json!({ "text": "nowhere", "counts_only": true })),
        ("search_names", json!({ "name": "workspace" })),
        ("search_names", json!({ "name": "nowhere", "kinds": ["function"] })),
        ("search_semantic", json!({ "query": "nowhere", "tags": ["none"], "rerank": false })),
        ("search_index_status", json!({})),
        ("search_index_status", json!({ "wait_ms": 1000 })),
        (
            "search_upsert",
            json!({ "namespace": "notes",
                "documents": [{ "id": "a.md", "text": "# A\n\nMoss.\n", "metadata": { "b": 1 } }] }),
        ),
        ("search_semantic", json!({ "query": "moss", "namespace": "notes" })),
        ("search_upsert", json!({ "namespace": "notes", "remove": ["a.md"] })),
        ("docs_load_fetch", json!({ "path": "README.md" })),
        (
            "docs_render",
            json!({ "title": "T", "template": "{{ body }}", "body": "b", "frontMatter": { "a": 1 } }),
        ),
        ("docs_search", json!({ "query": "small", "topK": 1 })),
        ("files_move", json!({ "source": "new/a.txt", "destination": "b.txt" })),
        ("files_copy", json!({ "source": "b.txt", "destination": "c.txt" })),
        ("files_copy", json!({ "source": "src", "destination": "src2", "recursive": true })),
        ("files_delete", json!({ "path": "src2", "recursive": true })),
        ("files_delete", json!({ "path": "none", "missing_ok": true })),
        ("files_delete", json!({ "path": "c.txt" })),
        ("files_delete", json!({ "path": "b.txt" })),
        ("files_delete", json!({ "path": "new" })),
        ("files_mkdir", json!({ "path": "src" })),
        ("git_status", json!({ "repo": "repository" })),
        ("git_add", json!({ "repo": "repository", "paths": ["."] })),
        ("git_commit", json!({ "repo": "repository", "message": "m", "allow_empty": true })),
        ("git_log", json!({ "repo": "repository" })),
        ("git_show", json!({ "repo": "repository", "ref": "HEAD" })),
        ("git_show", json!({ "repo": "repository", "file": "Makefile" })),
        ("git_diff", json!({ "repo": "repository", "ref": "HEAD" })),
        ("git_blame", json!({ "repo": "repository", "path": "Makefile" })),
        ("git_branches", json!({ "repo": "repository" })),
        ("git_unstage", json!({ "repo": "repository" })),
        ("git_checkout", json!({ "repo": "repository", "ref": "main" })),
        ("git_restore", json!({ "repo": "repository", "paths": ["."] })),
        ("git_stash", json!({ "repo": "repository", "action": "list" })),
        ("ci_detect", json!({})),
        ("ci_build", json!({ "project": "repository", "kind": "make" })),
        ("ci_test", json!({ "project": "repository", "kind": "make" })),
        ("ci_lint", json!({ "project": "repository", "kind": "make" })),
        ("ci_restore", json!({ "project": "repository", "kind": "npm", "args": ["--offline"] })),
        ("ci_run", json!({ "command": "printf x" })),
        ("ci_diagnostics", json!({})),
        ("exec_run", json!({ "command": "printf", "args": ["x"] })),
        ("exec_run", json!({ "command": "echo no >&2; exit 3", "shell": true })),
        ("exec_run", json!({ "command": "kill -9 $$", "shell": true })),
        ("exec_run", json!({ "command": "sleep", "args": ["9"], "timeout_ms": 50 })),
        ("exec_run", json!({ "command": "printf '\\377\\376'", "shell": true })),
        ("exec_output", json!({ "output_id": output_id })),
        ("exec_output", json!({ "output_id": output_id, "stream": "stderr" })),
        ("jobs_start", json!({ "tool": "files_read", "arguments": { "path": "README.md" } })),
        ("jobs_list", json!({})),
        ("jobs_get", json!({ "job_id": failed, "wait_ms": 10_000 })),
        ("jobs_output", json!({ "job_id": failed })),
        ("jobs_get", json!({ "job_id": endless })),
        ("jobs_cancel", json!({ "job_id": endless })),
        ("jobs_get", json!({ "job_id": endless })),
    ]
}

#[test]
fn every_tools_structured_content_satisfies_its_own_output_schema() {
    let workspace = TempWorkspace::new()
        .file("src/main.rs", "fn main() {}\n")
        .file("blob", [0, 159, 146, 150].repeat(20))
        .file("repository/Makefile", "build:\n\ttrue\ntest:\n\tfalse\nlint:\n\ttrue\n")
        .file("repository/package.json", "{}")
        .link("link", "README.md")
        .link("dangling", "nowhere");
    for args in ["init -q -b main", "config user.name Ada", "config user.email ada@example.org"] {
        let mut git = std::process::Command::new("git");
        git.args(args.split(' ')).current_dir(workspace.path("repository"));
        assert!(git.status().unwrap().success(), "git {args}");
    }
    over_both(&workspace, |client| {
        let tools = client.tools();
        let schema = |name: &str| {
            let tool = tools.iter().find(|tool| tool["name"] == name).unwrap();
            jsonschema::draft202012::new(&tool["outputSchema"]).unwrap()
        };
        let long = json!({ "command": "seq 1 50000", "shell": true });
        let long = client.call("exec_run", long)["result"]["structuredContent"].clone();
        let read = client.call("files_read", json!({ "path": "README.md" }));
        let etag = read["result"]["structuredContent"]["etag"].clone();

        let mut job = |command: &str| {
            let arguments = json!({ "command": command, "shell": true });
            let start = json!({ "tool": "exec_run", "arguments": arguments });
            let answer = client.call("jobs_start", start);
            answer["result"]["structuredContent"]["job_id"].as_str().unwrap().to_owned()
        };
        let jobs = [job("echo no; exit 3"), job("exec sleep 300.125")];
        let mut called = BTreeSet::new();
        for (tool, arguments) in
            representative_calls(long["output_id"].as_str().unwrap(), etag.as_str().unwrap(), &jobs)
        {
            called.insert(tool.to_owned());
            let answer = client.call(tool, arguments.clone());
            let content = &answer["result"]["structuredContent"];
            assert!(content.is_object(), "{tool} {arguments}: {answer}");
            let schema = schema(tool);
            let problems: Vec<_> = schema.iter_errors(content).map(|err| err.to_string()).collect();
            assert!(problems.is_empty(), "{tool} {arguments}: {problems:?} in {content}");
        }
        let all: BTreeSet<_> =
            tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect();
        assert_eq!(called, all, "every tool is called");
    });
}

#[test]
fn every_schema_is_a_schema_of_an_object_without_references_elsewhere() {
    over_both(&TempWorkspace::new(), |client| {
        for tool in client.tools() {
            for which in ["inputSchema", "outputSchema"] {
                let schema = &tool[which];
                assert_eq!(schema["type"], "object", "{tool}");
                assert!(jsonschema::draft202012::meta::is_valid(schema), "{which} of {tool}");
                assert!(!schema.to_string().contains("\"$ref\":\"http"), "{tool}");
            }
            for (name, argument) in
                tool["inputSchema"]["properties"].as_object().into_iter().flatten()
            {
                let about = argument["description"].as_str().unwrap_or_default();
                assert!(!about.is_empty(), "`{name}` of {} has no description", tool["name"]);
            }
        }
    });
}
