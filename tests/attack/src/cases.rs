//! How each case is performed where that is not one call.

use std::time::Duration;

use serde_json::{Value, json};

use super::case::Case;
use super::client::Client;
use super::play::{Came, Play, call, fill};
use super::server::Server;
use super::spoken::{Dialect, Over, Way};
use super::{absent, etags, lines, more, races, running, searching, web};

/// Whether a case that is no call of a tool is played by this way.
pub(super) fn is_for(case: &Case, way: Way) -> bool {
    let mcp = matches!(way.dialect, Dialect::Mcp2026 | Dialect::Mcp2025);
    match case.id.as_str() {
        // A tool that must be nowhere.
        id if absent::is(id) => true,
        "F29" | "F30" | "F31" | "I15" => mcp,
        "F48" => way.dialect == Dialect::Mcp2025 && way.is(Over::Stdio),
        "X46" => mcp,
        "X47" => way.dialect != Dialect::Synesthetic,
        "J01" => way.is(Over::Http) && way.dialect != Dialect::Synesthetic,
        "J06" => way.dialect != Dialect::Synesthetic && way.is(Over::Stdio),
        "H01" | "H04" | "H15" | "H17" => way.is(Over::Http),
        "H09" | "H10" | "H12" => way.dialect == Dialect::Mcp2025 && way.is(Over::Http),
        "H22" => mcp && way.is(Over::Http),
        "H07" | "H16" | "H18" | "H20" | "H21" => {
            way.dialect == Dialect::Mcp2026 && way.is(Over::Http)
        }
        "I04" | "I05" => true,
        "I10" => way.is(Over::Stdio) && way.dialect != Dialect::Synesthetic,
        "I13" => way.is(Over::Stdio),
        "T02" => way.is(Over::Stdio) && way.dialect != Dialect::Synesthetic,
        _ => case.more && more::is_for(case, way),
    }
}

/// Whether a case of a tool is of no use by this way though it has the tool.
pub(super) fn is_not_for(case: &Case, way: Way) -> bool {
    match case.id.as_str() {
        // They are about the server and its memory, whatever the wire: one is as good as all, and
        // all would take an hour.
        "R03" | "R12" | "G32" | "V05" | "J03" => {
            !matches!(way.dialect, Dialect::Mcp2026 | Dialect::Mira | Dialect::Envelope)
                || way.is(Over::Socket)
        }
        "M16" => !way.is(Over::Stdio),
        "M14" | "M15" => {
            !matches!(way.dialect, Dialect::Mcp2026 | Dialect::Mira) || way.is(Over::Socket)
        }
        // A count that is read back needs its etag, which its reads do not give.
        "E02" => way.dialect == Dialect::Workstation,
        _ => false,
    }
}

/// Whether it takes its time.
pub(super) fn is_long(id: &str) -> bool {
    matches!(
        id,
        "R03"
            | "R12"
            | "G32"
            | "V05"
            | "J03"
            | "F23"
            | "F24"
            | "H16"
            | "R13"
            | "C02"
            | "X08"
            | "X55"
            | "E02"
    )
}

/// Plays a case that starts its servers itself.
pub(super) fn without_server(play: &mut Play) -> Option<anyhow::Result<Vec<Came>>> {
    let id = play.case.id.clone();
    Some(match id.as_str() {
        "E13" => etags::killed_while_it_writes(play),
        "J06" => running::restarted(play),
        "X52" => running::without_sandbox(play),
        "X08" => races::swapped_program(play),
        "T02" => more::shadowed(play),
        "J01" => web::foreign_job(play),
        "H07" => web::bound_elsewhere(play),
        "H12" => web::ended_sessions(play),
        "H20" | "H21" => web::tokens(play),
        "I13" => lines::unread(play),
        "V04" => searching::without_embedder(play),
        "V08" => searching::tampered(play),
        id if play.case.more => return more::without_server(play, id),
        _ => return None,
    })
}

/// Performs the case against a server that runs.
pub(super) fn perform(
    play: &mut Play,
    server: &mut Server,
    client: &mut Client,
) -> anyhow::Result<Vec<Came>> {
    let id = play.case.id.clone();
    match id.as_str() {
        id if absent::is(id) => absent::look(play, client),
        "F23" => races::read(play, client),
        "F24" => races::written(play, client),
        "F29" | "F30" | "F31" | "I15" => asked(play, client),
        "F48" => lines::roots(play, client),
        "E01" => etags::stale(play, client),
        "E02" => etags::counted(play, server, client),
        "E04" => etags::same_size_and_time(play, client),
        "R03" => etags::in_pages(play, client),
        "R12" => races::flooded(play, client),
        "R13" => races::at_once(play, server, client),
        "X46" => running::cancelled(play, server, client),
        "X47" => running::left(play, server, client),
        "J02" => running::ids(play, client),
        "J03" => running::kept(play, client),
        "J05" => running::offsets(play, client),
        "V01" | "V03" | "V06" => searching::found(play, client),
        "I04" | "I05" | "I10" => lines::perform(play, server, client),
        _ if id.starts_with('H') => web::perform(play, server, client),
        _ if play.case.more => more::perform(play, server, client),
        _ => once(play, client),
    }
}

/// Says a request of MCP's that calls no tool.
fn asked(play: &mut Play, client: &mut Client) -> anyhow::Result<Vec<Came>> {
    let params = fill(&play.case.input["params"], &play.stage);
    let method = play.case.input["method"].as_str().unwrap_or_default().to_owned();
    let asked = client.spoken.rpc(&method, &params);
    let said = client.ask(&asked)?;
    // A read of a resource is recorded as the tool that reads the same.
    let tool = if method == "resources/read" { "files.read" } else { "" };
    Ok(vec![Came { tool: tool.to_owned(), said, judged: true, ..Came::default() }])
}

/// Calls the tool once, and sees where that proves something that it does work where it may.
pub(super) fn once(play: &mut Play, client: &mut Client) -> anyhow::Result<Vec<Came>> {
    let form = play.form.clone();
    let runs = form.tool == "exec.run" && !matches!(play.case.id.as_str(), "X06" | "X20");
    let mut all = Vec::new();
    if runs {
        all.push(starts(play, client)?);
    }
    all.push(call(client, &form.tool, &form.input)?);
    if let Some(inside) = inside(play) {
        let mut came = call(client, &form.tool, &inside)?;
        came.judged = false;
        if !play.stage.ws.join("inside-w").exists() {
            let said = super::oracle::brief(&came.said);
            play.wrong.push(format!("in the workspace it does nothing either: {said}"));
        }
        all.push(came);
    }
    traces(play, &all);
    listened(play);
    looked_at(play, all.iter().find(|one| one.judged));
    Ok(all)
}

/// That a program starts at all, or that none gets out proves nothing.
fn starts(play: &mut Play, client: &mut Client) -> anyhow::Result<Came> {
    let input = json!({ "command": "sh", "args": ["-c", "echo in > started.txt"] });
    let mut came = call(client, "exec.run", &input)?;
    came.judged = false;
    if !play.stage.ws.join("started.txt").exists() {
        let said = super::oracle::brief(&came.said);
        play.wrong.push(format!("no program starts and writes in the workspace: {said}"));
    }
    Ok(came)
}

/// The same call to be made where it may, if that tells something.
fn inside(play: &Play) -> Option<Value> {
    let tells =
        matches!(play.case.id.as_str(), "X09" | "X12" | "X14" | "X15" | "X22" | "X55" | "X56");
    let text = play.form.input.to_string();
    let outside = play.stage.fill("{EVIL}/w");
    // A line that is one program's name does nothing anywhere.
    // No daemon answers here, wherever it is asked to write.
    let tells = tells && !matches!(&*play.form.label, "command" | "docker");
    if !tells || !text.contains(&outside) {
        return None;
    }
    let within = play.stage.fill("{WS}/inside-w");
    let text = text.replace(&play.stage.fill("{EVIL}/secret"), &play.stage.fill("{WS}/names.txt"));
    serde_json::from_str(&text.replace(&outside, &within)).ok()
}

/// What a script of ours leaves that ran: without it nothing was tried.
fn traces(play: &mut Play, all: &[Came]) {
    let text = play.form.input.to_string();
    let scripted =
        play.case.id == "C02" || (play.case.id.starts_with('X') && text.contains("pre.sh"));
    if scripted && !play.stage.ws.join("ran").exists() {
        let said = all.last().map(|came| super::oracle::brief(&came.said)).unwrap_or_default();
        play.wrong.push(format!("the script did not run, so nothing is shown: {said}"));
    }
}

/// What the listeners heard, if there are any.
pub(super) fn listened(play: &mut Play) {
    if play.ears.is_empty() {
        return;
    }
    let heard = play.ears.heard();
    let found = if heard.is_empty() { Ok(()) } else { Err(heard.join(", ")) };
    play.show("listener_silent", found);
}

/// The words of asserts that one answer says enough about.
fn looked_at(play: &mut Play, came: Option<&Came>) {
    let Some(came) = came else { return };
    let said = &came.said;
    let raw = String::from_utf8_lossy(&said.raw).into_owned();
    let text = said.text.clone();
    match play.case.id.as_str() {
        "X35" => {
            let own: Vec<&str> = text
                .lines()
                .chain(text.split("\\n"))
                .filter_map(|line| line.rsplit_once(" -> ").map(|_| line))
                .filter(|line| descriptor(line).is_some_and(|number| number > 2))
                .filter(|line| !line.contains("/proc/"))
                .collect();
            let seen = text.contains(" -> ");
            let found = match (seen, own.is_empty()) {
                (false, _) => {
                    Err(format!("no list of descriptors: {}", super::oracle::brief(said)))
                }
                (true, true) => Ok(()),
                (true, false) => Err(format!("a program has {}", own.join(" and "))),
            };
            play.show("fds:0,1,2", found);
        }
        "X16" => {
            let allowed = ["PATH", "HOME", "LANG", "TERM", "TMPDIR", "USER", "PWD", "SHLVL", "_"];
            let stray: Vec<&str> = text
                .lines()
                .filter_map(|line| line.split_once('='))
                .map(|(name, _)| name.trim())
                .filter(|name| name.bytes().all(|b| b.is_ascii_uppercase() || b == b'_'))
                .filter(|name| !allowed.contains(name))
                .collect();
            if !stray.is_empty() {
                play.notes.push(format!("programs get {}", stray.join(", ")));
            }
        }
        "X27" => {
            let got = said.data["exit_code"] == 0 || raw.contains("io_uring_setup gave");
            if got {
                play.show("listener_silent", Err("io_uring_setup is open".to_owned()));
            }
        }
        "G33" => {
            // What is structured is JSON and stays as it is; what is shown as text is not.
            let shows = matches!(
                play.way.dialect,
                Dialect::Mcp2026 | Dialect::Mcp2025 | Dialect::Zyra | Dialect::Workstation
            );
            let found = match control(&text).filter(|_| shows) {
                Some(what) => Err(format!("{what} in {}", super::oracle::brief(said))),
                None => Ok(()),
            };
            play.show("no_ctrl", found);
        }
        _ => {}
    }
}

fn descriptor(line: &str) -> Option<u32> {
    let (before, _) = line.split_once(" -> ")?;
    before.rsplit(' ').next()?.parse().ok()
}

/// The first character that steers a terminal or turns text round.
fn control(text: &str) -> Option<String> {
    let bad = text.chars().find(|c| {
        (c.is_control() && !matches!(c, '\n' | '\t' | '\r'))
            || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    });
    bad.map(|c| format!("U+{:04X}", c as u32))
}

/// Waits until `holds`, or a time has passed; whether it holds.
pub(super) fn until(bound: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let begun = std::time::Instant::now();
    while !holds() {
        if begun.elapsed() > bound {
            return false;
        }
        std::thread::sleep(Duration::from_millis(4));
    }
    true
}
