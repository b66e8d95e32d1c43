//! Attack cases about tools that must not exist in any dialect under any name. A program may do
//! what such a tool would do, but only inside the workspace.

use serde_json::{Value, json};

use super::attempt::{AttackAttempt, AttackCallResult, CallResults, call, fill};
use super::client::AttackClient;
use super::dialects::AttackDialect;
use super::oracle::summary;
use super::server::sh;
use super::variants::ABSENT_TOOLS;

/// Returns true if the attack case `id` checks that a tool does not exist.
pub(super) fn is_absent_tool_case(id: &str) -> bool {
    matches!(id, "R10" | "C03" | "G08" | "G12" | "G16" | "G17" | "X51" | "H24")
}

/// Returns words that the tool of the attack case `id` would have in its name, if the tool existed.
fn forbidden_words(id: &str) -> &'static [&'static str] {
    match id {
        "R10" => &["unzip", "extract", "archive", "unpack", "untar", "decompress"],
        "C03" => &["report", "junit", "sarif", "xml"],
        "G08" => &["git_fetch", "git_pull", "git_push", "git_remote", "git_submodule"],
        "G12" => &["git_merge", "git_rebase", "git_cherry", "git_pull", "git_apply"],
        "G16" | "G17" => &["clone", "git_remote"],
        "X51" => &["config", "setting", "policy", "allow", "admin", "sandbox", "set_"],
        _ => &["add_tool", "register", "install", "admin", "mcp_server", "upstream"],
    }
}

/// Checks that no tool has a forbidden name, that calls of the case's tool are refused, and that a
/// program that does the tool's work changes nothing outside the workspace.
pub(super) fn check_absence(attempt: &mut AttackAttempt, client: &mut AttackClient) -> CallResults {
    let words = forbidden_words(&attempt.case.id);
    for tool in client.tools()? {
        let name = tool["name"].as_str().or_else(|| tool["id"].as_str()).unwrap_or_default();
        let normalized = name.replace(['.', '/', '-', ':'], "_");
        if let Some(word) = words.iter().find(|word| normalized.contains(**word)) {
            attempt.failures.push(format!("a tool is named {name}, with the word `{word}`"));
        }
    }
    let input = &attempt.case.input;
    let (tool, arguments) = match input["kind"].as_str() {
        Some("rpc") => (&input["params"]["name"], &input["params"]["arguments"]),
        _ => (&input["tool"], &input["arguments"]),
    };
    let tool = tool.as_str().unwrap_or_default().to_owned();
    let arguments = fill(arguments, &attempt.folders);
    let mut results = Vec::new();
    for name in ABSENT_TOOLS.iter().filter(|name| **name == tool) {
        for spelling in [(*name).to_owned(), name.replace('/', "."), name.replace('/', "_")] {
            let request = client.codec.call_request(&spelling, &arguments);
            let response = client.send_and_wait(&request)?;
            if !response.is_error {
                attempt.failures.push(format!("{spelling} succeeded"));
            }
            results.push(AttackCallResult {
                response,
                is_judged: true,
                ..AttackCallResult::default()
            });
        }
    }
    if results.is_empty() {
        attempt.failures.push(format!("the harness: `{tool}` is not in the list of absent tools"));
    }
    if attempt.route.dialect != AttackDialect::Synesthetic {
        try_with_program(attempt, client)?;
    }
    Ok(results)
}

/// Runs a program that does what the absent tool would do, once outside and once inside the
/// workspace.
fn try_with_program(attempt: &mut AttackAttempt, client: &mut AttackClient) -> anyhow::Result<()> {
    let outside = attempt.folders.fill("{EVIL}/w");
    let inside = attempt.folders.fill("{WS}/inside-w");
    let git_arguments = |path: &str| -> Option<Vec<String>> {
        let words: Vec<String> = match attempt.case.id.as_str() {
            "G08" => vec![
                "-c".into(),
                format!("core.sshCommand=touch {path};"),
                "ls-remote".into(),
                "ssh://127.0.0.1/x".into(),
            ],
            "G16" => vec![
                "-c".into(),
                "protocol.ext.allow=always".into(),
                "clone".into(),
                format!("ext::touch {path}"),
                "c".into(),
            ],
            "G17" => vec![
                "clone".into(),
                "-c".into(),
                format!("core.sshCommand=touch {path};"),
                "ssh://-oProxyCommand=touch%20w/x".into(),
                "c".into(),
            ],
            _ => return None,
        };
        Some(words)
    };
    if attempt.case.id == "G12" {
        return trigger_merge_driver(attempt, client);
    }
    for (path, must_succeed) in [(&outside, false), (&inside, true)] {
        let Some(arguments) = git_arguments(path) else { return Ok(()) };
        let result = call(client, "exec.run", &json!({ "command": "git", "args": arguments }))?;
        let has_succeeded = attempt.folders.ws.join("inside-w").exists();
        // git itself refuses a host that starts with a dash.
        if must_succeed && !has_succeeded && attempt.case.id != "G17" {
            let summary = summary(&result.response);
            attempt.failures.push(format!("it does nothing in the workspace either: {summary}"));
        }
    }
    Ok(())
}

/// Configures a merge driver in the git repository, and calls the tools that could run the driver.
fn trigger_merge_driver(
    attempt: &mut AttackAttempt,
    client: &mut AttackClient,
) -> anyhow::Result<()> {
    let line = format!(
        "git config merge.x.driver 'touch {}/w; false' && echo '*.txt merge=x' > .gitattributes && \
         git stash -q && echo other > a.txt && git commit -q -a -m other",
        attempt.folders.evil.display()
    );
    sh(&attempt.folders.ws, &line)?;
    let calls: [(&str, Value); 2] =
        [("git.stash", json!({ "action": "pop" })), ("git.checkout", json!({ "ref": "other" }))];
    for (tool, input) in calls {
        if client.can_send(tool, &input) {
            call(client, tool, &input)?;
        }
    }
    Ok(())
}
