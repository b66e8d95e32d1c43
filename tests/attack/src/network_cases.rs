//! Attack cases of `extra.jsonl` about programs that may reach one host through a network
//! forwarder.

use std::fs;

use serde_json::json;

use super::attempt::AttackAttempt;
use super::exploits;

/// Ids of the attack cases about programs behind a network forwarder.
pub(super) const IDS: [&str; 23] = [
    "M52", "M53", "M54", "M55", "M56", "M57", "M60", "M61", "M80", "M81", "M82", "M83", "M84",
    "M85", "M86", "M87", "M88", "M100", "M101", "M102", "M103", "M104", "M105",
];

/// Settings that allow programs to use an SSH server.
const SSH_REMOTE: &str = "[[sandbox.ssh]]\nhost = \"one.localhost:1\"\nhost_keys = [\"ssh-ed25519 \
     AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl\"]\n\
     keys = [\"SHA256:+DiY3wvvV6TuJJhbpZisF/zLDA0zPMSvHdkr4UvCOqU\"]\n";

/// Prepares an attack case about a program that may reach one host through the forwarder, and that
/// tries to reach more.
pub(super) fn prepare(attempt: &mut AttackAttempt) -> anyhow::Result<()> {
    let id = attempt.case.id.clone();
    let port = match id.as_str() {
        "M53" => attempt.listeners.listen_udp()?,
        _ => attempt.listeners.listen_tcp()?,
    };
    let ruled = match id.as_str() {
        // The rule allows the listener under one name.
        "M55" | "M56" | "M82" => format!("one.localhost:{port}"),
        "M88" => "@npm".to_owned(),
        "M100" | "M101" | "M102" => format!("one.localhost:{port}/acme/*"),
        _ => "one.localhost:1".to_owned(),
    };
    let table = match id.as_str() {
        // Other programs have a forwarder, but not this one.
        "M85" => "[[sandbox.for]]\ntools = \"ci.*\"\nprofile = \"workspace\"\n",
        _ => "[sandbox]\n",
    };
    attempt.launch.config = format!("{table}hosts = [\"{ruled}\"]\n");
    if id == "M102" {
        let canary = attempt.folders.canary.clone();
        attempt.launch.env("ATTACK_SECRET", canary);
        attempt.launch.config += &format!(
            "[[sandbox.credentials]]\nhost = \"{ruled}\"\nvalue = \"Bearer ${{ATTACK_SECRET}}\"\n"
        );
    }
    if matches!(id.as_str(), "M103" | "M104" | "M105") {
        // The agent of the user.
        let agent = attempt.folders.base.join("user-agent");
        attempt.listeners.listen_unix(&agent)?;
        attempt.launch.env("SSH_AUTH_SOCK", agent.display().to_string());
        attempt.launch.config += SSH_REMOTE;
    }
    let url = format!("http://one.localhost:{port}/");
    let script = match id.as_str() {
        "M52" => exploits::tcp(port),
        "M53" => exploits::udp(port),
        "M54" => exploits::ask_proxy(&format!("CONNECT 127.0.0.1:{port} HTTP/1.1")),
        "M55" => {
            exploits::ask_proxy(&format!("GET {url} HTTP/1.1\\r\\nHost: two.localhost:{port}"))
        }
        "M56" => exploits::ask_proxy(&format!("CONNECT [::ffff:127.0.0.1]:{port} HTTP/1.1")),
        "M60" => exploits::ask_proxy(&format!("CONNECT one.localhost:{port} HTTP/1.1")),
        "M61" => exploits::ask_proxy(&format!(
            "GET http://one.localhost:1\\@127.0.0.1:{port}/ HTTP/1.1\\r\\nHost: one.localhost:1"
        )),
        "M80" => exploits::RAW_SOCKETS.to_owned(),
        "M81" => exploits::change_proxy(port),
        // The data would be in the question to the name server of the domain.
        "M82" => exploits::ask_proxy(&format!("CONNECT 73656372.one.localhost:{port} HTTP/1.1")),
        "M83" => exploits::LEAVE_NETWORK.to_owned(),
        "M84" | "M87" | "M105" => exploits::unix(&listen_to_sockets(attempt)?),
        "M85" => exploits::use_other_forwarder(),
        "M86" => exploits::ask_proxy(&format!("GET http://2130706433:{port}/ HTTP/1.1")),
        "M88" => {
            let settings = format!("registry={url}\n");
            fs::write(attempt.folders.ws.join(".npmrc"), settings)?;
            exploits::ask_proxy(&format!("GET {url} HTTP/1.1"))
        }
        "M100" => exploits::ask_proxy_for_paths(port),
        "M101" => exploits::speak_in_tunnel(&format!("one.localhost:{port}")),
        "M102" => exploits::FIND_CREDENTIALS.to_owned(),
        "M103" => exploits::ask_agent(&exploits::AGENT_CHANGES),
        "M104" => exploits::ask_agent(&exploits::OTHER_SIGNATURES),
        _ => exploits::ask_proxy("GET http://169.254.169.254/latest/meta-data/ HTTP/1.1"),
    };
    attempt.variant.input["args"] = json!(["-e", script]);
    Ok(())
}

/// Listens on the socket that the case attacks, and returns its paths: a file of the workspace, the
/// agent socket of another run, or an abstract name that starts with `@`.
fn listen_to_sockets(attempt: &mut AttackAttempt) -> anyhow::Result<Vec<String>> {
    if attempt.case.id == "M105" {
        let folder = attempt.folders.base.join("toolgate-ssh-other");
        fs::create_dir_all(&folder)?;
        let other = folder.join("agent");
        attempt.listeners.listen_unix(&other)?;
        let user = attempt.folders.base.join("user-agent");
        return Ok([other, user].map(|path| path.display().to_string()).to_vec());
    }
    if attempt.case.id == "M84" {
        let file = attempt.folders.ws.join("s.sock");
        attempt.listeners.listen_unix(&file)?;
        return Ok(vec![file.display().to_string()]);
    }
    let base = attempt.folders.base.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let name = format!("toolgate-network-{base}-{}", std::process::id());
    attempt.listeners.listen_abstract(&name)?;
    Ok(vec![format!("@{name}")])
}
