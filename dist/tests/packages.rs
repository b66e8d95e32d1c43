//! Tests that install each package offline, as people do, and call `files_read`. `cargo xtask
//! setup` installs the bare Debian in which the Debian package is tested.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a test, which installs packages"
)]

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use serde_json::Value;
use tempfile::TempDir;

/// Command-line arguments for a call that reads the file `hello.txt` of the test workspace.
const READ: [&str; 3] = ["call", "files_read", r#"{"path":"hello.txt"}"#];

/// Content of the file `hello.txt` in the test workspace.
const CONTENT: &str = "hello from a package";

/// Temporary folder with packages, and with a workspace for calls of the packed binary.
struct PackedTestBinary {
    folder: TempDir,
}

impl PackedTestBinary {
    /// Packs the toolgate binary of the tests, without its symbols, into packages of the kind
    /// `kind`.
    fn new(kind: &str) -> Self {
        let packed = Self::empty();
        let binary = packed.path("toolgate");
        run(Command::new("strip").arg("-o").arg(&binary).arg(toolgate()));
        pack(&packed.path("packages"), &binary, &["--fast", "--only", kind]);
        packed
    }

    /// Creates a folder with a workspace and no packages. The folder is not in `/tmp`, because
    /// overlay mounts cannot be below a `/tmp` that is an overlay mount itself.
    fn empty() -> Self {
        let folder = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        fs::create_dir(folder.path().join("workspace")).unwrap();
        fs::write(folder.path().join("workspace/hello.txt"), CONTENT).unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Appends the sandbox and parser programs of the tests to their toolgate. Returns the path of
    /// the new executable, and the offset of the packed parser in it.
    fn append_programs(&self) -> (PathBuf, usize) {
        let [server, sandbox, parser] =
            ["toolgate", "toolgate-sandbox", "toolgate-parser"].map(|name| {
                let stripped = self.path(&format!("{name}.stripped"));
                run(Command::new("strip").arg("-o").arg(&stripped).arg(test_program(name)));
                stripped
            });
        let packed = self.path("toolgate");
        let mut command = Command::new(env!("CARGO_BIN_EXE_toolgate-dist"));
        command.args(["append", "--with-grammars", "--server"]).arg(&server);
        command.arg("--sandbox").arg(&sandbox).arg("--parser").arg(&parser);
        run(command.arg("--out").arg(&packed));
        let parser_start = fs::metadata(&server).unwrap().len();
        (packed, usize::try_from(parser_start).unwrap())
    }

    /// Returns a command that runs `program` in the workspace, with an empty home folder.
    fn command(&self, program: &Path) -> Command {
        let home = self.path("home");
        fs::create_dir_all(&home).unwrap();
        let mut command = Command::new(program);
        command.current_dir(self.workspace()).env("HOME", home);
        command
    }

    fn workspace(&self) -> PathBuf {
        self.path("workspace")
    }

    /// Returns the packages whose file names end in `end`, sorted.
    fn packages(&self, end: &str) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path("packages")).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        let mut paths: Vec<_> =
            paths.filter(|path| path.to_str().unwrap().ends_with(end)).collect();
        paths.sort();
        paths
    }

    fn package(&self, end: &str) -> PathBuf {
        let paths = self.packages(end);
        assert_eq!(paths.len(), 1, "{paths:?}");
        paths.into_iter().next().unwrap()
    }

    /// Calls `files_read` on the workspace through the installed `program`, and checks the result.
    fn read_file_with(&self, program: &Path) {
        let mut command = Command::new(program);
        let home = self.path("home");
        fs::create_dir_all(&home).unwrap();
        let out = run(command.args(READ).current_dir(self.workspace()).env("HOME", home));
        assert_eq!(out.trim_end(), CONTENT);
    }
}

/// Returns the path of the toolgate binary that the tests use.
fn toolgate() -> PathBuf {
    test_program("toolgate")
}

/// Returns the path of the program `name`, which Cargo builds into the folder of `toolgate-dist`.
fn test_program(name: &str) -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_toolgate-dist")).with_file_name(name)
}

/// Returns the executables of all processes whose `argv[0]` is `name` and whose parent is the
/// process `parent`.
fn child_executables(parent: u32, name: &str) -> Vec<String> {
    let read = |pid: &str, file: &str| {
        fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default()
    };
    let is_child = |pid: &String| {
        let parent_line = format!("PPid:\t{parent}");
        read(pid, "status").lines().any(|line| line == parent_line)
            && read(pid, "cmdline").trim_end_matches('\0') == name
    };
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().into_string().ok()).filter(is_child);
    let executables = pids.map(|pid| fs::read_link(format!("/proc/{pid}/exe")));
    executables.map(|path| path.unwrap().display().to_string()).collect()
}

/// Packs `binary` into the folder `out` by running `toolgate-dist pack` with `options`.
fn pack(out: &Path, binary: &Path, options: &[&str]) {
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut command = Command::new(env!("CARGO_BIN_EXE_toolgate-dist"));
    command.args(["pack", "--epoch", "1700000000", "--target", &target]).args(options);
    command.arg("--host-binary").arg(toolgate());
    run(command.arg("--binary").arg(binary).arg("--out").arg(out));
}

/// Runs a command and returns its standard output. Panics if the command fails.
#[track_caller]
fn run(command: &mut Command) -> String {
    let done = command.stdin(Stdio::null()).output();
    let done = done.unwrap_or_else(|err| panic!("{command:?}: {err}"));
    let out = String::from_utf8_lossy(&done.stdout).into_owned();
    let err = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{command:?}: {}\n{out}\n{err}", done.status);
    out
}

/// A running `toolgate serve`. Dropping it kills the process.
struct PackedServerProcess {
    process: Child,
    /// URL of the server's MCP endpoint.
    url: String,
}

impl PackedServerProcess {
    /// Starts `toolgate serve FOLDER` with `command`, and waits until the server prints its
    /// address.
    fn start(command: &mut Command, folder: &str) -> Self {
        command.args(["serve", folder, "--listen", "127.0.0.1:0"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut server = Self { process: command.spawn().unwrap(), url: String::new() };
        let mut log = String::new();
        let mut stderr = BufReader::new(server.process.stderr.take().unwrap());
        while server.url.is_empty() {
            let start = log.len();
            assert_ne!(stderr.read_line(&mut log).unwrap(), 0, "no address in {log:?}");
            let address = log[start..].split_whitespace().find(|word| word.starts_with("http://"));
            server.url = address.unwrap_or_default().to_owned();
        }
        // The server must be able to write its log.
        std::thread::spawn(move || stderr.read_to_end(&mut Vec::new()));
        server
    }

    /// Sends SIGTERM to the server, waits for its exit, and returns its exit status.
    fn stop(&mut self) -> ExitStatus {
        run(Command::new("kill").args(["-TERM", &self.process.id().to_string()]));
        self.process.wait().unwrap()
    }
}

impl Drop for PackedServerProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn the_debian_package_works_in_a_bare_debian() {
    let packed = PackedTestBinary::new("deb");
    let debian = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name(".tools").join("debian");
    assert!(debian.join("usr/bin/dpkg").exists(), "no bare Debian: run `cargo xtask setup`");
    for name in ["upper", "work", "root"] {
        fs::create_dir(packed.path(name)).unwrap();
    }
    // Nothing is written into the bare Debian itself.
    let script = r#"
        mount -t overlay overlay -o "userxattr,lowerdir=$1,upperdir=upper,workdir=work" root
        mount -t proc proc root/proc
        mount --rbind /dev root/dev
        cp -r packages workspace root/srv
        shift
        chroot root sh -ec 'dpkg -i /srv/packages/*.deb; cd /srv/workspace; toolgate "$@"' sh "$@"
    "#;
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--mount", "--pid", "--fork", "sh", "-ec", script, "sh"]);
    command.arg(debian).args(READ).current_dir(packed.folder.path());
    let out =
        run(command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("HOME", "/root"));
    assert!(out.contains("Setting up toolgate"), "{out}");
    assert_eq!(out.lines().last(), Some(CONTENT), "{out}");
}

#[test]
fn the_wheel_works_in_a_new_environment() {
    let packed = PackedTestBinary::new("wheel");
    let environment = packed.path("venv");
    run(Command::new("python3").args(["-m", "venv", "--without-pip"]).arg(&environment));
    let mut install = Command::new("python3");
    install.args(["-m", "pip", "--python"]).arg(environment.join("bin/python"));
    install.args(["install", "--no-index", "--quiet"]).arg(packed.package(".whl"));
    run(&mut install);
    packed.read_file_with(&environment.join("bin/toolgate"));
    packed.read_file_with(&environment.join("bin/toolgate-server"));
}

#[test]
fn the_npm_packages_work_offline_and_pass_on_signals_and_exit_codes() {
    let packed = PackedTestBinary::new("npm");
    let mut install = Command::new("npm");
    install.args(["install", "--offline", "--no-audit", "--no-fund", "--prefix"]);
    install.arg(packed.path("npm")).args(packed.packages(".tgz"));
    fs::create_dir(packed.path("npm")).unwrap();
    run(install.env("npm_config_cache", packed.path("cache")));
    let commands = packed.path("npm/node_modules/.bin");
    packed.read_file_with(&commands.join("toolgate-server"));

    let launcher = commands.join("toolgate");
    let refused = |program: &OsStr| {
        let mut command = Command::new(program);
        command.args(["call", "files_read", r#"{"path":"none.txt"}"#]);
        command.current_dir(packed.workspace()).output().unwrap().status
    };
    assert_eq!(refused(launcher.as_ref()).code(), Some(1));
    let ended = |program: &OsStr| {
        let mut command = Command::new(program);
        PackedServerProcess::start(command.current_dir(packed.workspace()), ".").stop()
    };
    assert_eq!(ended(launcher.as_ref()), ended(toolgate().as_ref()));
}

#[test]
fn the_image_serves_and_checks_its_health_without_a_shell() {
    let packed = PackedTestBinary::new("image");
    let [layout, root] = ["layout", "root"].map(|name| packed.path(name));
    let unpack = |archive: &Path, to: &Path| {
        fs::create_dir(to).unwrap();
        let mut tar = Command::new("tar");
        run(tar.args(["--no-same-owner", "-xf"]).arg(archive).arg("-C").arg(to));
    };
    unpack(&packed.package(".oci.tar"), &layout);
    let read_json =
        |path: PathBuf| -> Value { serde_json::from_slice(&fs::read(path).unwrap()).unwrap() };
    let blob = |descriptor: &Value| {
        let digest = descriptor["digest"].as_str().unwrap().replace(':', "/");
        layout.join("blobs").join(digest)
    };
    let index = read_json(layout.join("index.json"));
    let manifest = read_json(blob(&index["manifests"][0]));
    let config = read_json(blob(&manifest["config"]))["config"].clone();
    unpack(&blob(&manifest["layers"][0]), &root);
    assert_eq!(config["User"], "65532:65532");

    fs::copy(packed.workspace().join("hello.txt"), root.join("workspace/hello.txt")).unwrap();
    fs::create_dir(root.join("proc")).unwrap();
    let program = config["Entrypoint"][0].as_str().unwrap();
    let in_image = || {
        let script = r#"mount --rbind /proc "$0/proc"; exec chroot "$0" "$@""#;
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--mount", "sh", "-ec", script]).arg(&root).env_clear();
        for variable in config["Env"].as_array().unwrap() {
            let (name, value) = variable.as_str().unwrap().split_once('=').unwrap();
            command.env(name, value);
        }
        // The other programs are outside of the image.
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").arg(program);
        command
    };
    let root_option = ["--root", "/workspace"];
    assert_eq!(run(in_image().args(READ).args(root_option)).trim_end(), CONTENT);

    let health = config["Healthcheck"]["Test"].as_array().unwrap();
    let health: Vec<_> = health.iter().map(|word| word.as_str().unwrap()).collect();
    assert_eq!(health, ["CMD", program, "healthcheck"]);
    let mut server = PackedServerProcess::start(&mut in_image(), "/workspace");
    let url = server.url.replace("/mcp", "/healthz");
    assert_eq!(run(in_image().args(["healthcheck", &url])), "healthy\n");
    server.stop();
    let late = in_image().args(["healthcheck", &url]).output().unwrap();
    assert_eq!(late.status.code(), Some(1), "{late:?}");
}

#[test]
fn the_tarball_and_the_bundle_carry_a_program_that_runs() {
    let packed = PackedTestBinary::new("tarball");
    run(Command::new("tar")
        .arg("-xf")
        .arg(packed.package(".tar.gz"))
        .arg("-C")
        .arg(packed.path("")));
    let stem = packed.package(".tar.gz").file_name().unwrap().to_str().unwrap().to_owned();
    packed.read_file_with(&packed.path(stem.trim_end_matches(".tar.gz")).join("toolgate"));

    let packed = PackedTestBinary::new("bundle");
    let file = fs::File::open(packed.package(".mcpb")).unwrap();
    let mut bundle = zip::ZipArchive::new(file).unwrap();
    bundle.extract(packed.path("bundle")).unwrap();
    let manifest = fs::read(packed.path("bundle/manifest.json")).unwrap();
    let manifest: Value = serde_json::from_slice(&manifest).unwrap();
    let entry_point = manifest["server"]["entry_point"].as_str().unwrap();
    packed.read_file_with(&packed.path("bundle").join(entry_point));
}

/// Arguments of a call that finds the method in [`CODE`].
const FIND_METHOD: [&str; 3] = ["call", "search_names", r#"{"name":"okapi_feed"}"#];

/// Python code with a method whose parameters only a real parser finds.
const CODE: &str = "class Zoo:\n    def okapi_feed(\n        self,\n    ):\n        return 1\n";

/// Returns true if the system forbids executing files in memory (memfd).
fn refuses_programs_in_memory() -> bool {
    fs::read_to_string("/proc/sys/vm/memfd_noexec").is_ok_and(|setting| setting.trim() == "2")
}

#[test]
fn a_packed_server_parses_code_with_its_packed_parser() {
    if refuses_programs_in_memory() {
        return eprintln!("NOT TRIED: this system executes no files in memory");
    }
    let packed = PackedTestBinary::empty();
    let (program, _) = packed.append_programs();
    fs::write(packed.workspace().join("zoo.py"), CODE).unwrap();
    let rust =
        "impl Zoo {\n    fn okapi_feed(\n        &self,\n    ) -> u8 {\n        1\n    }\n}\n";
    fs::write(packed.workspace().join("zoo.rs"), rust).unwrap();
    let mut server = PackedServerProcess::start(&mut packed.command(&program), ".");
    let found = run(packed.command(&program).args(FIND_METHOD).args(["--url", &server.url]));
    for expected in ["Zoo.okapi_feed", "def okapi_feed( self, )", "fn okapi_feed( &self, ) -> u8"] {
        assert!(found.contains(expected), "{expected}: {found}");
    }
    let parsers = child_executables(server.process.id(), "toolgate-parser");
    let is_packed = |path: &String| path.starts_with("/memfd:toolgate-parser");
    assert!(!parsers.is_empty() && parsers.iter().all(is_packed), "{parsers:?}");
    server.stop();
}

#[test]
fn a_packed_server_runs_programs_with_its_packed_sandbox_helper() {
    if refuses_programs_in_memory() {
        return eprintln!("NOT TRIED: this system executes no files in memory");
    }
    let packed = PackedTestBinary::empty();
    let (program, _) = packed.append_programs();
    let mut server = PackedServerProcess::start(&mut packed.command(&program), ".");
    let call = ["call", "exec_run", r#"{"command":"printf","args":["a%sc","b"]}"#];
    let printed = run(packed.command(&program).args(call).args(["--url", &server.url]));
    assert!(printed.contains("abc"), "{printed}");
    let helpers = child_executables(server.process.id(), "toolgate-sandbox");
    let is_packed = |path: &String| path.starts_with("/memfd:toolgate-sandbox");
    assert!(!helpers.is_empty() && helpers.iter().all(is_packed), "{helpers:?}");
    server.stop();
}

#[test]
fn a_packed_server_with_a_damaged_parser_guesses_definitions_and_says_so() {
    let packed = PackedTestBinary::empty();
    let (program, parser_start) = packed.append_programs();
    let mut bytes = fs::read(&program).unwrap();
    bytes[parser_start + 1000] ^= 1;
    fs::remove_file(&program).unwrap();
    fs::write(&program, bytes).unwrap();
    run(Command::new("chmod").arg("755").arg(&program));
    check_guessing_server(&packed, &program, "the program is damaged");
}

/// Tests a server that has neither grammars nor a packed parser. Set `SERVER_WITHOUT_GRAMMARS` to
/// the executable that `cargo build --package toolgate --no-default-features` writes into a
/// separate target folder.
#[test]
fn a_server_without_grammars_and_parser_guesses_definitions_and_says_so() {
    let Some(server) = std::env::var_os("SERVER_WITHOUT_GRAMMARS") else {
        return eprintln!("NOT TRIED: SERVER_WITHOUT_GRAMMARS does not name a server");
    };
    let packed = PackedTestBinary::empty();
    check_guessing_server(&packed, Path::new(&server), "does not contain the program");
}

/// Checks a server `program` that cannot parse code because of `reason`. It must find the
/// definitions of two files nevertheless, and report the reason once in its log and once in
/// `toolgate doctor`.
fn check_guessing_server(packed: &PackedTestBinary, program: &Path, reason: &str) {
    fs::write(packed.workspace().join("zoo.py"), CODE).unwrap();
    fs::write(packed.workspace().join("barn.py"), CODE).unwrap();
    let done = packed.command(program).args(FIND_METHOD).output().unwrap();
    let out = String::from_utf8_lossy(&done.stdout);
    let log = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{log}");
    assert!(out.contains("zoo.py:2") && out.contains("barn.py:2"), "{out}");
    assert!(!out.contains("( self, )"), "a parser found the parameters: {out}");
    let reports: Vec<_> = log.lines().filter(|line| line.contains("parses code")).collect();
    let is_expected = |line: &str| line.contains("cannot be started") && line.contains(reason);
    assert!(matches!(reports[..], [line] if is_expected(line)), "{log}");
    let doctor = packed.command(program).arg("doctor").output().unwrap();
    let report = String::from_utf8_lossy(&doctor.stdout);
    let is_about_parser = |line: &&str| line.starts_with("Code cannot be parsed");
    let lines: Vec<_> = report.lines().filter(is_about_parser).collect();
    assert!(matches!(lines[..], [line] if line.contains(reason)), "{report}");
}

#[test]
fn two_runs_write_the_same_bytes() {
    // Any program of this machine will do, and a small one is packed quickly.
    let packed = PackedTestBinary::empty();
    let sums = ["one", "two"].map(|name| {
        let out = packed.path(name);
        pack(&out, Path::new("/bin/true"), &[]);
        fs::read_to_string(out.join("SHA256SUMS")).unwrap()
    });
    assert_eq!(sums[0], sums[1]);
    let names: Vec<_> = sums[0].lines().map(|line| line.split_once("  ").unwrap().1).collect();
    let endings =
        [".cdx.json", ".deb", ".mcpb", ".oci.tar", ".tar.gz", ".tgz", ".whl", "server.json"];
    for ending in endings {
        assert!(names.iter().any(|name| name.ends_with(ending)), "{ending} in {names:?}");
    }
}

#[test]
fn the_bill_of_materials_lists_the_crates_of_the_binary_only() {
    let packed = PackedTestBinary::empty();
    let out = packed.path("packages");
    pack(&out, Path::new("/bin/true"), &["--only", "sbom"]);
    let bill = fs::read(packed.package(".cdx.json")).unwrap();
    let bill: Value = serde_json::from_slice(&bill).unwrap();
    let names: Vec<_> =
        bill["components"].as_array().unwrap().iter().map(|it| &it["name"]).collect();
    assert!(names.contains(&&Value::from("tokio")), "{names:?}");
    // Only the tests and this program use these.
    for other in ["rmcp", "goblin", "serde_derive"] {
        assert!(!names.contains(&&Value::from(other)), "{other}");
    }
    let references = bill["dependencies"].as_array().unwrap();
    assert_eq!(references.len(), names.len() + 1);
}

#[test]
fn systemd_accepts_the_unit_and_finds_it_hardened() {
    let folder = PackedTestBinary::empty();
    let unit = include_str!("../files/toolgate.service");
    let file = folder.path("toolgate.service");
    let program = toolgate().display().to_string();
    fs::write(&file, unit.replace("/usr/bin/toolgate", &program)).unwrap();
    run(Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&file));
    // Exposure times ten. The unit names the reason for each point.
    let mut security = Command::new("systemd-analyze");
    run(security.args(["security", "--offline=yes", "--threshold=35"]).arg(&file));
}
