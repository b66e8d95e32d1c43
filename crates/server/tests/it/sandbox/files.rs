//! Tests of the files that a confined program can read and write.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use tempfile::TempDir;

use super::*;

/// Creates a folder outside the workspace, with a file that confined programs must not see.
fn outside() -> TempDir {
    let folder = TempDir::with_prefix("toolgate-outside-").unwrap();
    fs::write(folder.path().join("canary"), "canary-7f3a").unwrap();
    folder
}

#[test]
fn files_outside_the_view_cannot_be_read() {
    let workspace = TempWorkspace::new();
    let outside = outside();
    let canary = outside.path().join("canary");
    let workspace = workspace.link("link", &canary);
    let Some(mut client) = confined_with_layer(&workspace, "view") else { return };
    let canary = canary.display();
    for script in [
        format!("cat {canary}"),
        format!("cat link; cat ../{}/canary", outside.path().file_name().unwrap().display()),
        format!("cat /proc/1/root{canary} /proc/self/root{canary} /proc/1/cwd/../canary"),
        "cat /etc/shadow /root/.ssh/* /root/.npmrc /home/*/.* 2>&1 | grep -v cat:".to_owned(),
        "cat /proc/1/environ /proc/$PPID/environ /proc/1/mem | strings".to_owned(),
        "ls -A $HOME /tmp /var/tmp 2>/dev/null | grep -v -e : -e '^toolgate-[ih]' -e '^$'"
            .to_owned(),
    ] {
        let result = sh(&mut client, &script);
        assert_eq!(result.stdout, "", "{script}: {}", result.stderr);
    }
}

#[test]
fn files_outside_the_workspace_cannot_be_changed() {
    let workspace = TempWorkspace::new();
    let outside = outside();
    let canary = outside.path().join("canary");
    let before = fs::metadata(&canary).unwrap();
    let null = fs::metadata("/dev/null").unwrap();
    let Some(mut client) = confined_with_layer(&workspace, "view") else { return };
    let path = canary.display();
    let folder = outside.path().display();
    for script in [
        format!("echo x > {path}"),
        format!("mkdir -p {folder}; echo x > {folder}/new"),
        format!("chmod 777 {path}; touch -d 2001-01-01 {path}; truncate -s 0 {path}"),
        format!("ln {path} hard; mv {path} moved; rm -f {path}"),
        "echo x > /usr/toolgate-x; echo x > /etc/toolgate-x; echo x > /opt/toolgate-x".to_owned(),
        "chmod 600 /dev/null /proc/self/fd/0; chmod 700 /usr /".to_owned(),
        "echo core > /proc/sys/kernel/core_pattern; echo b > /proc/sysrq-trigger".to_owned(),
        "perl -e 'chmod(0600, *STDIN) and print STDERR \"changed\"'; exit 0".to_owned(),
    ] {
        let result = sh(&mut client, &script);
        assert!(!result.stderr.contains("changed"), "{script}: {}", result.stderr);
    }
    let after = fs::metadata(&canary).unwrap();
    assert_eq!(fs::read_to_string(&canary).unwrap(), "canary-7f3a");
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
    let facts =
        |it: &fs::Metadata| (it.mode(), it.nlink(), it.mtime(), it.ctime(), it.ctime_nsec());
    assert_eq!(facts(&before), facts(&after));
    assert_eq!(fs::metadata("/dev/null").unwrap().mode(), null.mode());
    for path in ["/usr/toolgate-x", "/etc/toolgate-x", "/opt/toolgate-x"] {
        assert!(!fs::exists(path).unwrap(), "{path}");
    }
}

#[test]
fn the_workspace_is_writable_except_with_the_profile_read_only() {
    let workspace = TempWorkspace::new();
    let mut client = confined_client(&workspace, "workspace");
    let result = sh(&mut client, "mkdir a && echo one > a/b && mv a/b c && cat c README.md");
    assert_eq!(
        (result.code, &*result.stdout),
        (0, &*format!("one\n{}", TempWorkspace::README)),
        "{}",
        result.stderr
    );
    assert_eq!(workspace.read("c"), "one\n");
    let Some(mut reader) = with_layer(confined_client(&workspace, "read-only"), "view") else {
        return;
    };
    let result = sh(&mut reader, "cat c; echo two > c; rm c; echo t > /tmp/t && cat /tmp/t");
    assert_eq!(result.stdout, "one\nt\n", "{}", result.stderr);
    assert_eq!(workspace.read("c"), "one\n");
}

#[test]
fn a_program_cannot_create_a_set_user_id_file() {
    let workspace = TempWorkspace::new();
    let Some(mut client) = confined_with_layer(&workspace, "seccomp") else { return };
    sh(&mut client, "cp /bin/true a; chmod u+s a; chmod 2755 a; chmod 6755 .");
    // By number on x86_64: chmod, an unnamed file, and a link to it.
    let script = "use Fcntl; my ($a, $c, $here) = ('a', 'c', '.');\
        sysopen(F, 'b', O_CREAT|O_WRONLY, 04755); syscall(90, $a, 04755);\
        my $fd = syscall(257, -100, $here, 0x410001, 04755); my $at = \"/proc/self/fd/$fd\";\
        syscall(265, -100, $at, -100, $c, 0x400); print ''";
    perl(&mut client, script);
    for name in ["a", "b", "c", "."] {
        let mode = fs::metadata(workspace.path(name)).map_or(0, |it| it.permissions().mode());
        assert_eq!(mode & 0o6000, 0, "{name}: {mode:o}");
    }
}

#[test]
fn protected_files_are_neither_changed_nor_moved() {
    let workspace = TempWorkspace::new().file("toolgate.toml", "").file(".mcp.json", "{}");
    let workspace = workspace.file(".git/config", "[core]\n").file(".git/hooks/x", "");
    let Some(mut client) = confined_with_layer(&workspace, "view") else { return };
    for script in [
        "echo '[core] fsmonitor=x' >> .git/config; echo x > .git/hooks/pre-commit",
        "mv .git g2 && cp -r g2 .git; mv .mcp.json x; rm -rf .git .mcp.json toolgate.toml",
        "echo x > toolgate.toml; ln -f README.md toolgate.toml; cp README.md .mcp.json",
    ] {
        sh(&mut client, script);
    }
    assert_eq!(workspace.read(".git/config"), "[core]\n");
    assert_eq!(workspace.read(".mcp.json") + &workspace.read("toolgate.toml"), "{}");
    assert!(!workspace.path(".git/hooks/pre-commit").exists() && !workspace.path("g2").exists());
}

#[test]
fn files_in_tmp_and_home_are_removed_with_the_run() {
    let workspace = TempWorkspace::new();
    let Some(mut client) = confined_with_layer(&workspace, "view") else { return };
    let result =
        sh(&mut client, "echo x > $HOME/.bashrc && echo y > /tmp/y && cat $HOME/.bashrc /tmp/y");
    assert_eq!(result.stdout, "x\ny\n", "{}", result.stderr);
    let result = sh(&mut client, "cat $HOME/.bashrc /tmp/y");
    assert_eq!(result.stdout, "");
}

#[test]
fn additional_folders_are_readable_or_writable_if_the_settings_list_them() {
    let workspace = TempWorkspace::new();
    let outside = outside();
    let folder = outside.path().display().to_string();
    let launch = |setting| {
        let launch = ServerLaunchOptions::over(&workspace).set("sandbox_profile", "workspace");
        TestMcpClient::stdio(launch.set(setting, &folder), MODERN)
    };
    let Some(mut reader) = with_layer(launch("sandbox_read"), "view") else { return };
    let result = sh(&mut reader, &format!("cat {folder}/canary; echo x > {folder}/canary"));
    assert_eq!(result.stdout, "canary-7f3a");
    assert_eq!(fs::read_to_string(outside.path().join("canary")).unwrap(), "canary-7f3a");
    let mut writer = launch("sandbox_write");
    let result = sh(&mut writer, &format!("echo x > {folder}/canary"));
    assert_eq!(result.code, 0, "{}", result.stderr);
    assert_eq!(fs::read_to_string(outside.path().join("canary")).unwrap(), "x\n");
}

#[test]
fn a_program_starts_in_the_resolved_folder_and_one_outside_the_view_is_refused() {
    let workspace = TempWorkspace::new().file("deep/er/x", "").link("to", "deep/er");
    workspace.put("script", "#!/bin/sh\necho \"$0 $1\"; pwd\n");
    fs::set_permissions(workspace.path("script"), PermissionsExt::from_mode(0o755)).unwrap();
    let mut client = confined_client(&workspace, "workspace");
    let input = json!({ "command": "../../script", "args": ["one"], "cwd": "to" });
    let result = run(&mut client, input);
    let real = fs::canonicalize(workspace.path("deep/er")).unwrap();
    assert_eq!(
        result.stdout,
        format!("../../script one\n{}\n", real.display()),
        "{}",
        result.stderr
    );
    let away = TempDir::new().unwrap();
    fs::copy("/bin/true", away.path().join("away")).unwrap();
    let answer = client.call("exec_run", json!({ "command": away.path().join("away") }));
    let message = answer["result"].to_string();
    assert!(message.contains("sandbox.read"), "{message}");
}

#[test]
fn a_program_cannot_create_a_protected_name_and_leaves_nothing_there() {
    let workspace = TempWorkspace::new();
    let Some(mut client) = confined_with_layer(&workspace, "view") else { return };
    let names = [".vscode", ".claude", ".mcp.json", ".cursor", ".toolgate"];
    for name in names {
        let script = format!(
            "mkdir -p {name}/a; echo x > {name}/tasks.json; rmdir {name}; mv {name} there; \
             ln -s README.md {name}; echo x > {name}"
        );
        sh(&mut client, &script);
        // The names of programs that quickly follow each other are kept for a moment.
        wait_until("the name is removed", || !fs::exists(workspace.path(name)).unwrap());
    }
    assert!(!workspace.path("there").exists());
    // A shell prompt of a person could call git, which would run programs from this configuration.
    sh(&mut client, "git init -q .; mkdir -p .git; echo x > .git/config");
    let entries = || {
        let all = fs::read_dir(workspace.root()).unwrap();
        all.map(|it| it.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>()
    };
    wait_until("all names are removed", || entries() == ["README.md"]);
    // Git does not see the placeholders at the protected names.
    let launch = ServerLaunchOptions::over(&workspace).set("sandbox_git", "write");
    let mut client = TestMcpClient::stdio(launch, MODERN);
    let result = sh(&mut client, "git init -q . && git status --porcelain --untracked-files=all");
    assert_eq!((result.code, &*result.stdout), (0, "?? README.md\n"), "{}", result.stderr);
    wait_until("only the repository is left", || entries().len() == 2);
}

#[test]
fn protected_names_stay_reserved_while_a_program_runs_and_are_removed_after_a_killed_server() {
    let workspace = TempWorkspace::new();
    let long = json!({ "command": "sh", "args": ["-c", "touch started; exec sleep 300"] });
    let mut first = ServerLaunchOptions::over(&workspace).stdio();
    first.send(&call(1, "exec_run", long));
    wait_until("it runs", || workspace.path("started").exists());
    let exists = || workspace.path(".vscode").exists();
    if !exists() {
        return eprintln!("NOT TRIED: this system lacks `view`");
    }
    // The end of another program does not remove the names of the running one.
    first.ask(&call(2, "exec_run", json!({ "command": "true" })));
    assert!(exists());
    first.signal(Signal::KILL);
    first.wait_for_exit();
    // The names are removed one after the other.
    wait_until("all names are removed", || !exists() && !workspace.path(".cursor").exists());
    // The next server removes a leftover, and nothing else.
    fs::create_dir(workspace.path(".vscode")).unwrap();
    fs::set_permissions(workspace.path(".vscode"), Permissions::from_mode(0o555)).unwrap();
    fs::create_dir(workspace.path(".cursor")).unwrap();
    let mut second = ServerLaunchOptions::over(&workspace).stdio();
    second.ask(&call(1, "files_list", json!({})));
    assert!(!exists() && workspace.path(".cursor").exists());
}

#[test]
fn a_server_does_not_remove_the_protected_names_of_another() {
    let workspace = TempWorkspace::new();
    let long = json!({ "command": "sh", "args": ["-c", "touch started; until [ -e go ]; do sleep 0.01; done; echo x > .mcp.json"] });
    let mut first = ServerLaunchOptions::over(&workspace).stdio();
    first.send(&call(1, "exec_run", long));
    wait_until("it runs", || workspace.path("started").exists());
    if !workspace.path(".mcp.json").exists() {
        return eprintln!("NOT TRIED: this system lacks `view`");
    }
    let mut second = confined_client(&workspace, "workspace");
    sh(&mut second, "true");
    assert!(workspace.path(".mcp.json").is_dir());
    workspace.put("go", "");
    let ended = first.receive();
    assert_ne!(ended["result"]["structuredContent"]["exit_code"], 0, "{ended}");
    wait_until("the name is removed", || !workspace.path(".mcp.json").exists());
}

#[test]
fn git_tools_that_only_read_run_without_write_access() {
    let workspace = TempWorkspace::new().file("a.txt", "one\n");
    let git = |args: &[&str]| {
        let mut git = std::process::Command::new("git");
        git.args(["-c", "user.name=a", "-c", "user.email=a@b"]).args(args);
        assert!(git.current_dir(workspace.root()).output().unwrap().status.success());
    };
    git(&["init", "-q"]);
    git(&["add", "."]);
    git(&["commit", "-qm", "one"]);
    // A filter, which git runs because the settings allow it.
    workspace.put(".gitattributes", "*.txt filter=mark\n");
    git(&["config", "filter.mark.clean", "touch marked; cat"]);
    workspace.put("a.txt", "two\n");
    let launch = ServerLaunchOptions::over(&workspace).set("git_programs", "filters");
    let Some(mut client) = with_layer(TestMcpClient::stdio(launch, MODERN), "view") else { return };
    let status = client.call("git_status", json!({}));
    assert!(status["result"]["isError"] != true, "{status}");
    assert!(!workspace.path("marked").exists(), "{status}");
    let added = client.call("git_add", json!({ "paths": ["a.txt"] }));
    assert!(added["result"]["isError"] != true, "{added}");
    assert!(workspace.path("marked").exists(), "the filter must run");
}
