//! The file of keys: written by the command line, read by servers that run.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Launch, Post, Served, Workspace, binary, initialize, path, wait_until};

/// A folder for a file of keys.
struct Kept {
    folder: TempDir,
}

impl Kept {
    fn new() -> Self {
        Self { folder: TempDir::with_prefix("toolgate-keys-").unwrap() }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("keys.toml")
    }

    /// `toolgate key WORDS`: its code, what it printed and what it said.
    fn key(&self, words: &[&str]) -> (i32, String, String) {
        let mut command = Command::new(binary());
        command.env_clear().env("PATH", path()).env("TOOLGATE_SERVER_KEYS_FILE", self.file());
        let done = command.arg("key").args(words).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap().trim_end().to_owned();
        (done.status.code().unwrap(), text(done.stdout), text(done.stderr))
    }

    /// A key that was made so.
    fn made(&self, words: &[&str]) -> String {
        let (code, key, said) = self.key(words);
        assert_eq!(code, 0, "{said}");
        assert!(key.starts_with("toolgate_") && key.len() == 73 && !said.contains(&key), "{said}");
        key
    }

    fn listed(&self) -> Vec<Value> {
        let (_, json, _) = self.key(&["list", "--json"]);
        serde_json::from_str(&json).unwrap()
    }

    fn served(&self) -> Served {
        Launch::over(&Workspace::new()).set("server_keys_file", self.file().display()).served()
    }
}

/// What a request with `key` is answered with.
fn status(served: &Served, key: &str) -> u16 {
    let post = Post::mcp(&initialize(0, "2025-06-18"));
    served.send(&post.with("Authorization", &format!("Bearer {key}"))).status
}

#[test]
fn a_key_that_is_made_is_known_and_one_that_is_revoked_is_not_while_the_server_runs() {
    let kept = Kept::new();
    let served = kept.served();
    let bare = || served.send(&Post::mcp(&initialize(0, "2025-06-18"))).status;
    assert_eq!(bare(), 200, "without a key nobody is asked");
    let ada = kept.made(&["new", "ada"]);
    wait_until("who has no key is turned away", || bare() == 401);
    assert_eq!(status(&served, &ada), 200);
    let bob = kept.made(&["new", "bob"]);
    wait_until("the new key is known", || status(&served, &bob) == 200);
    let prefix = kept.listed()[0]["sha256"].as_str().unwrap()[..8].to_owned();
    assert_eq!(kept.key(&["revoke", &prefix]).0, 0);
    // Asked so often, it is told to wait.
    wait_until("the revoked key is not", || status(&served, &ada) != 200);
    wait_until("the other is looked at, and known", || status(&served, &bob) == 200);
    assert_eq!(kept.key(&["revoke", "--name", "bob"]).0, 0);
    wait_until("nobody is known", || status(&served, &bob) != 200);
    fs::remove_file(kept.file()).unwrap();
    wait_until("it was read again", || {
        bare() == 401 && served.log().contains("was read again: 0 keys")
    });
    assert_eq!(bare(), 401, "a file that is taken away opens no door");
}

#[test]
fn a_key_that_is_rotated_runs_out_and_the_next_has_its_roles() {
    let kept = Kept::new();
    let first = kept.made(&["new", "ci", "--role", "builder"]);
    let next = kept.made(&["rotate", "ci", "--overlap", "0s"]);
    let listed = kept.listed();
    assert_eq!(listed[1]["roles"], json!(["builder"]));
    assert!(listed[0]["expires"].is_string() && listed[1]["expires"].is_null(), "{listed:?}");
    let served = kept.served();
    // Whoever has a key that ran out guesses nothing.
    for _ in 0..12 {
        assert_eq!(status(&served, &first), 401);
    }
    assert_eq!(status(&served, &next), 200);
    let later = kept.made(&["rotate", "ci"]);
    wait_until("the newest is known", || status(&served, &later) == 200);
    assert_eq!(status(&served, &next), 200, "it is good for a day more");
    assert_eq!(kept.key(&["rotate", "nobody"]).0, 2);
    let limited = kept.made(&["new", "limited", "--expires", "90d"]);
    wait_until("it is known", || status(&served, &limited) == 200);
    assert_eq!(fs::metadata(kept.file()).unwrap().permissions().mode() & 0o777, 0o600);
    let text = fs::read_to_string(kept.file()).unwrap();
    for key in [first, next, later, limited] {
        assert!(!text.contains(&key) && !served.log().contains(&key));
    }
}

#[test]
fn a_file_of_keys_that_others_could_have_written_is_not_believed() {
    let kept = Kept::new();
    let ada = kept.made(&["new", "ada"]);
    let served = kept.served();
    let set = |mode| {
        fs::set_permissions(kept.file(), fs::Permissions::from_mode(mode)).unwrap();
    };
    let text = fs::read_to_string(kept.file()).unwrap();
    let stranger = "0".repeat(63) + "1";
    fs::write(kept.file(), format!("{text}\n[[keys]]\nname = \"eve\"\nsha256 = \"{stranger}\"\n"))
        .unwrap();
    set(0o666);
    wait_until("it is told", || {
        status(&served, &ada);
        served.log().contains("can be written by others")
    });
    assert_eq!(status(&served, &ada), 200, "who was known stays so");
    // No server begins with it.
    let refused = |told: &str| {
        let keys = kept.file().display().to_string();
        let launch = Launch::over(&Workspace::new()).set("server_keys_file", keys);
        let server = launch.serving(&["--listen", "127.0.0.1:0"]);
        assert_eq!(server.ended().code(), Some(2));
        wait_until(told, || server.log().contains(told));
    };
    refused("can be written by others");
    set(0o600);
    let file = kept.file();
    let real = kept.folder.path().join("real.toml");
    fs::rename(&file, &real).unwrap();
    symlink(&real, &file).unwrap();
    refused("since it is a link");
    fs::remove_file(&file).unwrap();
    fs::write(&file, "[[keys]]\nname = \"ada\"\nsha256 = \"toolgate_secret\"\n").unwrap();
    set(0o600);
    refused("64 hexadecimal digits");
    fs::write(&file, "[[keys]]\nname = \"ada\"\nkey = \"toolgate_secret\"\n").unwrap();
    refused("is not sound in line 3");
}

#[test]
fn keys_that_are_made_at_the_same_time_are_all_kept() {
    let kept = Kept::new();
    std::thread::scope(|scope| {
        for nth in 0..8 {
            let kept = &kept;
            scope.spawn(move || kept.made(&["new", &format!("caller-{nth}")]));
        }
    });
    assert_eq!(kept.listed().len(), 8);
    let (code, _, said) = kept.key(&["revoke", "abc"]);
    assert_eq!(code, 2, "{said}");
    for name in ["local", "http", "a b", "a:b", ""] {
        assert_eq!(kept.key(&["new", name]).0, 2, "{name}");
    }
    let (_, table, _) = kept.key(&["list"]);
    assert!(table.starts_with("DIGEST") && table.contains("caller-7"), "{table}");
}

#[test]
fn beyond_loopback_nothing_is_served_without_a_credential_and_encryption() {
    let kept = Kept::new();
    let launch = || {
        let launch = Launch::over(&Workspace::new());
        launch.set("server_keys_file", kept.file().display())
    };
    let refused = |launch: Launch, flags: &[&str], told: &str| {
        let server = launch.serving(flags);
        assert_eq!(server.ended().code(), Some(2), "{}", server.log());
        wait_until(told, || server.log().contains(told));
    };
    for address in ["0.0.0.0:0", "[::]:0"] {
        let listen = ["--listen", address];
        refused(launch(), &listen, "no credential is configured");
        refused(launch().set("server_plaintext", true), &listen, "no credential is configured");
    }
    let config = "[[listen]]\naddr = \"0.0.0.0:0\"\ndialect = \"mira\"\n";
    let own = Launch::over(&Workspace::new().file("toolgate.toml", config));
    refused(own, &["--listen", "127.0.0.1:0"], "no credential is configured");
    let ada = kept.made(&["new", "ada"]);
    refused(launch(), &["--listen", "0.0.0.0:0"], "come unencrypted");
    let launch = launch().set("server_plaintext", true);
    let server = launch.serving(&["--listen", "0.0.0.0:0"]);
    let port = crate::support::wait_for("it says where it listens", || {
        let log = server.log();
        let (_, rest) = log.split_once(" at http://0.0.0.0:")?;
        rest.split_once("/mcp\n")?.0.parse::<u16>().ok()
    });
    let served = Served { addr: ([127, 0, 0, 1], port).into(), server };
    let host = format!("127.0.0.1:{port}");
    let post = Post::mcp(&initialize(0, "2025-06-18")).with("host", &host);
    assert_eq!(served.send(&post).status, 401);
    let post = post.with("Authorization", &format!("Bearer {ada}"));
    assert_eq!(served.send(&post).status, 200);
}
