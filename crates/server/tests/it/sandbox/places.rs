//! Tests of paths that a program can change because it may write to a folder on the path.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use tempfile::TempDir;

use super::*;
use crate::support::{ProcessMarker, TestClientTransport, sleeps};

/// Creates a temporary home folder that contains secrets.
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
fn a_writable_folder_in_path_or_virtual_env_exposes_nothing_outside_the_workspace() {
    let workspace = TempWorkspace::new();
    let home = home();
    fs::create_dir_all(workspace.path(".venv/lib")).unwrap();
    symlink(home.path(), workspace.path(".venv/bin")).unwrap();
    symlink(home.path().join(".ssh"), workspace.path("bin")).unwrap();
    let venv = format!("home = {}/.local/bin\n", home.path().display());
    workspace.put(".venv/pyvenv.cfg", venv);
    let path = [".venv/bin", "bin"].map(|it| workspace.path(it).display().to_string()).join(":");
    let launch = ServerLaunchOptions::over(&workspace)
        .env("HOME", home.path())
        .env("PATH", format!("{path}:/usr/bin:/bin"))
        .env("VIRTUAL_ENV", workspace.path(".venv"));
    let Some(mut client) = with_layer(TestMcpClient::stdio(launch, MODERN), "view") else { return };
    let result = sh(&mut client, "grep -rs canary $HOME .venv/bin/ bin/; ls -A $HOME");
    assert_eq!(result.stdout, "", "{}", result.stderr);
}

#[test]
fn a_folder_of_path_with_parent_steps_is_found_and_the_home_stays_hidden() {
    let home = home();
    // A program has a `/tmp` of its own.
    let tools = TempDir::with_prefix_in("toolgate-tools-", env!("CARGO_TARGET_TMPDIR")).unwrap();
    for folder in ["bin", "sources/nested"] {
        fs::create_dir_all(tools.path().join(folder)).unwrap();
    }
    let tool = tools.path().join("bin/say-found");
    fs::write(&tool, "#!/bin/sh\necho found\n").unwrap();
    fs::set_permissions(&tool, Permissions::from_mode(0o755)).unwrap();
    let workspace = TempWorkspace::new();
    let path = format!("{}/sources/nested/../../bin:/usr/bin:/bin", tools.path().display());
    let launch = ServerLaunchOptions::over(&workspace).env("HOME", home.path()).env("PATH", path);
    let Some(mut client) = with_layer(TestMcpClient::stdio(launch, MODERN), "view") else { return };
    let result = sh(&mut client, &format!("say-found; cat {}/.ssh/key", home.path().display()));
    assert_eq!(result.stdout, "found\n", "{}", result.stderr);
}

#[test]
fn a_protected_file_is_not_moved_with_the_folders_around_it() {
    let workspace = TempWorkspace::new().file("conf/deep/own.toml", "").file("conf/other", "");
    let config = workspace.path("conf/deep/own.toml");
    let launch = ServerLaunchOptions::over(&workspace).env("TOOLGATE_CONFIG", &config);
    let Some(mut client) = with_layer(TestMcpClient::stdio(launch, MODERN), "view") else { return };
    for script in [
        "mv conf conf2; mkdir -p conf/deep; echo x > conf/deep/own.toml",
        "mv conf/deep conf/deep2; mkdir -p conf/deep; echo x > conf/deep/own.toml",
        "rm -rf conf; echo x > conf/deep/own.toml",
    ] {
        sh(&mut client, script);
        assert_eq!(fs::read_to_string(&config).unwrap(), "", "{script}");
    }
    // Files beside it stay writable.
    let result = sh(&mut client, "echo x > conf/deep/new && mv conf/deep/new conf/deep/newer");
    assert_eq!(result.code, 0, "{}", result.stderr);
}

#[test]
fn the_state_of_the_server_stays_hidden_if_the_folders_around_it_are_moved() {
    let workspace = TempWorkspace::new();
    let state = workspace.path("home/.local/state");
    let marks = state.join("toolgate/trusted");
    fs::create_dir_all(&marks).unwrap();
    fs::write(marks.join("mark"), "canary-90d1").unwrap();
    let launch = ServerLaunchOptions::over(&workspace).env("XDG_STATE_HOME", &state);
    let Some(mut client) = with_layer(TestMcpClient::stdio(launch, MODERN), "view") else { return };
    let result = sh(
        &mut client,
        "mv home/.local home/l2; mv home h2; mkdir -p home/.local/state/toolgate/trusted; \
         echo planted > home/.local/state/toolgate/trusted/x; grep -rs -e canary .",
    );
    assert_eq!(result.stdout, "", "{}", result.stderr);
    assert_eq!(fs::read_to_string(marks.join("mark")).unwrap(), "canary-90d1");
    assert!(!marks.join("x").exists());
}

#[test]
fn the_servers_own_folders_stay_hidden_in_a_writable_folder_around_them() {
    let workspace = TempWorkspace::new();
    let home = home();
    let own = [".local/state/toolgate", ".cache/toolgate/packages"];
    for folder in own {
        fs::create_dir_all(home.path().join(folder)).unwrap();
        fs::write(home.path().join(folder).join("own"), "canary-90d1").unwrap();
    }
    symlink(home.path().join(".local"), home.path().join("link")).unwrap();
    let start = |written: &str| {
        let launch = ServerLaunchOptions::over(&workspace)
            .env("HOME", home.path())
            .env("XDG_STATE_HOME", home.path().join(".local/state"))
            .env("XDG_CACHE_HOME", home.path().join(".cache"));
        TestMcpClient::stdio(
            launch.set("sandbox_write", home.path().join(written).display()),
            MODERN,
        )
    };
    for (written, own) in [
        ("", own[0]),
        ("", own[1]),
        (".local", own[0]),
        (own[0], own[0]),
        (".cache", own[1]),
        (own[1], own[1]),
        ("link", "link/state/toolgate"),
    ] {
        let Some(mut client) = with_layer(start(written), "view") else { return };
        let own = home.path().join(own);
        let (own, parent) = (own.display(), own.parent().unwrap().display());
        let script = format!(
            "cat {own}/own; echo x > {own}/own; echo x > {own}/new; mv {own} {own}2; \
             mv {parent} {parent}2; mkdir -p {own}; echo x > {own}/new"
        );
        let result = sh(&mut client, &script);
        assert_eq!(result.stdout, "", "{written}: {}", result.stderr);
        drop(client);
        for folder in [".local/state/toolgate", ".cache/toolgate/packages"] {
            let folder = home.path().join(folder);
            assert_eq!(fs::read_to_string(folder.join("own")).unwrap(), "canary-90d1", "{script}");
            assert!(!folder.join("new").exists(), "{script}");
        }
    }
    let result = sh(&mut start(".local"), "echo x > $HOME/.local/share/new");
    assert_eq!(result.code, 0, "{}", result.stderr);
    assert!(home.path().join(".local/share/new").exists());
}

#[test]
fn a_program_cannot_take_a_lease_on_a_file() {
    let workspace = TempWorkspace::new();
    let Some(mut client) = confined_with_layer(&workspace, "seccomp") else { return };
    let script = "use Fcntl; open(F, '<', 'README.md');\
                  for my $ask (1024, 1026) { print fcntl(F, $ask, 1) ? 'held ' : \"no $! \" }\
                  print fcntl(F, F_GETFD, 0) ? 'asked' : \"no $!\"";
    let printed = perl(&mut client, script);
    assert_eq!(printed, "no Operation not permitted no Operation not permitted asked");
}

#[test]
fn errors_do_not_reveal_whether_a_file_outside_the_view_exists() {
    let workspace = TempWorkspace::new();
    let home = home();
    let key = home.path().join(".ssh/key");
    let workspace = workspace.link("link", &key);
    let program = home.path().join("program");
    fs::copy("/bin/true", &program).unwrap();
    let Some(mut client) = with_layer(
        TestMcpClient::stdio(
            ServerLaunchOptions::over(&workspace).env("HOME", home.path()),
            MODERN,
        ),
        "view",
    ) else {
        return;
    };
    let mut error = |command: &str| {
        let answer = client.call("exec_run", json!({ "command": command }));
        crate::support::text(&answer).replace(command, "IT")
    };
    let missing = error(&home.path().join("none").display().to_string());
    assert!(missing.contains("does not exist, or the sandbox hides it"), "{missing}");
    for existing in [&key, &program, &home.path().join(".ssh")] {
        assert_eq!(error(&existing.display().to_string()), missing);
    }
    // Nor through a path that begins in a visible folder, or through a link in a writable one.
    let detour = |path: &Path| format!("/usr/..{}", path.display());
    assert_eq!(error(&detour(&key)), error(&detour(&home.path().join("none"))));
    assert_eq!(error("./link"), error("./none"));
    let written = TempDir::new().unwrap();
    symlink(&key, written.path().join("link")).unwrap();
    let launch = ServerLaunchOptions::over(&workspace).env("HOME", home.path());
    let launch = launch.set("sandbox_write", written.path().display());
    let mut writer = TestMcpClient::stdio(launch, MODERN);
    let answer = writer.call("exec_run", json!({ "command": written.path().join("link") }));
    assert!(crate::support::text(&answer).contains("does not exist"), "{answer}");
    assert!(error("./README.md").contains("not executable"));
}

#[test]
fn placeholders_of_protected_names_are_not_listed() {
    let workspace = TempWorkspace::new().file(".github/a.yml", "a");
    let mut client = confined_client(&workspace, "workspace");
    let marker = ProcessMarker::new();
    let request =
        client.request("tools/call", json!({ "name": "exec_run", "arguments": sleeps(&marker) }));
    let TestClientTransport::Stdio(stdio) = &mut client.wire else { unreachable!() };
    stdio.send(&request);
    marker.wait_until_running();
    let exists = |name: &str| workspace.path(name).exists();
    if !exists(".vscode") {
        return assert!(!has_layer(&mut client, "view"), "there is no placeholder at .vscode");
    }
    for tool in ["files_list", "files_tree"] {
        let listed = client.call(tool, json!({ "path": "." })).to_string();
        assert!(listed.contains(".github"), "{tool}: {listed}");
        assert!(!listed.contains(".vscode") && !listed.contains(".claude"), "{tool}: {listed}");
    }
    assert!(exists(".vscode"));
}
