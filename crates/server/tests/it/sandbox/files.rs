//! What a confined program reads and writes.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use tempfile::TempDir;

use super::*;

/// A folder beside the workspace, with a file that nobody inside may know of.
fn outside() -> TempDir {
    let folder = TempDir::with_prefix("toolgate-outside-").unwrap();
    fs::write(folder.path().join("canary"), "canary-7f3a").unwrap();
    folder
}

#[test]
fn nothing_outside_of_the_view_is_read() {
    let workspace = Workspace::new();
    let outside = outside();
    let canary = outside.path().join("canary");
    let workspace = workspace.link("link", &canary);
    let mut client = confined(&workspace, "workspace");
    if !holds(&mut client, "view") {
        return;
    }
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
        let ran = sh(&mut client, &script);
        assert_eq!(ran.stdout, "", "{script}: {}", ran.stderr);
    }
}

#[test]
fn nothing_outside_of_the_workspace_is_changed_in_any_way() {
    let workspace = Workspace::new();
    let outside = outside();
    let canary = outside.path().join("canary");
    let before = fs::metadata(&canary).unwrap();
    let null = fs::metadata("/dev/null").unwrap();
    let mut client = confined(&workspace, "workspace");
    if !holds(&mut client, "view") {
        return;
    }
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
        let ran = sh(&mut client, &script);
        assert!(!ran.stderr.contains("changed"), "{script}: {}", ran.stderr);
    }
    let after = fs::metadata(&canary).unwrap();
    assert_eq!(fs::read_to_string(&canary).unwrap(), "canary-7f3a");
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
    let told = |it: &fs::Metadata| (it.mode(), it.nlink(), it.mtime(), it.ctime(), it.ctime_nsec());
    assert_eq!(told(&before), told(&after));
    assert_eq!(fs::metadata("/dev/null").unwrap().mode(), null.mode());
    for path in ["/usr/toolgate-x", "/etc/toolgate-x", "/opt/toolgate-x"] {
        assert!(!fs::exists(path).unwrap(), "{path}");
    }
}

#[test]
fn the_workspace_is_written_unless_the_profile_only_reads() {
    let workspace = Workspace::new();
    let mut client = confined(&workspace, "workspace");
    let ran = sh(&mut client, "mkdir a && echo one > a/b && mv a/b c && cat c README.md");
    assert_eq!(
        (ran.code, &*ran.stdout),
        (0, &*format!("one\n{}", Workspace::README)),
        "{}",
        ran.stderr
    );
    assert_eq!(workspace.read("c"), "one\n");
    let mut reader = confined(&workspace, "read-only");
    if !holds(&mut reader, "view") {
        return;
    }
    let ran = sh(&mut reader, "cat c; echo two > c; rm c; echo t > /tmp/t && cat /tmp/t");
    assert_eq!(ran.stdout, "one\nt\n", "{}", ran.stderr);
    assert_eq!(workspace.read("c"), "one\n");
}

#[test]
fn no_file_that_runs_as_its_owner_outlives_a_program() {
    let workspace = Workspace::new();
    let mut client = confined(&workspace, "workspace");
    if !holds(&mut client, "seccomp") {
        return;
    }
    sh(&mut client, "cp /bin/true a; chmod u+s a; chmod 2755 a; chmod 6755 .");
    // By their numbers on x86_64: chmod, a nameless file, and a name for that.
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
fn what_decides_what_runs_later_is_neither_changed_nor_moved_away() {
    let workspace = Workspace::new().file("toolgate.toml", "").file(".mcp.json", "{}");
    let workspace = workspace.file(".git/config", "[core]\n").file(".git/hooks/x", "");
    let mut client = confined(&workspace, "workspace");
    if !holds(&mut client, "view") {
        return;
    }
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
fn what_a_run_leaves_in_tmp_and_home_is_gone_with_it() {
    let workspace = Workspace::new();
    let mut client = confined(&workspace, "workspace");
    if !holds(&mut client, "view") {
        return;
    }
    let ran =
        sh(&mut client, "echo x > $HOME/.bashrc && echo y > /tmp/y && cat $HOME/.bashrc /tmp/y");
    assert_eq!(ran.stdout, "x\ny\n", "{}", ran.stderr);
    let ran = sh(&mut client, "cat $HOME/.bashrc /tmp/y");
    assert_eq!(ran.stdout, "");
}

#[test]
fn further_folders_are_read_and_written_where_the_owner_says_so() {
    let workspace = Workspace::new();
    let outside = outside();
    let folder = outside.path().display().to_string();
    let launch = |setting| {
        let launch = Launch::over(&workspace).set("sandbox_profile", "workspace");
        Client::stdio(launch.set(setting, &folder), MODERN)
    };
    let mut reads = launch("sandbox_read");
    if !holds(&mut reads, "view") {
        return;
    }
    let ran = sh(&mut reads, &format!("cat {folder}/canary; echo x > {folder}/canary"));
    assert_eq!(ran.stdout, "canary-7f3a");
    assert_eq!(fs::read_to_string(outside.path().join("canary")).unwrap(), "canary-7f3a");
    let mut writes = launch("sandbox_write");
    let ran = sh(&mut writes, &format!("echo x > {folder}/canary"));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert_eq!(fs::read_to_string(outside.path().join("canary")).unwrap(), "x\n");
}

#[test]
fn a_program_and_a_folder_are_those_that_were_looked_up() {
    let workspace = Workspace::new().file("deep/er/x", "").link("to", "deep/er");
    workspace.put("script", "#!/bin/sh\necho \"$0 $1\"; pwd\n");
    fs::set_permissions(workspace.path("script"), PermissionsExt::from_mode(0o755)).unwrap();
    let mut client = confined(&workspace, "workspace");
    let input = json!({ "command": "../../script", "args": ["one"], "cwd": "to" });
    let ran = run(&mut client, input);
    let real = fs::canonicalize(workspace.path("deep/er")).unwrap();
    assert_eq!(ran.stdout, format!("../../script one\n{}\n", real.display()), "{}", ran.stderr);
    let away = TempDir::new().unwrap();
    fs::copy("/bin/true", away.path().join("away")).unwrap();
    let answer = client.call("exec_run", json!({ "command": away.path().join("away") }));
    let said = answer["result"].to_string();
    assert!(said.contains("sandbox.read"), "{said}");
}

#[test]
fn a_name_that_is_protected_is_taken_by_no_program_and_nothing_stands_there_afterwards() {
    let workspace = Workspace::new();
    let mut client = confined(&workspace, "workspace");
    if !holds(&mut client, "view") {
        return;
    }
    let names = [".vscode", ".claude", ".mcp.json", ".cursor", ".toolgate"];
    for name in names {
        let script = format!(
            "mkdir -p {name}/a; echo x > {name}/tasks.json; rmdir {name}; mv {name} there; \
             ln -s README.md {name}; echo x > {name}"
        );
        sh(&mut client, &script);
        assert!(!fs::exists(workspace.path(name)).unwrap(), "{name}");
    }
    assert!(!workspace.path("there").exists());
    // What a person's prompt would ask git about, which would run what is configured there.
    sh(&mut client, "git init -q .; mkdir -p .git; echo x > .git/config");
    let left = || {
        let all = fs::read_dir(workspace.root()).unwrap();
        all.map(|it| it.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(left(), ["README.md"]);
    // Git sees nothing of what stands at the names meanwhile.
    let launch = Launch::over(&workspace).set("sandbox_git", "write");
    let mut client = Client::stdio(launch, MODERN);
    let ran = sh(&mut client, "git init -q . && git status --porcelain --untracked-files=all");
    assert_eq!((ran.code, &*ran.stdout), (0, "?? README.md\n"), "{}", ran.stderr);
    assert_eq!(left().len(), 2, "{:?}", left());
}

#[test]
fn names_stay_taken_while_any_program_runs_and_are_swept_after_a_server_that_was_killed() {
    let workspace = Workspace::new();
    let long = json!({ "command": "sh", "args": ["-c", "touch begun; exec sleep 300"] });
    let mut first = Launch::over(&workspace).stdio();
    first.send(&call(1, "exec_run", long));
    wait_until("it runs", || workspace.path("begun").exists());
    let there = || workspace.path(".vscode").exists();
    if !there() {
        return eprintln!("NOT TRIED: this system lacks `view`");
    }
    // Another program that ends takes nothing away from the one that runs.
    first.ask(&call(2, "exec_run", json!({ "command": "true" })));
    assert!(there());
    first.signal(Signal::KILL);
    first.ended();
    // One name after the other is.
    wait_until("all are taken away", || !there() && !workspace.path(".cursor").exists());
    // What is left all the same is taken away by the next server, and nothing else is.
    fs::create_dir(workspace.path(".vscode")).unwrap();
    fs::set_permissions(workspace.path(".vscode"), Permissions::from_mode(0o555)).unwrap();
    fs::create_dir(workspace.path(".cursor")).unwrap();
    let mut second = Launch::over(&workspace).stdio();
    second.ask(&call(1, "files_list", json!({})));
    assert!(!there() && workspace.path(".cursor").exists());
}

#[test]
fn what_a_server_keeps_programs_from_another_does_not_take_away() {
    let workspace = Workspace::new();
    let long = json!({ "command": "sh", "args": ["-c", "touch begun; until [ -e go ]; do sleep 0.01; done; echo x > .mcp.json"] });
    let mut first = Launch::over(&workspace).stdio();
    first.send(&call(1, "exec_run", long));
    wait_until("it runs", || workspace.path("begun").exists());
    if !workspace.path(".mcp.json").exists() {
        return eprintln!("NOT TRIED: this system lacks `view`");
    }
    let mut second = confined(&workspace, "workspace");
    sh(&mut second, "true");
    assert!(workspace.path(".mcp.json").is_dir());
    workspace.put("go", "");
    let ended = first.receive();
    assert_ne!(ended["result"]["structuredContent"]["exit_code"], 0, "{ended}");
    wait_until("it is taken away", || !workspace.path(".mcp.json").exists());
}

#[test]
fn what_of_git_s_only_reads_runs_where_nothing_is_written() {
    let workspace = Workspace::new().file("a.txt", "one\n");
    let git = |args: &[&str]| {
        let mut git = std::process::Command::new("git");
        git.args(["-c", "user.name=a", "-c", "user.email=a@b"]).args(args);
        assert!(git.current_dir(workspace.root()).output().unwrap().status.success());
    };
    git(&["init", "-q"]);
    git(&["add", "."]);
    git(&["commit", "-qm", "one"]);
    // The one thing that git runs after all, since whoever serves allows it.
    workspace.put(".gitattributes", "*.txt filter=mark\n");
    git(&["config", "filter.mark.clean", "touch marked; cat"]);
    workspace.put("a.txt", "two\n");
    let launch = Launch::over(&workspace).set("git_filters", "true");
    let mut client = Client::stdio(launch, MODERN);
    if !holds(&mut client, "view") {
        return;
    }
    let status = client.call("git_status", json!({}));
    assert!(status["result"]["isError"] != true, "{status}");
    assert!(!workspace.path("marked").exists(), "{status}");
    let added = client.call("git_add", json!({ "paths": ["a.txt"] }));
    assert!(added["result"]["isError"] != true, "{added}");
    assert!(workspace.path("marked").exists(), "the filter was to run");
}
