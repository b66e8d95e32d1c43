//! What a program finds where it could have had a say in it: folders that it writes.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use tempfile::TempDir;

use super::*;
use crate::support::{Marker, Wire, sleeps};

/// A home with something in it that nobody else is to know.
fn home() -> TempDir {
    let home = TempDir::with_prefix("toolgate-home-").unwrap();
    for path in [".ssh/key", ".local/share/key", ".local/bin/key"] {
        let path = home.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "canary-90d1").unwrap();
    }
    home
}

#[test]
fn a_folder_of_path_or_an_environment_that_programs_write_leads_them_nowhere() {
    let workspace = Workspace::new();
    let home = home();
    fs::create_dir_all(workspace.path(".venv/lib")).unwrap();
    symlink(home.path(), workspace.path(".venv/bin")).unwrap();
    symlink(home.path().join(".ssh"), workspace.path("bin")).unwrap();
    let venv = format!("home = {}/.local/bin\n", home.path().display());
    workspace.put(".venv/pyvenv.cfg", venv);
    let path = [".venv/bin", "bin"].map(|it| workspace.path(it).display().to_string()).join(":");
    let launch = Launch::over(&workspace)
        .env("HOME", home.path())
        .env("PATH", format!("{path}:/usr/bin:/bin"))
        .env("VIRTUAL_ENV", workspace.path(".venv"));
    let mut client = Client::stdio(launch, MODERN);
    if !holds(&mut client, "view") {
        return;
    }
    let ran = sh(&mut client, "grep -rs canary $HOME .venv/bin/ bin/; ls -A $HOME");
    assert_eq!(ran.stdout, "", "{}", ran.stderr);
}

#[test]
fn what_is_guarded_deeper_down_is_not_moved_away_with_the_folders_around_it() {
    let workspace = Workspace::new().file("conf/deep/own.toml", "").file("conf/other", "");
    let config = workspace.path("conf/deep/own.toml");
    let launch = Launch::over(&workspace).env("TOOLGATE_CONFIG", &config);
    let mut client = Client::stdio(launch, MODERN);
    if !holds(&mut client, "view") {
        return;
    }
    for script in [
        "mv conf conf2; mkdir -p conf/deep; echo x > conf/deep/own.toml",
        "mv conf/deep conf/deep2; mkdir -p conf/deep; echo x > conf/deep/own.toml",
        "rm -rf conf; echo x > conf/deep/own.toml",
    ] {
        sh(&mut client, script);
        assert_eq!(fs::read_to_string(&config).unwrap(), "", "{script}");
    }
    // What lies beside is written as before.
    let ran = sh(&mut client, "echo x > conf/deep/new && mv conf/deep/new conf/deep/newer");
    assert_eq!(ran.code, 0, "{}", ran.stderr);
}

#[test]
fn the_server_s_own_state_in_the_workspace_is_not_uncovered_by_moving_what_is_around_it() {
    let workspace = Workspace::new();
    let state = workspace.path("home/.local/state");
    let marks = state.join("toolgate/trusted");
    fs::create_dir_all(&marks).unwrap();
    fs::write(marks.join("mark"), "canary-90d1").unwrap();
    let launch = Launch::over(&workspace).env("XDG_STATE_HOME", &state);
    let mut client = Client::stdio(launch, MODERN);
    if !holds(&mut client, "view") {
        return;
    }
    let ran = sh(
        &mut client,
        "mv home/.local home/l2; mv home h2; mkdir -p home/.local/state/toolgate/trusted; \
         echo planted > home/.local/state/toolgate/trusted/x; grep -rs -e canary .",
    );
    assert_eq!(ran.stdout, "", "{}", ran.stderr);
    assert_eq!(fs::read_to_string(marks.join("mark")).unwrap(), "canary-90d1");
    assert!(!marks.join("x").exists());
}

#[test]
fn who_only_reads_a_file_does_not_keep_its_owner_waiting() {
    let workspace = Workspace::new();
    let mut client = confined(&workspace, "workspace");
    if !holds(&mut client, "seccomp") {
        return;
    }
    let script = "use Fcntl; open(F, '<', 'README.md');\
                  for my $ask (1024, 1026) { print fcntl(F, $ask, 1) ? 'held ' : \"no $! \" }\
                  print fcntl(F, F_GETFD, 0) ? 'asked' : \"no $!\"";
    let said = perl(&mut client, script);
    assert_eq!(said, "no Operation not permitted no Operation not permitted asked");
}

#[test]
fn what_is_there_outside_of_the_view_is_not_told() {
    let workspace = Workspace::new();
    let home = home();
    let key = home.path().join(".ssh/key");
    let workspace = workspace.link("link", &key);
    let program = home.path().join("program");
    fs::copy("/bin/true", &program).unwrap();
    let mut client = Client::stdio(Launch::over(&workspace).env("HOME", home.path()), MODERN);
    if !holds(&mut client, "view") {
        return;
    }
    let mut told = |command: &str| {
        let answer = client.call("exec_run", json!({ "command": command }));
        crate::support::text(&answer).replace(command, "IT")
    };
    let none = told(&home.path().join("none").display().to_string());
    assert!(none.contains("does not exist, or not where programs see it"), "{none}");
    for there in [&key, &program, &home.path().join(".ssh")] {
        assert_eq!(told(&there.display().to_string()), none);
    }
    // Nor by a way that begins where programs see something, or by a link in what they write.
    let around = |path: &Path| format!("/usr/..{}", path.display());
    assert_eq!(told(&around(&key)), told(&around(&home.path().join("none"))));
    assert_eq!(told("./link"), told("./none"));
    let written = TempDir::new().unwrap();
    symlink(&key, written.path().join("link")).unwrap();
    let launch = Launch::over(&workspace).env("HOME", home.path());
    let launch = launch.set("sandbox_write", written.path().display());
    let mut writes = Client::stdio(launch, MODERN);
    let answer = writes.call("exec_run", json!({ "command": written.path().join("link") }));
    assert!(crate::support::text(&answer).contains("does not exist"), "{answer}");
    assert!(told("./README.md").contains("not executable"));
}

#[test]
fn what_stands_there_for_programs_alone_is_in_no_list() {
    let workspace = Workspace::new().file(".github/a.yml", "a");
    let mut client = confined(&workspace, "workspace");
    let marker = Marker::new();
    let request =
        client.request("tools/call", json!({ "name": "exec_run", "arguments": sleeps(&marker) }));
    let Wire::Stdio(stdio) = &mut client.wire else { unreachable!() };
    stdio.send(&request);
    marker.started();
    let stands = |name: &str| workspace.path(name).exists();
    if !stands(".vscode") {
        return assert!(!holds(&mut client, "view"), "nothing stands at .vscode");
    }
    for tool in ["files_list", "files_tree"] {
        let listed = client.call(tool, json!({ "path": "." })).to_string();
        assert!(listed.contains(".github"), "{tool}: {listed}");
        assert!(!listed.contains(".vscode") && !listed.contains(".claude"), "{tool}: {listed}");
    }
    assert!(stands(".vscode"));
}
