//! What a token was given for, and how a client learns what another must be given for.

use serde_json::{Value, json};

use super::provider::Provider;
use crate::support::{Post, Response, Served, call, initialize, legacy, modern};

/// Three scopes; the first is enough for what reads files.
const SCOPES: &str = "\
[[scopes]]
name = \"files:read\"
tools = [\"files.*\"]
effects = \"reads\"

[[scopes]]
name = \"files:write\"
tools = [\"files.*\"]

[[scopes]]
name = \"run\"
tools = [\"exec.*\"]
";

fn sent(served: &Served, token: &str, message: &Value) -> Response {
    let post = Post::mcp(message);
    served.send(&post.with("Authorization", &format!("Bearer {token}")))
}

fn write(id: u64) -> Value {
    call(id, "files_write", json!({ "path": format!("{id}.txt"), "content": "x" }))
}

fn place(served: &Served) -> String {
    let addr = served.addr;
    format!("resource_metadata=\"http://{addr}/.well-known/oauth-protected-resource/mcp\"")
}

#[test]
fn who_has_a_token_for_less_is_told_what_another_must_be_for() {
    let provider = Provider::start();
    let served = provider.served(SCOPES);
    let reads = provider.granted("ada", "files:read");
    let read = call(1, "files_exists", json!({ "path": "README.md" }));
    assert_eq!(sent(&served, &reads, &read).status, 200);
    let refused = sent(&served, &reads, &write(2));
    assert_eq!(refused.status, 403, "{refused:?}");
    let why = "'files.write' needs the scope files:write, which this token does not have";
    let why = why.replace('\'', "`");
    let challenge = format!(
        "Bearer error=\"insufficient_scope\", scope=\"files:write\", \
         error_description=\"{why}\", {}",
        place(&served)
    );
    assert_eq!(refused.header("www-authenticate"), Some(challenge.as_str()));
    let told = refused.json();
    assert_eq!((&told["id"], &told["error"]["code"]), (&json!(2), &json!(-32600)), "{told}");
    assert_eq!(told["error"]["data"]["requiredScopes"], json!(["files:write"]));
    assert!(!served.root().join("2.txt").exists());
    let writes = provider.granted("ada", "files:write");
    assert_eq!(sent(&served, &writes, &write(3)).status, 200);
    assert_eq!(sent(&served, &writes, &read).status, 200, "who may write may read");
    // What another token would be enough for is seen; what none would be is not.
    let listed = sent(&served, &reads, &modern(4, "tools/list", json!({}))).json();
    let names: Vec<_> = listed["result"]["tools"].as_array().unwrap().iter().collect();
    let has = |name: &str| names.iter().any(|tool| tool["name"] == name);
    assert!(has("files_write") && has("exec_run") && !has("git_log"), "{names:?}");
    let unknown = sent(&served, &writes, &call(5, "git_log", json!({})));
    assert_eq!(unknown.json()["error"]["code"], -32602, "{unknown:?}");
    let file = json!({ "uri": format!("file://{}/README.md", served.root().display()) });
    let run = provider.granted("ada", "run");
    let refused = sent(&served, &run, &modern(6, "resources/read", file));
    assert_eq!(refused.status, 403, "{refused:?}");
}

#[test]
fn what_a_token_is_for_counts_with_each_request_of_a_session() {
    let provider = Provider::start();
    let served = provider.served(SCOPES);
    let reads = provider.granted("ada", "files:read");
    let writes = provider.granted("ada", "files:read files:write");
    let bearer = |post: Post, token: &str| post.with("Authorization", &format!("Bearer {token}"));
    let opened = served.send(&bearer(Post::mcp(&initialize(0, "2025-06-18")), &reads));
    let session = opened.header("mcp-session-id").unwrap();
    let write = |id: u64, token: &str| {
        let arguments = json!({ "path": format!("{id}.txt"), "content": "x" });
        let params = json!({ "name": "files_write", "arguments": arguments });
        let post = Post::mcp(&legacy(id, "tools/call", params)).with("mcp-session-id", session);
        served.send(&bearer(post, token)).status
    };
    assert_eq!(write(1, &reads), 403);
    assert_eq!(write(2, &writes), 200);
    assert_eq!(write(3, &reads), 403, "the session keeps nothing of the token before");
    // Another's token does not open it (H12), and who has it ends it.
    let bob = provider.granted("bob", "files:read files:write");
    assert_eq!(write(4, &bob), 404);
    let delete = Post::bare("DELETE", "/mcp").with("mcp-session-id", session);
    assert_eq!(served.send(&bearer(delete.clone(), &bob)).status, 404);
    assert_eq!(served.send(&bearer(delete, &reads)).status, 204);
    assert_eq!(write(5, &writes), 404);
}

#[test]
fn each_dialect_says_in_its_own_words_that_a_token_is_for_less() {
    let provider = Provider::start();
    let served = provider.served(SCOPES);
    let reads = provider.granted("ada", "files:read");
    let rpc = |method: &str, params: Value| json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    let write = json!({ "path": "a.txt", "content": "x" });
    let zyra = rpc("tools/call", json!({ "name": "files-write", "arguments": write }));
    let workstation = rpc("tools/call", json!({ "name": "filesystem/write", "arguments": write }));
    for (path, status, pointer, said, body) in [
        ("/v1/mcp", 200, "/error/code", json!(-32000), zyra),
        ("/rpc", 200, "/error/code", json!(1002), rpc("files/write", write.clone())),
        ("/workstation", 200, "/error/code", json!(-32603), workstation),
        (
            "/mcp/tool/mcp.tool:files.write",
            401,
            "/error/code",
            json!("UNAUTHORIZED"),
            json!({ "input": write }),
        ),
    ] {
        let post = Post::bytes(body.to_string().as_bytes()).to(path);
        let refused = served.send(&post.with("Authorization", &format!("Bearer {reads}")));
        let told = refused.json();
        assert_eq!(refused.status, status, "{path}: {told}");
        assert_eq!(told.pointer(pointer), Some(&said), "{path}: {told}");
        assert!(told.to_string().contains("files:write"), "{path}: {told}");
        assert!(!served.root().join("a.txt").exists());
    }
}

#[test]
fn it_is_said_to_everybody_whose_tokens_are_taken_and_for_what_to_ask() {
    let provider = Provider::start();
    let served = provider.served(SCOPES);
    let root = "/.well-known/oauth-protected-resource";
    for path in [root.to_owned(), format!("{root}/mcp")] {
        let said = served.get(&path);
        assert_eq!(said.status, 200, "{said:?}");
        let wanted = json!({
            "resource": format!("http://{}/mcp", served.addr),
            "authorization_servers": [provider.url()],
            "scopes_supported": ["files:read", "files:write", "run"],
            "bearer_methods_supported": ["header"],
            "resource_name": "toolgate",
        });
        assert_eq!(said.json(), wanted);
        assert_eq!(served.send(&Post::bytes(b"{}").to(&path)).status, 405);
    }
    assert_eq!(served.get(&format!("{root}/rpc")).status, 404);
    let bare = served.send(&Post::mcp(&initialize(0, "2025-06-18")));
    assert_eq!(bare.status, 401);
    let challenge = format!("Bearer scope=\"files:read\", {}", place(&served));
    assert_eq!(bare.header("www-authenticate"), Some(challenge.as_str()));
    let zyra = served.get("/v1/mcp");
    assert_eq!((zyra.status, zyra.header("www-authenticate")), (401, Some(challenge.as_str())));
}

#[test]
fn without_an_issuer_nothing_is_said_of_tokens() {
    let served = crate::support::Launch::over(&crate::support::Workspace::new());
    let served = served.env("ZYRA_API_KEY", "devkey").served();
    assert_eq!(served.get("/.well-known/oauth-protected-resource").status, 404);
    let bare = served.send(&Post::mcp(&initialize(0, "2025-06-18")));
    assert_eq!(bare.header("www-authenticate"), Some("Bearer"));
}

#[test]
fn who_may_not_read_files_is_not_told_which_there_are() {
    let provider = Provider::start();
    let served = provider.served(SCOPES);
    let complete = json!({
        "ref": { "type": "ref/resource", "uri": template(&served, &provider) },
        "argument": { "name": "path", "value": "READ" },
    });
    for (scope, told) in [("files:read", true), ("run", false)] {
        let token = provider.granted("ada", scope);
        let listed = sent(&served, &token, &modern(1, "resources/list", json!({})));
        assert_eq!(listed.status, 200, "{listed:?}");
        assert_eq!(listed.text().contains("README.md"), told, "{scope}: {listed:?}");
        let typed = sent(&served, &token, &modern(2, "completion/complete", complete.clone()));
        assert_eq!(typed.status, 200, "{typed:?}");
        assert_eq!(typed.text().contains("README.md"), told, "{scope}: {typed:?}");
        let uri = format!("file://{}/README.md", served.root().display());
        let read = modern(3, "resources/read", json!({ "uri": uri }));
        let status = sent(&served, &token, &read).status;
        assert_eq!(status, if told { 200 } else { 403 }, "{scope}");
    }
}

/// How a file is written as a resource.
fn template(served: &Served, provider: &Provider) -> String {
    let token = provider.granted("ada", "run");
    let all = sent(served, &token, &modern(1, "resources/templates/list", json!({}))).json();
    let all = all["result"]["resourceTemplates"].as_array().unwrap().iter();
    let file = all.filter_map(|one| one["uriTemplate"].as_str());
    file.clone().find(|uri| uri.starts_with("file:")).unwrap().to_owned()
}
