//! PostgreSQL server with pgvector, for one test. `cargo xtask setup` installs PostgreSQL from the
//! Python package `pgserver`. The data and the Unix socket are in a temporary folder, which is in
//! memory if there is enough, because a file system on disk creates many small files slowly.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Number of the user that runs PostgreSQL if the test is root, because PostgreSQL refuses to run
/// as root.
const NOBODY: u32 = 65_534;
/// Longest time that the PostgreSQL server may take to start or to stop.
const WITHIN: Duration = Duration::from_secs(30);

/// File system in memory, and the free bytes that it must have for the data of a server.
const MEMORY: &str = "/dev/shm";
const MEMORY_FREE_MIN: u64 = 1 << 30;

/// Running PostgreSQL server. Dropping it stops the server.
pub(crate) struct PostgresServerProcess {
    folder: TempDir,
    /// Folder with the installed programs of PostgreSQL.
    installed: PathBuf,
    process: Option<Child>,
    /// True if the server writes each commit to the disk (fsync) before it acknowledges the commit.
    is_durable: bool,
}

impl PostgresServerProcess {
    /// Starts a PostgreSQL server that accepts every user without a password.
    pub(crate) fn start() -> Self {
        Self::new(true, memory_or_disk())
    }

    /// Starts a PostgreSQL server that requires `password` from the user `postgres`.
    #[allow(dead_code, reason = "not all who include this want it")]
    pub(crate) fn with_password(password: &str) -> Self {
        let mut server = Self::start();
        server.run(&format!("alter user postgres password '{password}'"));
        let hba = "local all all scram-sha-256\n";
        fs::write(server.folder.path().join("data/pg_hba.conf"), hba).unwrap();
        server.stop();
        server.again();
        server
    }

    /// Starts a PostgreSQL server without pgvector.
    #[allow(dead_code, reason = "not all who include this want it")]
    pub(crate) fn without_pgvector() -> Self {
        Self::new(false, memory_or_disk())
    }

    /// Starts a server that writes each commit to the disk before it acknowledges the commit.
    #[allow(dead_code, reason = "not all who include this want it")]
    pub(crate) fn durable() -> Self {
        let mut server = Self::new(true, std::env::temp_dir());
        server.stop();
        server.is_durable = true;
        server.again();
        server
    }

    /// Starts a standby of this server. The standby has a separate folder and receives all changes.
    #[allow(dead_code, reason = "not all who include this want it")]
    pub(crate) fn start_standby(&self) -> Self {
        let parent = if self.is_durable { std::env::temp_dir() } else { memory_or_disk() };
        let folder = TempDir::with_prefix_in("pg", parent).unwrap();
        if is_root() {
            chown(folder.path(), Some(NOBODY), Some(NOBODY)).unwrap();
        }
        let (installed, is_durable) = (self.installed.clone(), self.is_durable);
        let mut standby = Self { folder, installed, process: None, is_durable };
        standby.follow(self);
        standby
    }

    /// Makes this server, which must be stopped, a standby of `primary` with a fresh copy of its
    /// data, and starts it.
    #[allow(dead_code, reason = "not all who include this want it")]
    pub(crate) fn follow(&mut self, primary: &Self) {
        let data = self.folder.path().join("data");
        if data.exists() {
            fs::remove_dir_all(&data).unwrap();
        }
        let copied = as_nobody(&mut Command::new(self.installed.join("bin/pg_basebackup")))
            .args([
                "--checkpoint=fast",
                "--no-sync",
                "--write-recovery-conf",
                "--username=postgres",
            ])
            .arg("--host")
            .arg(primary.folder.path())
            .arg("--pgdata")
            .arg(&data)
            .current_dir(self.folder.path())
            .output()
            .unwrap();
        assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
        self.again();
    }

    /// Sets whether each commit of this server waits for a standby.
    #[allow(dead_code, reason = "not all who include this want it")]
    pub(crate) fn wait_for_standby(&self, is_waiting: bool) {
        let names = if is_waiting { "*" } else { "" };
        self.run(&format!("alter system set synchronous_standby_names = '{names}'"));
        self.run("select pg_reload_conf()");
    }

    /// Makes this standby receive no further changes.
    #[allow(dead_code, reason = "not all who include this want it")]
    pub(crate) fn stop_receiving(&self) {
        self.run("alter system set primary_conninfo = ''");
        self.run("select pg_reload_conf()");
        self.wait_until_true("select not exists (select from pg_stat_wal_receiver)");
    }

    /// Waits until this server sends its changes to a standby.
    #[allow(dead_code, reason = "not all who include this want it")]
    pub(crate) fn wait_until_replicated(&self) {
        self.wait_until_true(
            "select exists (select from pg_stat_replication where state = 'streaming')",
        );
    }

    /// Makes this standby a primary server, which accepts writes, and waits until it does.
    #[allow(dead_code, reason = "not all who include this want it")]
    pub(crate) fn promote(&self) {
        assert_eq!(self.run("select pg_promote()"), "t", "the standby was not promoted");
    }

    /// Waits until the SQL query `sql` returns true.
    fn wait_until_true(&self, sql: &str) {
        let until = Instant::now() + WITHIN;
        while self.run(sql) != "t" {
            assert!(Instant::now() < until, "not within {WITHIN:?}: {sql}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Starts a server whose data is in a new folder in `parent`.
    fn new(with_pgvector: bool, parent: PathBuf) -> Self {
        let mut installed = installed();
        let template = template_path(&installed);
        let is_copied = !with_pgvector || is_root() && !is_open_to_all(&installed);
        // Programs may not run from the file system in memory.
        let parent = if is_copied { std::env::temp_dir() } else { parent };
        let folder = TempDir::with_prefix_in("pg", parent).unwrap();
        if is_copied {
            // PostgreSQL's shared libraries are in a folder beside the package.
            let package = installed.parent().unwrap();
            let libraries = package.with_file_name("pgserver.libs");
            fs::create_dir(folder.path().join("pgserver")).unwrap();
            copy(&libraries, &folder.path().join("pgserver.libs"));
            let copied = folder.path().join("pgserver/pginstall");
            copy(&installed, &copied);
            installed = copied;
        }
        if !with_pgvector {
            let extensions = installed.join("share/postgresql/extension");
            fs::remove_file(extensions.join("vector.control")).unwrap();
        }
        if is_root() {
            chown(folder.path(), Some(NOBODY), Some(NOBODY)).unwrap();
        }
        let data = folder.path().join("data");
        if template.exists() {
            copy(&template, &data);
        } else {
            create_data(&installed, &data);
            // Tests that run at the same time each make their own. The first one is kept, if the
            // folder can be written.
            if let Ok(unfinished) =
                TempDir::with_prefix_in("unfinished-", template.parent().unwrap())
            {
                let copied = unfinished.path().join("data");
                copy(&data, &copied);
                let _ = fs::rename(copied, &template);
            }
        }
        let mut server = Self { folder, installed, process: None, is_durable: false };
        server.again();
        server
    }

    /// Starts the server again after [`Self::stop`] has ended it.
    pub(crate) fn again(&mut self) {
        let folder = self.folder.path();
        let log = fs::File::create(folder.join("log")).unwrap();
        let fsync = if self.is_durable { "fsync=on" } else { "fsync=off" };
        let process = as_nobody(&mut Command::new(self.installed.join("bin/postgres")))
            .arg("-D")
            .arg(folder.join("data"))
            .arg("-k")
            .arg(folder)
            .args(["-c", "listen_addresses=", "-c", fsync, "-c", "shared_buffers=32MB"])
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.process = Some(process);
        let until = Instant::now() + WITHIN;
        while !self.is_ready() {
            let ended = self.process.as_mut().unwrap().try_wait().unwrap();
            let log = || fs::read_to_string(folder.join("log")).unwrap_or_default();
            assert!(ended.is_none() && Instant::now() < until, "it did not start: {}", log());
        }
    }

    fn is_ready(&self) -> bool {
        // `pg_isready` itself waits a moment if nothing answers.
        let ready = Command::new(self.installed.join("bin/pg_isready"))
            .args(["--quiet", "--timeout=1", "--host"])
            .arg(self.folder.path())
            .status();
        let answers = ready.unwrap().success();
        if !answers {
            std::thread::sleep(Duration::from_millis(20));
        }
        answers
    }

    /// Ends the server at once, as in a crash. Open transactions are lost.
    pub(crate) fn stop(&mut self) {
        let Some(mut process) = self.process.take() else { return };
        let pid = process.id().to_string();
        // The main process ends its children after SIGQUIT.
        let killed = Command::new("kill").args(["-QUIT", &pid]).status().unwrap();
        assert!(killed.success());
        let until = Instant::now() + WITHIN;
        while process.try_wait().unwrap().is_none() {
            if Instant::now() > until {
                process.kill().unwrap();
                process.wait().unwrap();
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns the database URL of the server for the user `postgres`.
    pub(crate) fn url(&self) -> String {
        format!("postgresql://postgres@/postgres?host={}", self.folder.path().display())
    }

    /// Returns the path of the PostgreSQL server's Unix socket.
    #[allow(dead_code, reason = "not all who include this want it")]
    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join(".s.PGSQL.5432")
    }

    /// Returns the path of the installed client `psql`.
    #[allow(dead_code, reason = "not all who include this want it")]
    pub(crate) fn psql() -> PathBuf {
        installed().join("bin/psql")
    }

    /// Returns a database URL with this server and `other`. Clients connect to the one that accepts
    /// writes.
    #[allow(dead_code, reason = "not all who include this want it")]
    pub(crate) fn url_with(&self, other: &Self) -> String {
        let [one, other] = [self, other].map(|server| server.folder.path().display());
        format!(
            "postgresql://postgres@/postgres?host={one},{other}&target_session_attrs=read-write"
        )
    }

    /// Returns the server's log since its last start.
    #[allow(dead_code, reason = "not all who include this want it")]
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    /// Runs `sql` with the client `psql` and returns the output.
    pub(crate) fn run(&self, sql: &str) -> String {
        let output = Command::new(self.installed.join("bin/psql"))
            .args(["-XqAt", "-v", "ON_ERROR_STOP=1", "-U", "postgres", "-d", "postgres", "-c", sql])
            .arg("-h")
            .arg(self.folder.path())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{sql}: {said}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Makes the server refuse to store each chunk of the first search namespace whose text
    /// contains the word `poison`. The refusal has the SQL error code `code`.
    pub(crate) fn refuse_poison(&self, code: &str) {
        self.run(&format!(
            "create or replace function refuse() returns trigger language plpgsql as $$ begin
                if new::text like '%poison%' then
                    raise exception 'it does not agree' using errcode = '{code}';
                end if;
                return new;
            end $$;
            create or replace trigger refuse before insert on toolgate_search.chunks_1
            for each row execute function refuse()"
        ));
    }
}

impl Drop for PostgresServerProcess {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Returns the folder in which the Python package has installed PostgreSQL.
fn installed() -> PathBuf {
    let folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let libs = folders.map(|folder| folder.join(".tools/postgres/lib"));
    let pythons = libs.flat_map(fs::read_dir).flatten().flatten();
    let mut found = pythons.map(|python| python.path().join("site-packages/pgserver/pginstall"));
    let installed = found.find(|it| it.is_dir());
    installed
        .and_then(|it| it.canonicalize().ok())
        .expect("PostgreSQL is not installed in .tools/postgres: run `cargo xtask setup`")
}

/// Returns the folder for temporary files in memory, or on disk if there is too little memory.
fn memory_or_disk() -> PathBuf {
    let has_space = rustix::fs::statvfs(MEMORY)
        .is_ok_and(|memory| memory.f_bavail.saturating_mul(memory.f_frsize) >= MEMORY_FREE_MIN);
    if has_space { MEMORY.into() } else { std::env::temp_dir() }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn as_nobody(command: &mut Command) -> &mut Command {
    if is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command
}

/// Returns the path of the empty database that tests copy. A copy takes a tenth of the time in
/// which PostgreSQL makes a new database. Another version of PostgreSQL has a program of another size.
fn template_path(installed: &Path) -> PathBuf {
    let program_bytes = installed.join("bin/postgres").metadata().unwrap().len();
    let owner = if is_root() { NOBODY } else { rustix::process::geteuid().as_raw() };
    installed.with_file_name(format!("empty-database-{program_bytes}-{owner}"))
}

/// Makes the folder `data` with empty databases, for the programs in the folder `installed`.
fn create_data(installed: &Path, data: &Path) {
    let made = as_nobody(&mut Command::new(installed.join("bin/initdb")))
        .args(["--no-sync", "--username=postgres", "--encoding=UTF8", "--locale=C"])
        .args(["--auth=trust", "--wal-segsize=1", "--pgdata"])
        .arg(data)
        .current_dir(data.parent().unwrap())
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

/// Returns true if all users may enter `folder` and all of its parent folders.
fn is_open_to_all(folder: &Path) -> bool {
    folder.ancestors().all(|it| it.metadata().is_ok_and(|it| it.permissions().mode() & 0o1 == 1))
}

/// Copies the folder `from`. Modes and, if this process is root, owners stay the same.
fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-aT").args([from, to]).output().unwrap();
    assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
}
