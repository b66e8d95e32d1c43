//! Tests of the scopes of tokens, and of how a client learns which scope it needs.

use serde_json::{Value, json};

use super::provider::TestIdentityProvider;
use crate::support::{
    HttpServerProcess, TestHttpRequest, TestHttpResponse, call, initialize, legacy, modern,
};

/// Settings with three token scopes. The first scope allows tools that read files.
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

fn send_with_token(served: &HttpServerProcess, token: &str, message: &Value) -> TestHttpResponse {
    let post = TestHttpRequest::mcp(message);
    served.send(&post.with("Authorization", &format!("Bearer {token}")))
}

fn write(id: u64) -> Value {
    call(id, "files_write", json!({ "path": format!("{id}.txt"), "content": "x" }))
}

/// Returns the `resource_metadata` parameter of the challenge in a response of the server.
fn metadata_parameter(served: &HttpServerProcess) -> String {
    let addr = served.addr;
    format!("resource_metadata=\"http://{addr}/.well-known/oauth-protected-resource/mcp\"")
}

#[test]
fn a_token_without_the_scope_is_refused_with_the_needed_scope() {
    let provider = TestIdentityProvider::start();
    let served = provider.served(SCOPES);
    let reads = provider.request_token("ada", "files:read");
    let read = call(1, "files_exists", json!({ "path": "README.md" }));
    assert_eq!(send_with_token(&served, &reads, &read).status, 200);
    let refused = send_with_token(&served, &reads, &write(2));
    assert_eq!(refused.status, 403, "{refused:?}");
    let why = "'files_write' needs the scope files:write, which this token does not have";
    let why = why.replace('\'', "`");
    let challenge = format!(
        "Bearer error=\"insufficient_scope\", scope=\"files:write\", \
         error_description=\"{why}\", {}",
        metadata_parameter(&served)
    );
    assert_eq!(refused.header("www-authenticate"), Some(challenge.as_str()));
    let error = refused.json();
    assert_eq!((&error["id"], &error["error"]["code"]), (&json!(2), &json!(-32600)), "{error}");
    assert_eq!(error["error"]["data"]["requiredScopes"], json!(["files:write"]));
    assert!(!served.root().join("2.txt").exists());
    let writes = provider.request_token("ada", "files:write");
    assert_eq!(send_with_token(&served, &writes, &write(3)).status, 200);
    assert_eq!(
        send_with_token(&served, &writes, &read).status,
        200,
        "`files:write` covers reading"
    );
    // The list has tools that another scope allows, and no tools that no scope allows.
    let listed = send_with_token(&served, &reads, &modern(4, "tools/list", json!({}))).json();
    let names: Vec<_> = listed["result"]["tools"].as_array().unwrap().iter().collect();
    let has = |name: &str| names.iter().any(|tool| tool["name"] == name);
    assert!(has("files_write") && has("exec_run") && !has("git_log"), "{names:?}");
    let unknown = send_with_token(&served, &writes, &call(5, "git_log", json!({})));
    assert_eq!(unknown.json()["error"]["code"], -32602, "{unknown:?}");
    let file = json!({ "uri": format!("file://{}/README.md", served.root().display()) });
    let run = provider.request_token("ada", "run");
    let refused = send_with_token(&served, &run, &modern(6, "resources/read", file));
    assert_eq!(refused.status, 403, "{refused:?}");
}

#[test]
fn the_scopes_of_the_token_are_checked_for_each_request_of_a_session() {
    let provider = TestIdentityProvider::start();
    let served = provider.served(SCOPES);
    let reads = provider.request_token("ada", "files:read");
    let writes = provider.request_token("ada", "files:read files:write");
    let bearer =
        |post: TestHttpRequest, token: &str| post.with("Authorization", &format!("Bearer {token}"));
    let opened = served.send(&bearer(TestHttpRequest::mcp(&initialize(0, "2025-06-18")), &reads));
    let session = opened.header("mcp-session-id").unwrap();
    let write = |id: u64, token: &str| {
        let arguments = json!({ "path": format!("{id}.txt"), "content": "x" });
        let params = json!({ "name": "files_write", "arguments": arguments });
        let post =
            TestHttpRequest::mcp(&legacy(id, "tools/call", params)).with("mcp-session-id", session);
        served.send(&bearer(post, token)).status
    };
    assert_eq!(write(1, &reads), 403);
    assert_eq!(write(2, &writes), 200);
    assert_eq!(write(3, &reads), 403, "the session does not keep earlier scopes");
    // A token of another caller does not open the session (H12); its owner ends it.
    let bob = provider.request_token("bob", "files:read files:write");
    assert_eq!(write(4, &bob), 404);
    let delete = TestHttpRequest::bare("DELETE", "/mcp").with("mcp-session-id", session);
    assert_eq!(served.send(&bearer(delete.clone(), &bob)).status, 404);
    assert_eq!(served.send(&bearer(delete, &reads)).status, 204);
    assert_eq!(write(5, &writes), 404);
}

#[test]
fn each_dialect_refuses_a_missing_scope_in_its_own_form() {
    let provider = TestIdentityProvider::start();
    let served = provider.served(SCOPES);
    let reads = provider.request_token("ada", "files:read");
    let rpc = |method: &str, params: Value| json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    let write = json!({ "path": "a.txt", "content": "x" });
    let zyra = rpc("tools/call", json!({ "name": "files-write", "arguments": write }));
    let workstation = rpc("tools/call", json!({ "name": "filesystem/write", "arguments": write }));
    for (path, status, pointer, expected, body) in [
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
        let post = TestHttpRequest::bytes(body.to_string().as_bytes()).to(path);
        let refused = served.send(&post.with("Authorization", &format!("Bearer {reads}")));
        let answer = refused.json();
        assert_eq!(refused.status, status, "{path}: {answer}");
        assert_eq!(answer.pointer(pointer), Some(&expected), "{path}: {answer}");
        assert!(answer.to_string().contains("files:write"), "{path}: {answer}");
        assert!(!served.root().join("a.txt").exists());
    }
}

#[test]
fn the_metadata_lists_the_issuers_and_scopes_without_authentication() {
    let provider = TestIdentityProvider::start();
    let served = provider.served(SCOPES);
    let root = "/.well-known/oauth-protected-resource";
    for path in [root.to_owned(), format!("{root}/mcp")] {
        let response = served.get(&path);
        assert_eq!(response.status, 200, "{response:?}");
        let expected = json!({
            "resource": format!("http://{}/mcp", served.addr),
            "authorization_servers": [provider.url()],
            "scopes_supported": ["files:read", "files:write", "run"],
            "bearer_methods_supported": ["header"],
            "resource_name": "toolgate",
        });
        assert_eq!(response.json(), expected);
        assert_eq!(served.send(&TestHttpRequest::bytes(b"{}").to(&path)).status, 405);
    }
    assert_eq!(served.get(&format!("{root}/rpc")).status, 404);
    let bare = served.send(&TestHttpRequest::mcp(&initialize(0, "2025-06-18")));
    assert_eq!(bare.status, 401);
    let challenge = format!("Bearer scope=\"files:read\", {}", metadata_parameter(&served));
    assert_eq!(bare.header("www-authenticate"), Some(challenge.as_str()));
    let zyra = served.get("/v1/mcp");
    assert_eq!((zyra.status, zyra.header("www-authenticate")), (401, Some(challenge.as_str())));
}

#[test]
fn without_an_issuer_there_is_no_metadata() {
    let served = crate::support::ServerLaunchOptions::over(&crate::support::TempWorkspace::new());
    let served = served.env("ZYRA_API_KEY", "devkey").served();
    assert_eq!(served.get("/.well-known/oauth-protected-resource").status, 404);
    let bare = served.send(&TestHttpRequest::mcp(&initialize(0, "2025-06-18")));
    assert_eq!(bare.header("www-authenticate"), Some("Bearer"));
}

#[test]
fn a_token_without_the_scope_does_not_see_the_names_of_files() {
    let provider = TestIdentityProvider::start();
    let served = provider.served(SCOPES);
    let complete = json!({
        "ref": { "type": "ref/resource", "uri": template(&served, &provider) },
        "argument": { "name": "path", "value": "READ" },
    });
    for (scope, may_read) in [("files:read", true), ("run", false)] {
        let token = provider.request_token("ada", scope);
        let listed = send_with_token(&served, &token, &modern(1, "resources/list", json!({})));
        assert_eq!(listed.status, 200, "{listed:?}");
        assert_eq!(listed.text().contains("README.md"), may_read, "{scope}: {listed:?}");
        let completed =
            send_with_token(&served, &token, &modern(2, "completion/complete", complete.clone()));
        assert_eq!(completed.status, 200, "{completed:?}");
        assert_eq!(completed.text().contains("README.md"), may_read, "{scope}: {completed:?}");
        let uri = format!("file://{}/README.md", served.root().display());
        let read = modern(3, "resources/read", json!({ "uri": uri }));
        let status = send_with_token(&served, &token, &read).status;
        assert_eq!(status, if may_read { 200 } else { 403 }, "{scope}");
    }
}

/// Returns the URI template of file resources that the server lists.
fn template(served: &HttpServerProcess, provider: &TestIdentityProvider) -> String {
    let token = provider.request_token("ada", "run");
    let all =
        send_with_token(served, &token, &modern(1, "resources/templates/list", json!({}))).json();
    let all = all["result"]["resourceTemplates"].as_array().unwrap().iter();
    let file = all.filter_map(|one| one["uriTemplate"].as_str());
    file.clone().find(|uri| uri.starts_with("file:")).unwrap().to_owned()
}
