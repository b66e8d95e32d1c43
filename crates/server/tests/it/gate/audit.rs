//! Tests of the audit log of real servers: kills leave it intact, and verification detects edits.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread::{scope, sleep};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{
    ServerLaunchOptions, TempWorkspace, binary, call, over_both, path, wait_long_for, wait_until,
};

/// Folder with an audit log that is kept when its servers stop, and the key of the log.
struct AuditLogFolder {
    folder: TempDir,
}

impl AuditLogFolder {
    fn new() -> Self {
        Self { folder: TempDir::with_prefix("toolgate-audit-").unwrap() }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("log/audit.jsonl")
    }

    fn key(&self) -> PathBuf {
        self.folder.path().join("audit.key")
    }

    /// Returns start options of a server that writes to this audit log.
    fn launch(&self, workspace: &TempWorkspace) -> ServerLaunchOptions {
        let launch = ServerLaunchOptions::over(workspace).set("audit_to", self.file().display());
        launch.set("audit_key", self.key().display())
    }

    fn verify(&self) -> (i32, String) {
        verify(&self.file(), &self.key())
    }

    #[track_caller]
    fn assert_intact(&self) -> String {
        let (code, output_text) = self.verify();
        assert_eq!(code, 0, "{output_text}");
        output_text
    }

    /// Returns the lines of the audit log, from the oldest file on.
    fn lines(&self) -> Vec<Value> {
        let aside = (1..100).rev().map(|number| format!("{}.{number}", self.file().display()));
        let files = aside.map(PathBuf::from).chain([self.file()]);
        let texts = files.filter_map(|file| fs::read_to_string(file).ok());
        let lines = texts.flat_map(|text| {
            // A torn record is not JSON.
            text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect::<Vec<_>>()
        });
        lines.collect()
    }

    fn tools(&self) -> Vec<String> {
        let tools = self.lines();
        tools.iter().filter_map(|line| line["tool"].as_str().map(str::to_owned)).collect()
    }
}

fn toolgate(args: &[&str]) -> Output {
    let home = TempDir::new().unwrap();
    let mut command = Command::new(binary());
    command.args(args).env_clear().env("PATH", path()).env("HOME", home.path());
    command.current_dir(home.path()).output().unwrap()
}

fn verify(file: &Path, key: &Path) -> (i32, String) {
    let file = file.to_str().unwrap();
    let key = key.to_str().unwrap();
    let output = toolgate(&["audit", "verify", file, "--key", key]);
    let output_text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(output_text).unwrap())
}

/// Returns a call of the tool `name`, which the server refuses at once and records under this name.
fn named_call(id: u64, name: &str) -> Value {
    call(id, name, json!({}))
}

#[test]
fn a_record_has_the_hash_of_its_input_and_the_server_that_wrote_it() {
    over_both(&TempWorkspace::new(), |client| {
        client.call("files_read", json!({ "path": "README.md" }));
        client.call("files_read", json!({ "path": "README.md" }));
        client.call("files_read", json!({ "path": "other.md" }));
        client.call("none", json!({ "long": "x".repeat(2 << 20) }));
        client.server().outcomes(4);
        let records = client.server().records();
        let hash = blake3::hash(br#"{"path":"README.md"}"#).to_hex().to_string();
        assert_eq!(records[0]["input"], hash);
        assert_eq!(records[0]["bytes_in"], 20);
        assert_eq!(records[1]["input"], hash);
        assert_ne!(records[2]["input"], hash);
        assert_eq!(
            (&records[3]["input"], &records[3]["bytes_in"]),
            (&json!("large"), &Value::Null)
        );
        let pid = format!("{}-", client.server().pid);
        for (record, seq) in records.iter().zip(1..) {
            assert_eq!(record["seq"], seq);
            assert_eq!(record["mac"].as_str().unwrap().len(), 64);
            assert!(record["server"].as_str().unwrap().starts_with(&pid), "{record}");
        }
    });
}

#[test]
fn a_log_is_verified_and_each_edit_is_reported_with_its_line() {
    let log = AuditLogFolder::new();
    let mut stdio = log.launch(&TempWorkspace::new()).stdio();
    for id in 1..=20 {
        stdio.ask(&named_call(id, &format!("tool-{id}")));
    }
    stdio.close_input();
    assert_eq!(stdio.wait_for_exit().code(), Some(0));
    assert!(log.assert_intact().contains("intact: lines 1 to 20, last mac "));

    let text = fs::read_to_string(log.file()).unwrap();
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let without = |at: usize| [&lines[..at], &lines[at + 1..]].concat().concat();
    let mut swapped = lines.clone();
    swapped.swap(4, 9);
    for (edited, seq) in [
        (text.replace("tool-7\"", "tool-8\""), 7),
        (text.replacen("unknown_tool", "ok", 1), 1),
        (without(2), 3),
        (without(19), 20),
        (format!("{text}{}", lines[19]), 21),
        (swapped.concat(), 5),
        (format!("{text}{{\"tool\":\"forged\",\"outcome\":\"ok\"}}\n"), 21),
        (lines[..10].concat(), 11),
    ] {
        fs::write(log.file(), edited).unwrap();
        let (code, output_text) = log.verify();
        assert_eq!(code, 1, "{output_text}");
        assert!(output_text.contains(&format!("(seq {seq})")), "not at {seq}: {output_text}");
    }
    fs::write(log.file(), &text).unwrap();
    log.assert_intact();

    // A changed key or one that others may read is refused.
    let secret = fs::read_to_string(log.key()).unwrap();
    let other = secret.replacen(&secret[..1], if secret.starts_with('a') { "b" } else { "a" }, 1);
    fs::write(log.key(), other).unwrap();
    assert_eq!(log.verify().0, 1);
    fs::write(log.key(), secret).unwrap();
    let open = Command::new("chmod").arg("644").arg(log.key()).status().unwrap();
    assert!(open.success());
    let (code, output_text) = log.verify();
    assert!(code == 2 && output_text.contains("chmod 600"), "{output_text}");
    assert_eq!(verify(&log.folder.path().join("none"), &log.key()).0, 2);
}

/// Starts 50 servers, five at once on one audit log, and kills each during a write.
#[test]
fn servers_killed_during_a_write_leave_an_intact_log() {
    let log = AuditLogFolder::new();
    let workspace = TempWorkspace::new();
    for round in 0..10_u64 {
        scope(|scope| {
            for one in 0..5_u64 {
                let launch = log.launch(&workspace);
                scope.spawn(move || {
                    let mut stdio = launch.stdio();
                    // An answer means that it has started.
                    stdio.ask(&named_call(0, "first"));
                    let mut input = stdio.take_input();
                    let name = "x".repeat(150);
                    let calls: String =
                        (1..=3000).map(|id| format!("{}\n", named_call(id, &name))).collect();
                    let writing = scope.spawn(move || {
                        // The server is killed meanwhile.
                        let _ = input.write_all(calls.as_bytes());
                    });
                    sleep(Duration::from_millis(round * 7 + one * 13));
                    stdio.signal(Signal::KILL);
                    stdio.wait_for_exit();
                    drop(stdio);
                    writing.join().unwrap();
                });
            }
        });
        log.assert_intact();
    }
    let mut stdio = log.launch(&workspace).stdio();
    stdio.ask(&named_call(1, "last"));
    stdio.close_input();
    stdio.wait_for_exit();
    log.assert_intact();
    assert_eq!(log.tools().last().unwrap(), "last");
}

#[test]
fn eight_servers_on_one_log_lose_no_record_and_leave_it_intact() {
    const EACH: u64 = 250;
    let log = AuditLogFolder::new();
    let workspace = TempWorkspace::new();
    scope(|scope| {
        for server in 0..8 {
            let launch = log.launch(&workspace);
            scope.spawn(move || {
                let mut stdio = launch.stdio();
                for id in 1..=EACH {
                    stdio.send(&named_call(id, &format!("{server}-{id}")));
                }
                for id in 1..=EACH {
                    stdio.answer(id);
                }
                stdio.close_input();
                assert_eq!(stdio.wait_for_exit().code(), Some(0));
            });
        }
    });
    let output_text = log.assert_intact();
    assert!(output_text.contains("lines 1 to 2000"), "{output_text}");
    let mut tools = log.tools();
    tools.sort();
    tools.dedup();
    assert_eq!(tools.len(), 2000);
}

#[test]
fn a_strict_log_has_every_call_answered_before_the_server_was_killed() {
    let log = AuditLogFolder::new();
    let workspace = TempWorkspace::new();
    for round in 0..12_u64 {
        let mut stdio = log.launch(&workspace).set("audit_strict", true).stdio();
        for id in 1..=32 {
            stdio.send(&named_call(id, &format!("{round}-{id}")));
        }
        let answered: Vec<_> =
            (0..=round * 2).map(|_| stdio.receive()["id"].as_u64().unwrap()).collect();
        stdio.signal(Signal::KILL);
        stdio.wait_for_exit();
        let tools = log.tools();
        for id in answered {
            let name = format!("{round}-{id}");
            assert!(tools.contains(&name), "{name} was answered and has no record");
        }
    }
    log.assert_intact();
}

/// Mounted file system of 256 KiB, which stands for a small disk.
struct SmallTestDisk(TempDir);

impl SmallTestDisk {
    fn new() -> Result<Self, String> {
        let folder = TempDir::with_prefix("toolgate-disk-").unwrap();
        let args = ["-t", "tmpfs", "-o", "size=256k", "toolgate-test"];
        let mounted = Command::new("mount").args(args).arg(folder.path()).output();
        match mounted {
            Ok(output) if output.status.success() => Ok(Self(folder)),
            Ok(output) => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
            Err(err) => Err(err.to_string()),
        }
    }

    /// Fills the small disk.
    fn fill(&self) {
        let mut file = fs::File::create(self.0.path().join("filler")).unwrap();
        while file.write(&[0; 4096]).is_ok_and(|written| written > 0) {}
    }

    fn make_room(&self) {
        fs::remove_file(self.0.path().join("filler")).unwrap();
    }
}

impl Drop for SmallTestDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[test]
fn no_call_succeeds_with_a_strict_log_on_a_full_disk() {
    let disk = match SmallTestDisk::new() {
        Ok(disk) => disk,
        Err(why) => return eprintln!("SKIPPED: no small disk can be mounted here: {why}"),
    };
    let log = AuditLogFolder::new();
    let workspace = TempWorkspace::new();
    let file = disk.0.path().join("audit.jsonl");
    let launch = log.launch(&workspace).set("audit_to", file.display());
    let mut stdio = launch.set("audit_strict", true).stdio();
    let read = |id: u64| call(id, "files_read", json!({ "path": "README.md" }));
    assert_ne!(stdio.ask(&read(1))["result"]["isError"], true);

    disk.fill();
    // The last page of the file has room for a few dozen records.
    let mut refused = 0;
    for id in 2..=60 {
        let answer = stdio.ask(&read(id));
        if answer["result"]["isError"] == true {
            let output_text = answer.to_string();
            assert!(output_text.contains("audit"), "{output_text}");
            refused += 1;
            if refused == 2 {
                break;
            }
        } else {
            let seq = fs::read_to_string(&file).unwrap().lines().count() as u64;
            assert!(seq >= id, "{id} was answered and has no record");
        }
    }
    assert_eq!(refused, 2, "calls succeed on a full disk");

    disk.make_room();
    wait_long_for(Duration::from_secs(30), "calls run again", || {
        (stdio.ask(&read(100))["result"]["isError"] != true).then_some(())
    });
    stdio.close_input();
    stdio.wait_for_exit();
    let (code, output_text) = verify(&file, &log.key());
    assert_eq!(code, 0, "{output_text}");
}

#[test]
fn records_made_on_a_full_disk_are_written_once_there_is_space() {
    let disk = match SmallTestDisk::new() {
        Ok(disk) => disk,
        Err(why) => return eprintln!("SKIPPED: no small disk can be mounted here: {why}"),
    };
    let log = AuditLogFolder::new();
    let workspace = TempWorkspace::new();
    let file = disk.0.path().join("audit.jsonl");
    let mut stdio = log.launch(&workspace).set("audit_to", file.display()).stdio();
    stdio.ask(&named_call(1, "first"));
    disk.fill();
    for id in 2..=100 {
        stdio.ask(&named_call(id, "later"));
    }
    wait_until("it is logged", || stdio.log().contains("cannot be written; trying again"));
    let (code, output_text) = verify(&file, &log.key());
    assert_eq!(code, 0, "{output_text}");
    disk.make_room();
    wait_until("all are written", || {
        fs::read_to_string(&file).is_ok_and(|text| text.lines().count() == 100)
    });
    let (code, output_text) = verify(&file, &log.key());
    assert!(code == 0 && output_text.contains("lines 1 to 100"), "{output_text}");
}

#[test]
fn audit_tail_prints_the_last_records_unchanged_as_json() {
    let log = AuditLogFolder::new();
    let workspace = TempWorkspace::new();
    let mut stdio = log.launch(&workspace).stdio();
    for id in 1..=30 {
        stdio.ask(&named_call(id, &format!("tool-{id}")));
    }
    stdio.close_input();
    stdio.wait_for_exit();
    let home = TempDir::new().unwrap();
    let mut command = Command::new(binary());
    command.args(["audit", "tail", "-n", "3", "--json"]).env_clear().env("HOME", home.path());
    command.env("TOOLGATE_AUDIT_TO", log.file()).current_dir(home.path());
    let output = command.output().unwrap();
    let text = fs::read_to_string(log.file()).unwrap();
    let last: Vec<_> = text.split_inclusive('\n').skip(27).collect();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), last.concat());
}
