//! Tests of helper processes that prepare a sandbox in advance: the prepared file system is up to
//! date when a program starts, and no helper is left behind.

use std::env::temp_dir;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

use super::*;
use crate::support::{StdioServerProcess, TestClientTransport, binary, wait_for, wait_until};

/// Returns the process ids of the sandbox helpers of the server process `server`, including those
/// that wait for the next program.
fn helpers(server: u32) -> Vec<i32> {
    let is_helper = |pid: i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1));
        let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        parent == Some(&*server.to_string()) && line.starts_with("toolgate-sandbox")
    };
    let names = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.file_name());
    let pids = names.filter_map(|name| name.to_str()?.parse().ok());
    pids.filter(|pid| is_helper(*pid)).collect()
}

/// Waits until sandbox helpers of the server process `server` stand by, and returns the paths of the
/// executables that they run.
fn helper_executables(server: u32) -> Vec<PathBuf> {
    wait_for("a helper stands by", || {
        let pids = helpers(server).into_iter();
        let found: Vec<_> =
            pids.flat_map(|pid| fs::read_link(format!("/proc/{pid}/exe"))).collect();
        (!found.is_empty()).then_some(found)
    })
}

/// Returns the connection of a client that started its own server.
fn stdio(client: &mut TestMcpClient) -> &mut StdioServerProcess {
    let TestClientTransport::Stdio(stdio) = &mut client.wire else { unreachable!() };
    stdio
}

#[test]
fn a_later_program_sees_the_files_at_its_start() {
    // Each program has its own `/tmp`. Other folders are prepared by its helper.
    for parent in [temp_dir(), PathBuf::from(env!("CARGO_TARGET_TMPDIR"))] {
        fs::create_dir_all(&parent).unwrap();
        check_view_is_current(&TempDir::with_prefix_in("toolgate-it-", parent).unwrap());
    }
}

fn check_view_is_current(folder: &TempDir) {
    let workspace = TempWorkspace::new();
    let shared = folder.path().join("shared");
    let put = |text: &str| {
        fs::create_dir(&shared).unwrap();
        fs::write(shared.join("file"), text).unwrap();
    };
    put("first");
    let launch = ServerLaunchOptions::over(&workspace).set("sandbox_read", shared.display());
    let Some(mut client) = with_layer(TestMcpClient::stdio(launch, MODERN), "view") else { return };
    let script = format!("cat {}", shared.join("file").display());
    assert_eq!(sh(&mut client, &script).stdout, "first");
    fs::write(shared.join("file"), "changed").unwrap();
    assert_eq!(sh(&mut client, &script).stdout, "changed");
    // Also another folder with the same name, and no folder.
    fs::rename(&shared, folder.path().join("away")).unwrap();
    put("another");
    assert_eq!(sh(&mut client, &script).stdout, "another");
    fs::remove_dir_all(&shared).unwrap();
    assert_ne!(sh(&mut client, &script).code, 0);
    put("again");
    assert_eq!(sh(&mut client, &script).stdout, "again");
}

#[test]
fn a_process_that_was_prepared_while_a_folder_was_replaced_runs_no_program_after_its_return() {
    // Each program has its own `/tmp`, in which its process mounts visible folders.
    let folder = TempDir::with_prefix_in("toolgate-it-", temp_dir()).unwrap();
    let workspace = TempWorkspace::new();
    let paths = ["shared", "first", "second"].map(|name| folder.path().join(name));
    let [shared, first, second] = &paths;
    for (path, text) in [(shared, "first"), (second, "second")] {
        fs::create_dir(path).unwrap();
        fs::write(path.join("file"), text).unwrap();
    }
    let launch = ServerLaunchOptions::over(&workspace).set("sandbox_read", shared.display());
    let Some(mut client) = with_layer(TestMcpClient::stdio(launch, MODERN), "view") else { return };
    let server = stdio(&mut client).take_child(|child| child.id());
    let script = format!("cat {}", shared.join("file").display());
    assert_eq!(sh(&mut client, &script).stdout, "first");
    let own_space = fs::read_link("/proc/self/ns/pid").unwrap();
    let is_helper = |pid: &i32| {
        fs::read_link(format!("/proc/{pid}/ns/pid")).is_ok_and(|space| space == own_space)
    };
    let is_prepared = || {
        helpers(server).iter().any(|pid| {
            let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
            !is_helper(pid) && mounts.contains(&*shared.to_string_lossy())
        })
    };
    let helper = wait_for("a helper stands by", || helpers(server).into_iter().find(is_helper));
    // The second program needs no helper if its process is prepared.
    wait_until("the process of the second program is prepared", is_prepared);
    let helper = rustix::process::Pid::from_raw(helper).unwrap();
    rustix::process::kill_process(helper, Signal::STOP).unwrap();
    // The stopped helper cannot prepare the process of the third program.
    assert_eq!(sh(&mut client, &script).stdout, "first");
    fs::rename(shared, first).unwrap();
    fs::rename(second, shared).unwrap();
    rustix::process::kill_process(helper, Signal::CONT).unwrap();
    wait_until("the process of the third program is prepared", is_prepared);
    fs::rename(shared, second).unwrap();
    fs::rename(first, shared).unwrap();
    assert_eq!(sh(&mut client, &script).stdout, "first");
}

#[test]
fn a_killed_helper_is_replaced_and_none_outlives_the_server() {
    let workspace = TempWorkspace::new();
    let Some(mut client) = confined_with_layer(&workspace, "view") else { return };
    let server = stdio(&mut client).take_child(|child| child.id());
    assert_eq!(sh(&mut client, "echo one").stdout, "one\n");
    let first =
        wait_for("a helper stands by", || Some(helpers(server)).filter(|found| !found.is_empty()));
    for pid in &first {
        let pid = rustix::process::Pid::from_raw(*pid).unwrap();
        rustix::process::kill_process(pid, Signal::KILL).unwrap();
    }
    assert_eq!(sh(&mut client, "echo two").stdout, "two\n");
    let mut second = Vec::new();
    wait_until("a new helper stands by", || {
        second = helpers(server);
        !second.is_empty()
    });
    assert!(second.iter().all(|pid| !first.contains(pid)), "{first:?} {second:?}");
    drop(client);
    wait_until("no helper is left", || {
        second.iter().all(|pid| !fs::exists(format!("/proc/{pid}")).unwrap())
    });
}

#[test]
fn helpers_run_the_small_program_beside_the_server() {
    let refused = fs::read_to_string("/proc/sys/vm/memfd_noexec").is_ok_and(|it| it.trim() == "2");
    if refused {
        return eprintln!("NOT TRIED: this system executes no files in memory");
    }
    let small = env!("CARGO_BIN_EXE_toolgate-sandbox");
    assert_eq!(binary().with_file_name("toolgate-sandbox"), PathBuf::from(small));
    let workspace = TempWorkspace::new();
    let mut client = confined_client(&workspace, "workspace");
    assert_eq!(sh(&mut client, "echo one").stdout, "one\n");
    let server = stdio(&mut client).take_child(|child| child.id());
    let found = helper_executables(server);
    let is_small = |it: &PathBuf| it.to_string_lossy().starts_with("/memfd:toolgate-sandbox");
    assert!(found.iter().all(is_small), "{found:?}");
    // A person who starts it gets nothing.
    let status = Command::new(small).status().unwrap();
    assert_eq!(status.code(), Some(127));
}

#[test]
fn helpers_run_the_server_itself_if_the_small_program_is_missing_or_invalid() {
    let other_build = fs::read("/bin/true").unwrap();
    for small in [None, Some(&b"#!/bin/sh\nexit 0\n"[..]), Some(&other_build[..])] {
        let folder = env!("CARGO_TARGET_TMPDIR");
        fs::create_dir_all(folder).unwrap();
        let folder = TempDir::with_prefix_in("toolgate-it-", folder).unwrap();
        let server = folder.path().join("toolgate");
        fs::hard_link(binary(), &server).unwrap();
        if let Some(small) = small {
            let at = folder.path().join("toolgate-sandbox");
            fs::write(&at, small).unwrap();
            fs::set_permissions(&at, fs::metadata(&server).unwrap().permissions()).unwrap();
        }
        let workspace = TempWorkspace::new();
        let mut client =
            TestMcpClient::stdio(ServerLaunchOptions::over(&workspace).copy(&server), MODERN);
        assert_eq!(sh(&mut client, "echo one").stdout, "one\n");
        let id = stdio(&mut client).take_child(|child| child.id());
        let found = helper_executables(id);
        assert!(found.iter().all(|it| *it == server), "{found:?}");
    }
}

#[test]
fn concurrent_programs_have_separate_helpers_and_views() {
    let workspace = TempWorkspace::new();
    let Some(mut client) = confined_with_layer(&workspace, "view") else { return };
    let calls = ["one", "two", "three"].map(|own| {
        let script = format!("echo {own} >> /tmp/own; sleep 0.3; cat /tmp/own");
        let arguments = json!({ "command": "sh", "args": ["-c", script] });
        (own, client.request("tools/call", json!({ "name": "exec_run", "arguments": arguments })))
    });
    let stdio = stdio(&mut client);
    calls.iter().for_each(|(_, call)| stdio.send(call));
    for (own, call) in calls {
        let answer = stdio.answer(call["id"].clone());
        assert_eq!(answer["result"]["structuredContent"]["stdout"], format!("{own}\n"), "{answer}");
    }
}

#[test]
fn a_workspace_in_shared_memory_is_visible_beside_the_files_of_the_program() {
    let workspace = TempDir::with_prefix_in("toolgate-it-", "/dev/shm").unwrap();
    fs::write(workspace.path().join("file"), "kept").unwrap();
    let Some(mut client) =
        with_layer(TestMcpClient::stdio(ServerLaunchOptions::at(workspace.path()), MODERN), "view")
    else {
        return;
    };
    let result = sh(&mut client, "cat file; echo x > /dev/shm/other && ls /dev/shm; echo y > new");
    let name = workspace.path().file_name().unwrap().to_str().unwrap();
    let mut seen: Vec<_> = result.stdout.strip_prefix("kept").unwrap_or_default().lines().collect();
    seen.sort_unstable();
    assert_eq!(seen, ["other", name], "{}", result.stderr);
    assert_eq!(fs::read_to_string(workspace.path().join("new")).unwrap(), "y\n");
    assert!(!fs::exists("/dev/shm/other").unwrap());
}

#[test]
fn a_mount_created_between_two_programs_is_visible_to_the_second() {
    let workspace = TempWorkspace::new();
    let at = workspace.path("mounted");
    fs::create_dir(&at).unwrap();
    let mut client = TestMcpClient::stdio(ServerLaunchOptions::over(&workspace), MODERN);
    assert_eq!(sh(&mut client, "ls mounted").stdout, "");
    let mounted = MountedMemoryFs::memory(&at);
    if mounted.is_none() {
        eprintln!("SKIPPED: this user may not mount anything");
        return;
    }
    fs::write(at.join("file"), "here").unwrap();
    assert_eq!(sh(&mut client, "cat mounted/file").stdout, "here");
    // It has the same restrictions as older mounts.
    if has_layer(&mut client, "view") {
        let options = sh(&mut client, "grep mounted /proc/self/mountinfo").stdout;
        assert!(options.contains("nosuid") && options.contains("nodev"), "{options}");
    }
    drop(mounted);
    assert_eq!(sh(&mut client, "ls mounted").stdout, "");
}

#[test]
fn a_mount_created_while_a_program_runs_is_visible_to_the_next() {
    let workspace = TempWorkspace::new();
    let at = workspace.path("mounted");
    fs::create_dir(&at).unwrap();
    let mut client = TestMcpClient::stdio(ServerLaunchOptions::over(&workspace), MODERN);
    // It waits for a file that the next program creates after the mount.
    let script = "touch started; while [ ! -e ended ]; do sleep 0.02; done";
    let arguments = json!({ "command": "sh", "args": ["-c", script] });
    let long = client.request("tools/call", json!({ "name": "exec_run", "arguments": arguments }));
    stdio(&mut client).send(&long);
    let started = workspace.path("started");
    wait_until("the first program runs", || started.exists());
    let Some(_mounted) = MountedMemoryFs::memory(&at) else {
        eprintln!("SKIPPED: this user may not mount anything");
        fs::write(workspace.path("ended"), "").unwrap();
        return;
    };
    fs::write(at.join("file"), "here").unwrap();
    assert_eq!(sh(&mut client, "cat mounted/file; touch ended").stdout, "here");
    let answer = stdio(&mut client).answer(long["id"].clone());
    assert_eq!(answer["result"]["structuredContent"]["exit_code"], 0, "{answer}");
    // The helper of either program may run the next one.
    for _ in 0..3 {
        assert_eq!(sh(&mut client, "cat mounted/file").stdout, "here");
    }
}

/// Mounted in-memory file system. Dropping this value unmounts it.
struct MountedMemoryFs(PathBuf);

impl MountedMemoryFs {
    fn memory(at: &std::path::Path) -> Option<Self> {
        let mut mount = Command::new("mount");
        let mount = mount.args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"]).arg(at).output();
        mount.is_ok_and(|it| it.status.success()).then(|| Self(at.to_owned()))
    }
}

impl Drop for MountedMemoryFs {
    fn drop(&mut self) {
        let gone = Command::new("umount").arg("--lazy").arg(&self.0).status();
        assert!(gone.is_ok_and(|status| status.success()), "{:?} is still mounted", self.0);
    }
}
