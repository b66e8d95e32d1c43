//! Tests of programs that reach a local SSH server with keys of the user's SSH agent.

use std::fs;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tempfile::TempDir;

use super::hosts::{forwarding_workspace, python};
use super::*;

/// Path of Debian's SSH server, which only starts if called by its absolute path.
const SSHD: &str = "/usr/sbin/sshd";

/// Python script that sends messages, in hexadecimal, to the SSH agent's socket and prints the type
/// of each answer. All messages use one connection.
const ASK_AGENT: &str = r#"
import os, socket, struct, sys
agent = socket.socket(socket.AF_UNIX)
agent.connect(os.environ['SSH_AUTH_SOCK'])
for text in sys.argv[1:]:
    message = bytes.fromhex(text)
    agent.sendall(struct.pack('>I', len(message)) + message)
    length = struct.unpack('>I', agent.recv(4, socket.MSG_WAITALL))[0]
    print(agent.recv(length, socket.MSG_WAITALL)[0])
"#;

/// SSH server for `one.localhost` with a git repository, and the SSH agent of a user who has two
/// keys. The server accepts both keys.
struct SshTarget {
    port: u16,
    folder: TempDir,
    agent: Child,
}

impl SshTarget {
    fn start() -> Self {
        assert!(Path::new(SSHD).exists(), "{SSHD} is missing; run `cargo xtask setup`");
        let folder = TempDir::with_prefix("toolgate-ssh-it-").unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["host", "allowed", "other"] {
            let mut command = Command::new("ssh-keygen");
            succeed(command.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(at(name)));
        }
        let keys = ["allowed.pub", "other.pub"].map(|name| fs::read_to_string(at(name)).unwrap());
        fs::write(at("authorized"), keys.concat()).unwrap();
        let [host, authorized] = [at("host"), at("authorized")];
        let config = format!(
            "HostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\nPidFile none\n\
             PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin yes\n",
            host.display(),
            authorized.display()
        );
        fs::write(at("sshd_config"), config).unwrap();
        create_repository(folder.path());
        if rustix::process::geteuid().is_root() {
            // The package creates it only at the start of its service.
            fs::create_dir_all("/run/sshd").unwrap();
        }
        let mut agent = Command::new("ssh-agent");
        let agent = agent.arg("-D").arg("-a").arg(at("agent"));
        let agent = agent.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        wait_until("the agent listens", || UnixStream::connect(at("agent")).is_ok());
        let mut add = Command::new("ssh-add");
        add.env("SSH_AUTH_SOCK", at("agent")).arg("-q").args([at("allowed"), at("other")]);
        succeed(&mut add);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let config = at("sshd_config");
        thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = OwnedFd::from(stream.unwrap());
                let mut sshd = Command::new(SSHD);
                let sshd = sshd.args(["-i", "-e", "-f"]).arg(&config).stderr(Stdio::null());
                let sshd = sshd.stdin(stream.try_clone().unwrap()).stdout(stream);
                let mut sshd = sshd.spawn().unwrap();
                thread::spawn(move || sshd.wait());
            }
        });
        Self { port, folder, agent }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the public key in the file `file`, without its comment.
    fn key(&self, file: &str) -> String {
        let line = fs::read_to_string(self.path(file)).unwrap();
        line.split_whitespace().take(2).collect::<Vec<_>>().join(" ")
    }

    /// Returns the SHA-256 fingerprint of the public key in the file `file`.
    fn fingerprint(&self, file: &str) -> String {
        let mut command = Command::new("ssh-keygen");
        let output = command.arg("-lf").arg(self.path(file)).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.split_whitespace().nth(1).unwrap().to_owned()
    }

    /// Returns the SSH URL of the test repository, with the host name `host`.
    fn url(&self, host: &str) -> String {
        let (port, path) = (self.port, self.path("acme/x.git"));
        format!("ssh://{}@{host}:{port}{}", user(), path.display())
    }

    /// Starts a toolgate server whose programs may log in to the SSH server as `users` with the key
    /// `allowed`. The SSH server must have the host key in the file `host_key`. Returns the
    /// toolgate client.
    fn client_with(&self, workspace: &TempWorkspace, host_key: &str, users: &str) -> TestMcpClient {
        let host = format!("one.localhost:{}", self.port);
        let (host_key, key) = (self.key(host_key), self.fingerprint("allowed.pub"));
        workspace.put(
            "toolgate.toml",
            format!(
                "[sandbox]\nhosts = [\"{host}\"]\n[[sandbox.ssh]]\nhost = \"{host}\"\n\
                 host_keys = [\"{host_key}\"]\nkeys = [\"{key}\"]\nusers = [{users}]\n"
            ),
        );
        let launch = ServerLaunchOptions::over(workspace);
        TestMcpClient::stdio(launch.env("SSH_AUTH_SOCK", self.path("agent")), MODERN)
    }

    /// Starts a toolgate server whose programs may log in to the SSH server as the user of this
    /// test. Returns the toolgate client.
    fn client(&self, workspace: &TempWorkspace) -> TestMcpClient {
        self.client_with(workspace, "host.pub", &format!("\"{}\"", user()))
    }

    /// Returns the number of keys in the user's SSH agent.
    fn key_count(&self) -> usize {
        let mut command = Command::new("ssh-add");
        let output = command.env("SSH_AUTH_SOCK", self.path("agent")).arg("-l").output().unwrap();
        String::from_utf8(output.stdout).unwrap().lines().count()
    }
}

impl Drop for SshTarget {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.agent.kill();
        let _ = self.agent.wait();
    }
}

/// Creates the bare repository `acme/x.git` with one file in `folder`.
fn create_repository(folder: &Path) {
    let git = |args: &[&str]| {
        let mut command = Command::new("git");
        command.current_dir(folder).args(["-c", "user.name=Ada", "-c", "user.email=ada@a.example"]);
        succeed(command.args(args));
    };
    git(&["init", "-q", "--bare", "-b", "main", "acme/x.git"]);
    git(&["init", "-q", "-b", "main", "source"]);
    fs::write(folder.join("source/greeting"), "hello from git\n").unwrap();
    git(&["-C", "source", "add", "greeting"]);
    git(&["-C", "source", "commit", "-q", "-m", "Add a greeting"]);
    git(&["-C", "source", "push", "-q", "../acme/x.git", "main"]);
}

/// Runs `command` and panics if it fails.
fn succeed(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Returns the name of the user who runs the test. The SSH server lets only this user log in.
fn user() -> String {
    let output = Command::new("id").arg("-un").output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Returns `bytes` in hexadecimal.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns `fields` encoded as fields of an SSH message.
fn fields(fields: &[&[u8]]) -> Vec<u8> {
    let field = |field: &&[u8]| {
        let length = u32::try_from(field.len()).unwrap();
        [&length.to_be_bytes()[..], *field].concat()
    };
    fields.iter().flat_map(field).collect()
}

#[test]
fn git_clones_over_ssh_through_an_agent_socket_of_this_run_only() {
    let Some(workspace) = forwarding_workspace() else { return };
    let target = SshTarget::start();
    let mut client = target.client(&workspace);
    let clone =
        format!("git clone -q '{}' /tmp/x && cat /tmp/x/greeting", target.url("one.localhost"));
    let mut sockets = Vec::new();
    for _ in 0..2 {
        let result = sh(&mut client, &format!("{clone} && echo \"$SSH_AUTH_SOCK\""));
        assert_eq!(result.code, 0, "{}", result.stderr);
        let (greeting, socket) = result.stdout.split_once('\n').unwrap();
        assert_eq!(greeting, "hello from git");
        let socket = PathBuf::from(socket.trim());
        assert!(socket.is_absolute() && !socket.parent().unwrap().exists(), "{socket:?}");
        sockets.push(socket);
    }
    assert_ne!(sockets[0], sockets[1]);
}

#[test]
fn a_program_sees_only_the_allowed_keys_of_the_agent() {
    let Some(workspace) = forwarding_workspace() else { return };
    let target = SshTarget::start();
    let mut client = target.client(&workspace);
    let listed = sh(&mut client, "ssh-add -L; ls -a \"$(dirname \"$SSH_AUTH_SOCK\")\"");
    assert!(listed.stdout.contains(&target.key("allowed.pub")), "{}", listed.stderr);
    assert!(!listed.stdout.contains(&target.key("other.pub")), "{}", listed.stdout);
    let names: Vec<_> = listed.stdout.lines().skip(1).collect();
    assert_eq!(names, [".", "..", "agent", "config", "known_hosts", "toolgate-connect"]);
    // Only the user's own agent has the private keys.
    let found = sh(&mut client, "cat /tmp/toolgate-ssh-it-*/allowed");
    assert_ne!(found.code, 0, "{}", found.stdout);
}

#[test]
fn a_host_that_is_not_allowed_is_refused_over_ssh_and_named() {
    let Some(workspace) = forwarding_workspace() else { return };
    let target = SshTarget::start();
    let mut client = target.client(&workspace);
    let result = sh(&mut client, &format!("git ls-remote '{}'", target.url("two.localhost")));
    assert_ne!(result.code, 0, "{}", result.stdout);
    let refused = &result.value["refused_hosts"][0];
    let host = format!("two.localhost:{}", target.port);
    assert_eq!(refused["host"], host.as_str(), "{}", result.stderr);
    assert_eq!(refused["allow"], format!("add \"{host}\" to sandbox.hosts").as_str());
    let why = format!("toolgate refused the connection to {host}: it is not in sandbox.hosts");
    assert!(result.stderr.contains(&why), "{}", result.stderr);
}

#[test]
fn a_program_changes_nothing_at_the_users_agent() {
    let Some(workspace) = forwarding_workspace() else { return };
    let target = SshTarget::start();
    let mut client = target.client(&workspace);
    let query = [vec![27], fields(&[b"query"])].concat();
    let lock = [vec![22], fields(&[b"password"])].concat();
    let [remove, add] = [18, 17].map(|kind| {
        let blob = STANDARD.decode(target.key("allowed.pub").split(' ').nth(1).unwrap()).unwrap();
        [vec![kind], fields(&[&blob])].concat()
    });
    let messages = [vec![19], vec![9], vec![1], vec![11, 0], lock, query, remove, add, vec![11]];
    let messages: Vec<_> = messages.iter().map(|message| hex(message)).collect();
    let result = python(&mut client, ASK_AGENT, &messages);
    assert_eq!(result.stdout, format!("{}12\n", "5\n".repeat(8)), "{}", result.stderr);
    let programs =
        "ssh-keygen -q -t ed25519 -N '' -f /tmp/k && ! ssh-add -q /tmp/k && ! ssh-add -D";
    let result = sh(&mut client, programs);
    assert_eq!(result.code, 0, "{}", result.stderr);
    assert_eq!(target.key_count(), 2);
    // A message that is too long ends the connection.
    let long = python(&mut client, ASK_AGENT, &[hex(&[13; 20_000])]);
    assert!(long.code != 0 && long.stdout.is_empty(), "{}", long.stdout);
}

#[test]
fn only_logins_to_the_allowed_server_are_signed() {
    let Some(workspace) = forwarding_workspace() else { return };
    let target = SshTarget::start();
    let mut client = target.client(&workspace);
    let key = target.key("allowed.pub");
    workspace.put("key.pub", &key);
    workspace.put("text", "a text");
    let result = sh(&mut client, "ssh-keygen -Y sign -n file -f key.pub text");
    assert!(result.code != 0 && !workspace.path("text.sig").exists(), "{}", result.stderr);
    // A login in a session whose server has not proved its key.
    let blob = STANDARD.decode(key.split(' ').nth(1).unwrap()).unwrap();
    let user = user();
    let login = [
        fields(&[&[7_u8; 32]]),
        vec![50],
        fields(&[user.as_bytes(), b"ssh-connection", b"publickey"]),
        vec![1],
        fields(&[b"ssh-ed25519", &blob]),
    ];
    let sign = [vec![13], fields(&[&blob, &login.concat()]), vec![0; 4]].concat();
    let text = [vec![13], fields(&[&blob, b"a text"]), vec![0; 4]].concat();
    let host_key = target.key("host.pub");
    let host_key = STANDARD.decode(host_key.split(' ').nth(1).unwrap()).unwrap();
    let proof = fields(&[b"ssh-ed25519", &[0_u8; 64]]);
    let bind = fields(&[b"session-bind@openssh.com", &host_key, &[7_u8; 32], &proof]);
    let bind = [vec![27], bind, vec![0]].concat();
    let messages = [&text, &sign, &bind, &sign].map(|message| hex(message));
    let result = python(&mut client, ASK_AGENT, &messages);
    assert_eq!(result.stdout, "5\n".repeat(4), "{}", result.stderr);
}

#[test]
fn a_server_with_another_key_and_a_user_who_is_not_allowed_get_no_login() {
    let Some(workspace) = forwarding_workspace() else { return };
    let target = SshTarget::start();
    let url = target.url("one.localhost");
    let user = format!("\"{}\"", user());
    let mut client = target.client_with(&workspace, "other.pub", &user);
    let strict = sh(&mut client, &format!("git ls-remote '{url}'"));
    assert!(strict.stderr.contains("Host key verification failed"), "{}", strict.stderr);
    let trusting = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null";
    let command = format!("GIT_SSH_COMMAND=\"$GIT_SSH_COMMAND {trusting}\" git ls-remote '{url}'");
    let trusting = sh(&mut client, &command);
    assert!(trusting.stderr.contains("Permission denied"), "{}", trusting.stderr);
    let mut client = target.client_with(&workspace, "host.pub", "\"nobody-else\"");
    let refused = sh(&mut client, &format!("git ls-remote '{url}'"));
    assert!(refused.stderr.contains("Permission denied"), "{}", refused.stderr);
}

#[test]
fn programs_without_the_host_get_no_agent_socket() {
    let Some(workspace) = forwarding_workspace() else { return };
    let target = SshTarget::start();
    let mut client = target.client(&workspace);
    let settings = workspace.read("toolgate.toml");
    let script = "echo \"${GIT_SSH_COMMAND:-none} ${SSH_AUTH_SOCK:-none}\"";
    let with_host = sh(&mut client, script).stdout;
    assert!(with_host.starts_with("ssh -F /"), "{with_host}");
    workspace.put("toolgate.toml", settings.replacen("one.localhost", "three.localhost", 1));
    let launch = ServerLaunchOptions::over(&workspace).env("SSH_AUTH_SOCK", target.path("agent"));
    let mut client = TestMcpClient::stdio(launch, MODERN);
    assert_eq!(sh(&mut client, script).stdout, "none none\n");
}

#[test]
fn a_path_rule_for_the_host_of_an_ssh_server_stops_the_server_at_its_start() {
    const KEY: &str =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl";
    for (table, setting) in [
        ("[sandbox]\n", "sandbox.hosts"),
        ("[[sandbox.for]]\ntools = \"ci.*\"\nprofile = \"workspace\"\n", "table for `ci.*`"),
        ("[command.\"a.b\"]\nabout = \"A.\"\nprogram = \"true\"\nargv = []\n", "command `a.b`"),
        ("[upstream.web]\ncommand = [\"true\"]\nsandbox = \"workspace\"\n", "`hosts`"),
    ] {
        let workspace = TempWorkspace::new();
        let settings = format!(
            "{table}hosts = [\"a.example/acme/*\"]\n[[sandbox.ssh]]\nhost = \"a.example\"\n\
             host_keys = [\"{KEY}\"]\nkeys = [\"{KEY}\"]\n"
        );
        workspace.put("toolgate.toml", settings);
        let server =
            ServerLaunchOptions::over(&workspace).serve_with_flags(&["--listen", "127.0.0.1:0"]);
        assert!(!server.wait_for_exit().success(), "{table}");
        let why = format!("{setting} allows only some paths on a.example");
        wait_until(&why, || server.log().contains(&why));
    }
}
