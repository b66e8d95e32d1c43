//! Tests of host presets, which allow the hosts in the settings of package managers, and of package
//! caches.

use super::hosts::{
    FETCH, FETCHING_SERVER, answer_requests, can_forward, forwarding_workspace, python,
};
use super::*;
use crate::support::path;

/// Starts a server with the text `sandbox` in its table `[sandbox]`, and with the home folder
/// `home`. Returns its client.
fn client_at_home(workspace: &TempWorkspace, home: &TempWorkspace, sandbox: &str) -> TestMcpClient {
    workspace.put("toolgate.toml", format!("[sandbox]\n{sandbox}\n"));
    let launch = ServerLaunchOptions::over(workspace).env("HOME", home.root()).env("PATH", path());
    TestMcpClient::stdio(launch, MODERN)
}

#[test]
fn a_preset_allows_the_host_that_the_users_own_settings_name() {
    let Some(workspace) = forwarding_workspace() else { return };
    let (port, serving) = answer_requests(1);
    let registry = format!("http://one.localhost:{port}/");
    let home = TempWorkspace::new().file(".npmrc", format!("registry={registry}\n"));
    let mut client = client_at_home(&workspace, &home, "hosts = [\"@npm\"]");
    let urls = [registry.clone(), format!("http://two.localhost:{port}/")];
    let result = python(&mut client, FETCH, &urls);
    let expected = format!("200 one.localhost:{port}\n403\n");
    assert_eq!(result.stdout, expected, "{}", result.stderr);
    // The program does not see the settings themselves.
    let result = sh(&mut client, "echo $npm_config_registry; cat ~/.npmrc 2>&1 | wc -l");
    assert_eq!(result.stdout, format!("{registry}\n1\n"), "{}", result.stderr);
    serving.join().unwrap();
}

#[test]
fn the_preset_of_python_allows_the_index_of_the_users_pip_settings() {
    let Some(workspace) = forwarding_workspace() else { return };
    let index = "http://one.localhost:1/simple/";
    workspace.put("toolgate.toml", "[sandbox]\nhosts = [\"@pypi\"]\n");
    // The Python of Debian has pip.
    let launch = ServerLaunchOptions::over(&workspace).env("PATH", "/usr/bin:/bin");
    let mut client = TestMcpClient::stdio(launch.env("PIP_INDEX_URL", index), MODERN);
    assert_eq!(sh(&mut client, "echo $PIP_INDEX_URL").stdout, format!("{index}\n"));
    let urls = [index, "http://two.localhost:1/simple/"].map(str::to_owned);
    // Nobody listens at the port of the index.
    assert_eq!(python(&mut client, FETCH, &urls).stdout, "502\n403\n");
}

#[test]
fn settings_of_the_project_do_not_change_the_hosts_of_a_preset() {
    let workspace = TempWorkspace::new().file(".npmrc", "registry=http://two.localhost:1/\n");
    if !can_forward(&workspace) {
        return;
    }
    let home = TempWorkspace::new().file(".npmrc", "registry=http://one.localhost:1/\n");
    let mut client = client_at_home(&workspace, &home, "hosts = [\"@npm\"]");
    let result = python(&mut client, FETCH, &["http://two.localhost:1/".to_owned()]);
    assert_eq!(result.stdout, "403\n", "{}", result.stderr);
    let refused = result.value["refused_hosts"].to_string();
    assert!(refused.contains("two.localhost:1"), "{refused}");
    // The project's own setting stays in force, as a variable would hide it.
    assert_eq!(sh(&mut client, "echo [$npm_config_registry]").stdout, "[]\n");
}

#[test]
fn a_preset_brings_a_cache_that_the_next_program_finds_and_the_home_folder_stays_unchanged() {
    let Some(workspace) = forwarding_workspace() else { return };
    let home = TempWorkspace::new().file(".npmrc", "registry=http://one.localhost:1/\n");
    let mut client = client_at_home(&workspace, &home, "hosts = [\"@npm\"]");
    let script = "mkdir -p \"$npm_config_cache\" && echo kept > \"$npm_config_cache/entry\"; \
                  touch ~/planted";
    let result = sh(&mut client, script);
    assert_eq!(result.code, 0, "{}", result.stderr);
    let result = sh(&mut client, "cat \"$npm_config_cache/entry\"; ls ~/planted 2>/dev/null");
    assert_eq!(result.stdout, "kept\n", "{}", result.stderr);
    assert!(!home.path("planted").exists());
    let caches = home.path(".cache/toolgate/packages");
    assert!(caches.is_dir(), "{}", caches.display());
    drop(client);
    // A program that may not write the workspace gets no cache.
    let settings = "profile = \"read-only\"\nhosts = [\"@npm\"]";
    let mut client = client_at_home(&workspace, &home, settings);
    assert_eq!(sh(&mut client, "echo [$npm_config_cache]").stdout, "[]\n");
}

#[test]
fn the_caches_of_one_workspace_are_hidden_from_programs_of_another() {
    let workspaces = [TempWorkspace::new(), TempWorkspace::new()];
    if !can_forward(&workspaces[0]) {
        return;
    }
    let home = TempWorkspace::new().file(".npmrc", "registry=http://one.localhost:1/\n");
    let mut folders = Vec::new();
    for workspace in &workspaces {
        let mut client = client_at_home(workspace, &home, "hosts = [\"@npm\"]");
        let result = sh(&mut client, "ls ~/.cache/toolgate/packages; echo $npm_config_cache");
        let lines: Vec<_> = result.stdout.lines().map(str::to_owned).collect();
        assert_eq!(lines.len(), 2, "{}", result.stdout);
        assert!(lines[1].contains(&lines[0]), "{lines:?}");
        folders.push(lines[1].clone());
    }
    assert_ne!(folders[0], folders[1]);
}

#[test]
fn the_remotes_of_a_repository_are_the_hosts_of_its_preset_unless_programs_can_change_them() {
    let Some(workspace) = forwarding_workspace() else { return };
    let (port, serving) = answer_requests(1);
    let config = format!(
        "[core]\n\trepositoryformatversion = 0\n[remote \"origin\"]\n\t\
         url = http://one.localhost:{port}/x.git\n"
    );
    workspace.put(".git/HEAD", "ref: refs/heads/main\n");
    workspace.put(".git/config", config);
    std::fs::create_dir_all(workspace.path(".git/objects")).unwrap();
    std::fs::create_dir_all(workspace.path(".git/refs")).unwrap();
    let home = TempWorkspace::new();
    let urls = [format!("http://one.localhost:{port}/")];
    let mut client = client_at_home(&workspace, &home, "hosts = [\"@git\"]");
    let result = python(&mut client, FETCH, &urls);
    assert_eq!(result.stdout, format!("200 one.localhost:{port}\n"), "{}", result.stderr);
    serving.join().unwrap();
    drop(client);
    let mut client = client_at_home(&workspace, &home, "git = \"write\"\nhosts = [\"@git\"]");
    // Without a host there is no forwarder either.
    let result = python(&mut client, FETCH, &urls);
    assert_eq!(result.stdout, "URLError\n", "{}", result.stderr);
}

#[test]
fn a_workspace_that_looks_like_a_bare_repository_names_no_host() {
    let config = "[core]\n\trepositoryformatversion = 0\n[remote \"origin\"]\n\t\
                  url = http://one.localhost:1/x.git\n";
    let workspace =
        TempWorkspace::new().file("HEAD", "ref: refs/heads/main\n").file("config", config);
    if !can_forward(&workspace) {
        return;
    }
    std::fs::create_dir_all(workspace.path("objects")).unwrap();
    std::fs::create_dir_all(workspace.path("refs")).unwrap();
    let home = TempWorkspace::new();
    let mut client = client_at_home(&workspace, &home, "hosts = [\"@git\"]");
    let result = python(&mut client, FETCH, &["http://one.localhost:1/".to_owned()]);
    assert_eq!(result.stdout, "URLError\n", "{}", result.stderr);
}

#[test]
fn settings_that_programs_can_change_name_no_host() {
    let settings = "registry=http://one.localhost:1/\n";
    let workspace = TempWorkspace::new().file("npmrc", settings);
    if !can_forward(&workspace) {
        return;
    }
    let urls = ["http://one.localhost:1/".to_owned()];
    let home = TempWorkspace::new();
    std::os::unix::fs::symlink(workspace.path("npmrc"), home.path(".npmrc")).unwrap();
    let mut client = client_at_home(&workspace, &home, "hosts = [\"@npm\"]");
    let result = python(&mut client, FETCH, &urls);
    assert_eq!(result.stdout, "URLError\n", "{}", result.stderr);
}

#[test]
fn a_preset_names_its_host_if_programs_can_write_the_temporary_folder() {
    let [workspace, temp] = [TempWorkspace::new(), TempWorkspace::new()];
    if !can_forward(&workspace) {
        return;
    }
    let (port, serving) = answer_requests(1);
    let registry = format!("http://one.localhost:{port}/");
    let home = TempWorkspace::new().file(".npmrc", format!("registry={registry}\n"));
    let sandbox = format!("write = [\"{}\"]\nhosts = [\"@npm\"]", temp.root().display());
    workspace.put("toolgate.toml", format!("[sandbox]\n{sandbox}\n"));
    let launch = ServerLaunchOptions::over(&workspace).env("HOME", home.root()).env("PATH", path());
    let mut client = TestMcpClient::stdio(launch.env("TMPDIR", temp.root()), MODERN);
    let result = python(&mut client, FETCH, &[registry]);
    assert_eq!(result.stdout, format!("200 one.localhost:{port}\n"), "{}", result.stderr);
    serving.join().unwrap();
}

#[test]
fn an_upstream_with_a_preset_reaches_the_registry_and_keeps_its_cache() {
    let Some(workspace) = forwarding_workspace() else { return };
    let (port, serving) = answer_requests(1);
    let registry = format!("http://one.localhost:{port}/");
    let home = TempWorkspace::new().file(".npmrc", format!("registry={registry}\n"));
    workspace.put("server.py", FETCHING_SERVER);
    let line = format!(
        "mkdir -p $npm_config_cache/_npx && exec /usr/bin/python3 server.py {registry} \
         http://two.localhost:{port}/"
    );
    let settings = format!(
        "[upstream.web]\ncommand = [\"sh\", \"-c\", \"{line}\"]\ncwd = \".\"\n\
         sandbox = \"workspace\"\nhosts = [\"@npm\"]\n"
    );
    workspace.put("toolgate.toml", settings);
    let launch = ServerLaunchOptions::over(&workspace).env("HOME", home.root()).env("PATH", path());
    let mut client = TestMcpClient::stdio(launch, MODERN);
    client.tools();
    let answer = client.call("web_fetch", json!({}));
    assert_eq!(answer["result"]["content"][0]["text"], "200 403", "{answer}");
    serving.join().unwrap();
    let caches = std::fs::read_dir(home.path(".cache/toolgate/packages")).unwrap();
    let mut folders = caches.map(|entry| entry.unwrap().path().join("npm/npm/_npx"));
    assert!(folders.any(|folder| folder.is_dir()));
}

#[test]
fn a_package_manager_without_a_network_does_not_repeat_downloads() {
    let workspace = TempWorkspace::new();
    let mut client = confined_client(&workspace, "workspace");
    let retries = |client: &mut TestMcpClient, script: &str| sh(client, script).stdout;
    let script = "npm --version >/dev/null 2>&1; echo [$npm_config_fetch_retries]";
    assert_eq!(retries(&mut client, script), "[0]\n");
    assert_eq!(retries(&mut client, "echo [$npm_config_fetch_retries]"), "[]\n");
    drop(client);
    let mut client = confined_client(&workspace, "network");
    assert_eq!(retries(&mut client, script), "[]\n");
}
