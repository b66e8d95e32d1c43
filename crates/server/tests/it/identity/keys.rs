//! Tests of the key file: the command line writes it, and running servers read it.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{
    HttpServerProcess, ServerLaunchOptions, TempWorkspace, TestHttpRequest, binary, initialize,
    path, wait_until,
};

/// Temporary folder with a file of API keys.
struct KeyFileFolder {
    folder: TempDir,
}

impl KeyFileFolder {
    fn new() -> Self {
        Self { folder: TempDir::with_prefix("toolgate-keys-").unwrap() }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("keys.toml")
    }

    /// Runs `toolgate key` with `args`. Returns its exit code, standard output and standard error.
    fn key(&self, args: &[&str]) -> (i32, String, String) {
        let mut command = Command::new(binary());
        command.env_clear().env("PATH", path()).env("TOOLGATE_SERVER_KEYS_FILE", self.file());
        let done = command.arg("key").args(args).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap().trim_end().to_owned();
        (done.status.code().unwrap(), text(done.stdout), text(done.stderr))
    }

    /// Runs `toolgate key` with `args`, and returns the API key that it created.
    fn create(&self, args: &[&str]) -> String {
        let (code, key, err) = self.key(args);
        assert_eq!(code, 0, "{err}");
        assert!(key.starts_with("toolgate_") && key.len() == 73 && !err.contains(&key), "{err}");
        key
    }

    fn list(&self) -> Vec<Value> {
        let (_, json, _) = self.key(&["list", "--json"]);
        serde_json::from_str(&json).unwrap()
    }

    fn served(&self) -> HttpServerProcess {
        ServerLaunchOptions::over(&TempWorkspace::new())
            .set("server_keys_file", self.file().display())
            .served()
    }
}

/// Returns the HTTP status of a request with the API key `key`.
fn status(served: &HttpServerProcess, key: &str) -> u16 {
    let post = TestHttpRequest::mcp(&initialize(0, "2025-06-18"));
    served.send(&post.with("Authorization", &format!("Bearer {key}"))).status
}

#[test]
fn a_misspelled_command_or_an_invalid_name_is_refused_with_advice() {
    let folder = KeyFileFolder::new();
    for (args, expected) in [
        (
            &["nwe", "ada"][..],
            "`nwe` is not a command of `toolgate key`; did you mean `toolgate key new ada`?",
        ),
        (&["create", "ada"], "the commands are new, list, rotate, revoke"),
        (&["new", "ada b"], "`ada b` is not a valid caller name"),
    ] {
        let (code, key, err) = folder.key(args);
        assert!(code == 2 && key.is_empty() && err.contains(expected), "{args:?}: {err}");
    }
    let (code, _, err) = folder.key(&["nwe"]);
    assert!(code == 0 && err.contains("run `toolgate key new`"), "{err}");
    assert!(!folder.file().exists());
}

#[test]
fn a_running_server_accepts_new_keys_and_rejects_revoked_ones() {
    let folder = KeyFileFolder::new();
    let served = folder.served();
    let bare = || served.send(&TestHttpRequest::mcp(&initialize(0, "2025-06-18"))).status;
    assert_eq!(bare(), 200, "without keys no credential is needed");
    let ada = folder.create(&["new", "ada"]);
    wait_until("a request without a key is refused", || bare() == 401);
    assert_eq!(status(&served, &ada), 200);
    let bob = folder.create(&["new", "bob"]);
    wait_until("the new key is accepted", || status(&served, &bob) == 200);
    let prefix = folder.list()[0]["sha256"].as_str().unwrap()[..8].to_owned();
    assert_eq!(folder.key(&["revoke", &prefix]).0, 0);
    wait_until("the revoked key is rejected", || status(&served, &ada) != 200);
    wait_until("the other key is still accepted", || status(&served, &bob) == 200);
    assert_eq!(folder.key(&["revoke", "--name", "bob"]).0, 0);
    wait_until("no key is accepted", || status(&served, &bob) != 200);
    fs::remove_file(folder.file()).unwrap();
    wait_until("the file is read again", || {
        bare() == 401 && served.log().contains("was read again: 0 keys")
    });
    assert_eq!(bare(), 401, "removing the file does not open the server");
}

#[test]
fn a_revoked_key_is_not_a_guess_before_or_after_a_restart() {
    let folder = KeyFileFolder::new();
    let ada = folder.create(&["new", "ada"]);
    let bob = folder.create(&["new", "bob"]);
    let served = folder.served();
    assert_eq!((status(&served, &ada), status(&served, &bob)), (200, 200));
    assert_eq!(folder.key(&["revoke", "--name", "ada"]).0, 0);
    wait_until("the revoked key is rejected", || status(&served, &ada) == 401);
    // Somebody removes the other entry by hand.
    let text = fs::read_to_string(folder.file()).unwrap();
    let (rest, _) = text.split_once("[[keys]]").unwrap();
    fs::write(folder.file(), rest).unwrap();
    wait_until("the removed key is rejected", || status(&served, &bob) == 401);
    for key in [&ada, &bob].repeat(6) {
        assert_eq!(status(&served, key), 401);
    }
    assert!(folder.list().is_empty());
    let restarted = folder.served();
    for _ in 0..11 {
        assert_eq!(status(&restarted, &ada), 401);
    }
    assert!(!served.log().contains("invalid credentials"), "{}", served.log());
}

#[test]
fn a_rotated_key_expires_and_the_next_key_has_its_roles() {
    let folder = KeyFileFolder::new();
    let first = folder.create(&["new", "ci", "--role", "builder"]);
    let next = folder.create(&["rotate", "ci", "--overlap", "0s"]);
    let listed = folder.list();
    assert_eq!(listed[1]["roles"], json!(["builder"]));
    assert!(listed[0]["expires"].is_string() && listed[1]["expires"].is_null(), "{listed:?}");
    let served = folder.served();
    // An expired key is not a guess.
    for _ in 0..12 {
        assert_eq!(status(&served, &first), 401);
    }
    assert_eq!(status(&served, &next), 200);
    let later = folder.create(&["rotate", "ci"]);
    wait_until("the newest key is accepted", || status(&served, &later) == 200);
    assert_eq!(status(&served, &next), 200, "the old key is valid for another day");
    assert_eq!(folder.key(&["rotate", "nobody"]).0, 2);
    let limited = folder.create(&["new", "limited", "--expires", "90d"]);
    wait_until("the key is accepted", || status(&served, &limited) == 200);
    assert_eq!(fs::metadata(folder.file()).unwrap().permissions().mode() & 0o777, 0o600);
    let text = fs::read_to_string(folder.file()).unwrap();
    for key in [first, next, later, limited] {
        assert!(!text.contains(&key) && !served.log().contains(&key));
    }
}

#[test]
fn a_key_file_that_others_can_write_is_not_used() {
    let folder = KeyFileFolder::new();
    let ada = folder.create(&["new", "ada"]);
    let served = folder.served();
    let set = |mode| {
        fs::set_permissions(folder.file(), fs::Permissions::from_mode(mode)).unwrap();
    };
    let text = fs::read_to_string(folder.file()).unwrap();
    let stranger = "0".repeat(63) + "1";
    fs::write(
        folder.file(),
        format!("{text}\n[[keys]]\nname = \"eve\"\nsha256 = \"{stranger}\"\n"),
    )
    .unwrap();
    set(0o666);
    wait_until("the error is logged", || {
        status(&served, &ada);
        served.log().contains("can be written by others")
    });
    assert_eq!(status(&served, &ada), 200, "the previous keys stay valid");
    // No server starts with such a file.
    let refused = |reason: &str| {
        let keys = folder.file().display().to_string();
        let launch = ServerLaunchOptions::over(&TempWorkspace::new()).set("server_keys_file", keys);
        let server = launch.serve_with_flags(&["--listen", "127.0.0.1:0"]);
        assert_eq!(server.wait_for_exit().code(), Some(2));
        wait_until(reason, || server.log().contains(reason));
    };
    refused("can be written by others");
    set(0o600);
    let file = folder.file();
    let real = folder.folder.path().join("real.toml");
    fs::rename(&file, &real).unwrap();
    symlink(&real, &file).unwrap();
    refused("because it is a link");
    fs::remove_file(&file).unwrap();
    fs::write(&file, "[[keys]]\nname = \"ada\"\nsha256 = \"toolgate_secret\"\n").unwrap();
    set(0o600);
    refused("64 hexadecimal digits");
    fs::write(&file, "[[keys]]\nname = \"ada\"\nkey = \"toolgate_secret\"\n").unwrap();
    refused("is invalid in line 3");
}

#[test]
fn keys_created_at_the_same_time_are_all_stored() {
    let folder = KeyFileFolder::new();
    std::thread::scope(|scope| {
        for nth in 0..8 {
            let folder = &folder;
            scope.spawn(move || folder.create(&["new", &format!("caller-{nth}")]));
        }
    });
    assert_eq!(folder.list().len(), 8);
    let (code, _, err) = folder.key(&["revoke", "abc"]);
    assert_eq!(code, 2, "{err}");
    for name in ["local", "http", "a b", "a:b", ""] {
        assert_eq!(folder.key(&["new", name]).0, 2, "{name}");
    }
    let (_, table, _) = folder.key(&["list"]);
    assert!(table.starts_with("DIGEST") && table.contains("caller-7"), "{table}");
}

#[test]
fn a_public_address_needs_a_credential_and_encryption() {
    let folder = KeyFileFolder::new();
    let launch = || {
        let launch = ServerLaunchOptions::over(&TempWorkspace::new());
        launch.set("server_keys_file", folder.file().display())
    };
    let refused = |launch: ServerLaunchOptions, flags: &[&str], reason: &str| {
        let server = launch.serve_with_flags(flags);
        assert_eq!(server.wait_for_exit().code(), Some(2), "{}", server.log());
        wait_until(reason, || server.log().contains(reason));
    };
    for address in ["0.0.0.0:0", "[::]:0"] {
        let listen = ["--listen", address];
        refused(launch(), &listen, "no credential is configured");
        refused(launch().set("server_plaintext", true), &listen, "no credential is configured");
    }
    let config = "[[listen]]\naddr = \"0.0.0.0:0\"\ndialect = \"mira\"\n";
    let own = ServerLaunchOptions::over(&TempWorkspace::new().file("toolgate.toml", config));
    refused(own, &["--listen", "127.0.0.1:0"], "no credential is configured");
    let ada = folder.create(&["new", "ada"]);
    refused(launch(), &["--listen", "0.0.0.0:0"], "be unencrypted");
    let launch = launch().set("server_plaintext", true);
    let server = launch.serve_with_flags(&["--listen", "0.0.0.0:0"]);
    let port = crate::support::wait_for("the address is printed", || {
        let log = server.log();
        let (_, rest) = log.split_once(" at http://0.0.0.0:")?;
        rest.split_once("/mcp\n")?.0.parse::<u16>().ok()
    });
    let served = HttpServerProcess { addr: ([127, 0, 0, 1], port).into(), server };
    let host = format!("127.0.0.1:{port}");
    let post = TestHttpRequest::mcp(&initialize(0, "2025-06-18")).with("host", &host);
    assert_eq!(served.send(&post).status, 401);
    let post = post.with("Authorization", &format!("Bearer {ada}"));
    assert_eq!(served.send(&post).status, 200);
}
