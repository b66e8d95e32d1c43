//! Tools that there must be on no dialect, by name or by what they do; and the programs that would
//! do the same.

use serde_json::{Value, json};

use super::client::Client;
use super::names::ABSENT;
use super::play::{Came, Play, call, fill};
use super::spoken::Dialect;

/// Whether a case is about a tool that must not be.
pub(super) fn is(id: &str) -> bool {
    matches!(id, "R10" | "C03" | "G08" | "G12" | "G16" | "G17" | "X51" | "H24")
}

/// What a tool of that kind would be called.
fn words(id: &str) -> &'static [&'static str] {
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

/// Sees that no tool is called so or says so, that the case's own name is refused, and that a
/// program that does the same does nothing outside.
pub(super) fn look(play: &mut Play, client: &mut Client) -> anyhow::Result<Vec<Came>> {
    let id = play.case.id.clone();
    for tool in client.tools()? {
        let name = tool["name"].as_str().or_else(|| tool["id"].as_str()).unwrap_or_default();
        let plain = name.replace(['.', '/', '-', ':'], "_");
        if let Some(word) = words(&id).iter().find(|word| plain.contains(**word)) {
            play.wrong.push(format!("there is a tool {name}: `{word}`"));
        }
    }
    let input = &play.case.input;
    let (theirs, arguments) = match input["kind"].as_str() {
        Some("rpc") => (&input["params"]["name"], &input["params"]["arguments"]),
        _ => (&input["tool"], &input["arguments"]),
    };
    let theirs = theirs.as_str().unwrap_or_default().to_owned();
    let arguments = fill(arguments, &play.stage);
    let mut judged = Vec::new();
    let names = ABSENT.iter().filter(|name| **name == theirs);
    for name in names {
        for spelled in [(*name).to_owned(), name.replace('/', "."), name.replace('/', "_")] {
            let asked = client.spoken.call(&spelled, &arguments);
            let said = client.ask(&asked)?;
            if !said.error {
                play.wrong.push(format!("{spelled} was done"));
            }
            judged.push(Came { tool: String::new(), said, judged: true, ..Came::default() });
        }
    }
    if judged.is_empty() {
        play.wrong.push(format!("the harness: `{theirs}` is not in the table of absent tools"));
    }
    if play.way.dialect != Dialect::Synesthetic {
        by_program(play, client)?;
    }
    Ok(judged)
}

/// The same by a program, which may do it, but not outside.
fn by_program(play: &mut Play, client: &mut Client) -> anyhow::Result<()> {
    let evil = play.stage.fill("{EVIL}/w");
    let within = play.stage.fill("{WS}/inside-w");
    let argv = |to: &str| -> Option<Vec<String>> {
        let words: Vec<String> = match play.case.id.as_str() {
            "G08" => vec![
                "-c".into(),
                format!("core.sshCommand=touch {to};"),
                "ls-remote".into(),
                "ssh://127.0.0.1/x".into(),
            ],
            "G16" => vec![
                "-c".into(),
                "protocol.ext.allow=always".into(),
                "clone".into(),
                format!("ext::touch {to}"),
                "c".into(),
            ],
            "G17" => vec![
                "clone".into(),
                "-c".into(),
                format!("core.sshCommand=touch {to};"),
                "ssh://-oProxyCommand=touch%20w/x".into(),
                "c".into(),
            ],
            _ => return None,
        };
        Some(words)
    };
    if play.case.id == "G12" {
        return by_stash(play, client);
    }
    for (to, counts) in [(&evil, false), (&within, true)] {
        let Some(args) = argv(to) else { return Ok(()) };
        // git refuses the host that begins with a dash by itself.
        let came = call(client, "exec.run", &json!({ "command": "git", "args": args }))?;
        let made = play.stage.ws.join("inside-w").exists();
        if counts && !made && play.case.id != "G17" {
            let said = super::oracle::brief(&came.said);
            play.wrong.push(format!("in the workspace it does nothing either: {said}"));
        }
    }
    Ok(())
}

/// A merge driver of the repository's own, met by what the tools can do.
fn by_stash(play: &mut Play, client: &mut Client) -> anyhow::Result<()> {
    let ws = play.stage.ws.clone();
    let line = format!(
        "git config merge.x.driver 'touch {}/w; false' && echo '*.txt merge=x' > .gitattributes && \
         git stash -q && echo other > a.txt && git commit -q -a -m other",
        play.stage.evil.display()
    );
    super::server::sh(&ws, &line)?;
    let mut calls: Vec<(&str, Value)> = Vec::new();
    calls.push(("git.stash", json!({ "action": "pop" })));
    calls.push(("git.checkout", json!({ "ref": "other" })));
    for (tool, input) in calls {
        if client.can_say(tool, &input) {
            call(client, tool, &input)?;
        }
    }
    Ok(())
}
