//! `toolgate doctor upstreams`.

use std::process::{Command, Output};

use super::with_odds;
use crate::support::{Workspace, binary, path, trust_config};

/// Runs `toolgate doctor upstreams NAMES` in `workspace`.
fn doctor(workspace: &Workspace, names: &[&str]) -> Output {
    let mut command = Command::new(binary());
    command.args(["doctor", "upstreams"]).args(names);
    command.current_dir(workspace.root()).env_clear().env("PATH", path());
    command.env("HOME", workspace.path(".home")).env("XDG_CACHE_HOME", workspace.path(".cache"));
    trust_config(&mut command, workspace.root());
    command.output().unwrap()
}

#[test]
fn doctor_prints_a_line_for_each_upstream() {
    let workspace = with_odds(&[("odd", "ODD_RESOURCES = \"odd://1\",", "")]);
    let settings = workspace.read("toolgate.toml");
    let dead = "[upstream.dead]\ncommand = [\"false\"]\n[upstream.off]\ncommand = [\"false\"]\nenabled = false\n";
    let workspace = workspace.file("toolgate.toml", settings + dead);
    let all = doctor(&workspace, &[]);
    let stdout = String::from_utf8(all.stdout.clone()).unwrap();
    let mut lines: Vec<_> = stdout.lines().collect();
    lines.sort_unstable();
    let [failed, ok] = lines[..] else { panic!("{all:?}") };
    assert!(failed.starts_with("FAILED  dead: "), "{all:?}");
    assert!(ok.starts_with("ok      odd: MCP 2025-06-18 (tools: "), "{all:?}");
    assert!(ok.ends_with(", resources: 1, prompts: 0)"), "{all:?}");
    assert_eq!(all.status.code(), Some(1), "{all:?}");
    assert_eq!(doctor(&workspace, &["odd"]).status.code(), Some(0));
    let unknown = doctor(&workspace, &["oddd"]);
    assert_eq!(unknown.status.code(), Some(2), "{unknown:?}");
    assert!(
        String::from_utf8_lossy(&unknown.stderr).contains("the upstreams are dead, odd"),
        "{unknown:?}"
    );
}
