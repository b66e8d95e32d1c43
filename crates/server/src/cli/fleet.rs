//! Shows and drains the servers that share a job database, and migrates its tables (`toolgate
//! fleet`).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clap::builder::NonEmptyStringValueParser;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use toolgate_host::{FleetServerStatus, FleetStatus, PostgresStoreSettings};
use toolgate_world::Root;

use super::{WorkspaceFolderArgs, complain, print, run_to_end};

/// Time between two checks of the progress of draining servers.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// Time for stopped jobs to end, after the drain time of their server.
const STOP_TIME: Duration = Duration::from_secs(10);

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  toolgate fleet status                 list the servers and workers, and their jobs
  toolgate fleet drain node-3           let the servers of one machine end their jobs
  toolgate fleet migrate                bring the tables to the version of this toolgate

These commands use the database of `fleet.url`.")]
pub(super) struct FleetArgs {
    #[command(subcommand)]
    command: FleetCommand,
}

#[derive(clap::Subcommand)]
enum FleetCommand {
    /// List the servers and workers of this workspace, and the jobs that they run
    #[command(after_help = "\
A server is `silent` if it has not renewed its lease in time. SETTINGS names the settings of a
server that differ from those of most others: `settings`, `policy`, `keys` or `pins`. The exit code
is 1 if a server is silent or differs, or if no server can run a waiting job.")]
    Status(FleetStatusArgs),
    /// Stop servers from starting more jobs, and wait until their running jobs have ended
    #[command(after_help = "\
Running jobs may continue for the `jobs.drain_ms` of their server. A drained server still accepts
jobs, but other servers run them. After a restart, the server starts jobs again. The exit code is 1
if jobs still run at the end.")]
    Drain(FleetDrainArgs),
    /// Create the tables, or migrate them to the newest version of this toolgate
    #[command(after_help = "\
Servers create and migrate the tables when they start, if their database user may change tables.
Servers of the previous version can also use the new tables.")]
    Migrate(FleetFolderArgs),
}

#[derive(clap::Args)]
struct FleetFolderArgs {
    /// Workspace whose settings name the database
    #[arg(long, value_name = "PATH", default_value = ".", env = "TOOLGATE_ROOT")]
    root: PathBuf,
    #[command(flatten)]
    folder: WorkspaceFolderArgs,
}

#[derive(clap::Args)]
struct FleetStatusArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: FleetFolderArgs,
}

#[derive(clap::Args)]
struct FleetDrainArgs {
    /// Name of the servers' machine, or the beginning of a server's id
    #[arg(
        value_name = "NAME",
        required_unless_present = "all",
        conflicts_with = "all",
        value_parser = NonEmptyStringValueParser::new()
    )]
    name: Option<String>,
    /// Drain all servers of the workspace
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    place: FleetFolderArgs,
}

/// Database of a fleet, and the time that a draining server gives its running jobs.
struct FleetDatabaseOptions {
    database: PostgresStoreSettings,
    drain: Duration,
}

impl FleetFolderArgs {
    fn open(&self) -> anyhow::Result<FleetDatabaseOptions> {
        let config = self.folder.load(&self.root)?.config;
        let root = Root::open(&self.root)
            .with_context(|| format!("cannot open the folder {}", self.root.display()))?;
        let database = config.fleet.job_store(root.path()).map_err(|why| anyhow!(why))?;
        let Some(database) = database else {
            bail!("fleet.url is not set: this workspace has no job database that servers share");
        };
        Ok(FleetDatabaseOptions { database, drain: Duration::from_millis(config.jobs.drain_ms) })
    }
}

pub(super) fn run(args: &FleetArgs) -> anyhow::Result<ExitCode> {
    match &args.command {
        FleetCommand::Status(args) => show_status(args),
        FleetCommand::Drain(args) => drain(args),
        FleetCommand::Migrate(args) => migrate(args),
    }
}

fn show_status(args: &FleetStatusArgs) -> anyhow::Result<ExitCode> {
    let place = args.place.open()?;
    let status = run_to_end(super::small_runtime()?, FleetStatus::read(place.database))?;
    let common = common_settings(&status.servers);
    let is_like_others =
        |server: &FleetServerStatus| server.alive && differing_parts(server, &common).is_empty();
    let is_sound = status.unserved.is_empty() && status.servers.iter().all(is_like_others);
    let text = match args.json {
        true => format!("{:#}\n", status_json(&status, &common)),
        false => render_status(&status, &common),
    };
    print(&text)?;
    Ok(if is_sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn drain(args: &FleetDrainArgs) -> anyhow::Result<ExitCode> {
    let FleetDatabaseOptions { database, drain } = args.place.open()?;
    let at_most = drain.saturating_add(database.lease).saturating_add(STOP_TIME);
    let selected = args.name.as_deref();
    let left = run_to_end(super::small_runtime()?, async {
        let drained = FleetStatus::drain(database.clone(), selected).await?;
        if drained.is_empty() {
            let what = selected.map_or_else(String::new, |name| format!(" with the name `{name}`"));
            bail!("no server{what} is alive; `toolgate fleet status` lists the servers");
        }
        print(&format!("draining {}\n", count_servers(drained.len())))?;
        let until = Instant::now() + at_most;
        loop {
            let status = FleetStatus::read(database.clone()).await?;
            let running = status.servers.into_iter().filter(|it| drained.contains(&it.id));
            let running: i64 = running.map(|server| server.running).sum();
            if running == 0 || Instant::now() >= until {
                return anyhow::Ok(running);
            }
            sleep(LOOK_INTERVAL).await;
        }
    })?;
    if left > 0 {
        complain(&format!("jobs that still run there: {left}"));
        return Ok(ExitCode::FAILURE);
    }
    print("no job runs there now\n")?;
    Ok(ExitCode::SUCCESS)
}

fn migrate(args: &FleetFolderArgs) -> anyhow::Result<ExitCode> {
    let place = args.open()?;
    let (before, after) =
        run_to_end(super::small_runtime()?, FleetStatus::migrate(place.database))?;
    print(&match (before, after) {
        (0, after) => format!("created the tables (job schema {after})\n"),
        (before, after) if before == after => {
            format!("the tables are up to date (job schema {after})\n")
        }
        (before, after) => format!("migrated the tables from job schema {before} to {after}\n"),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the most common digests among the live servers of a fleet: one digest for each group of
/// settings, such as `policy`.
fn common_settings(servers: &[FleetServerStatus]) -> BTreeMap<&str, &str> {
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for server in servers.iter().filter(|server| server.alive) {
        for (part, digest) in &server.settings {
            *counts.entry((part.as_str(), digest.as_str())).or_default() += 1;
        }
    }
    let mut common: BTreeMap<&str, (&str, usize)> = BTreeMap::new();
    for ((part, digest), count) in counts {
        let most = common.entry(part).or_insert((digest, 0));
        if count > most.1 {
            *most = (digest, count);
        }
    }
    common.into_iter().map(|(part, (digest, _))| (part, digest)).collect()
}

/// Returns the groups of settings, such as `policy`, for which `server` has a different digest than
/// `common`.
fn differing_parts<'s>(
    server: &'s FleetServerStatus,
    common: &BTreeMap<&str, &str>,
) -> Vec<&'s str> {
    let differs = |part: &str, digest: &str| common.get(part).is_some_and(|it| *it != digest);
    let parts = server.settings.iter().filter(|(part, digest)| differs(part, digest));
    parts.map(|(part, _)| part.as_str()).collect()
}

fn state_of(server: &FleetServerStatus) -> &'static str {
    match (server.alive, server.draining) {
        (false, _) => "silent",
        (true, true) => "draining",
        (true, false) => "alive",
    }
}

fn render_status(status: &FleetStatus, common: &BTreeMap<&str, &str>) -> String {
    let FleetStatus { database, schema, waiting, running, oldest_waiting_s, unserved, servers } =
        status;
    let oldest = match oldest_waiting_s {
        Some(seconds) => format!(" (the oldest for {:.0} s)", seconds.max(0.0)),
        None => String::new(),
    };
    let mut text = format!(
        "{database}, job schema {schema}\nwaiting jobs: {waiting}{oldest}; running jobs: {running}\n"
    );
    for (tool, jobs) in unserved {
        let _ = writeln!(text, "no server can run `{tool}` (waiting jobs: {jobs})");
    }
    if servers.is_empty() {
        text.push_str("no server of this workspace uses the database\n");
        return text;
    }
    let width = servers.iter().map(|server| server.name.chars().count()).max().unwrap_or(0).max(4);
    let _ = writeln!(
        text,
        "\n{:<16}  {:<width$}  {:<6}  {:<8}  {:<8}  {:>9}  {:>7}  {:>7}  SETTINGS",
        "SERVER", "NAME", "KIND", "VERSION", "STATE", "HEARTBEAT", "RUNNING", "WAITING"
    );
    for server in servers {
        let differing = differing_parts(server, common);
        let settings = match differing.is_empty() {
            true => "same".to_owned(),
            false => format!("differ: {}", differing.join(", ")),
        };
        let heartbeat = format!("{:.0} s ago", server.heartbeat_s.max(0.0));
        let FleetServerStatus { id, name, kind, version, running, waiting, .. } = server;
        let state = state_of(server);
        let _ = writeln!(
            text,
            "{id:016x}  {name:<width$}  {kind:<6}  {version:<8}  {state:<8}  {heartbeat:>9}  \
             {running:>7}  {waiting:>7}  {settings}"
        );
    }
    text
}

fn status_json(status: &FleetStatus, common: &BTreeMap<&str, &str>) -> Value {
    let servers = status.servers.iter().map(|server| {
        json!({
            "id": format!("{:016x}", server.id),
            "name": server.name,
            "kind": server.kind,
            "version": server.version,
            "state": state_of(server),
            "heartbeat_s": server.heartbeat_s,
            "running": server.running,
            "waiting": server.waiting,
            "settings": server.settings,
            "differs": differing_parts(server, common),
        })
    });
    json!({
        "database": status.database,
        "schema": status.schema,
        "waiting": status.waiting,
        "running": status.running,
        "oldest_waiting_s": status.oldest_waiting_s,
        "unserved": status.unserved.iter().cloned().collect::<BTreeMap<_, _>>(),
        "servers": servers.collect::<Vec<_>>(),
    })
}

fn count_servers(count: usize) -> String {
    match count {
        1 => "1 server".to_owned(),
        count => format!("{count} servers"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(id: i64, keys: &str) -> FleetServerStatus {
        let settings = [("keys", keys), ("pins", "1")];
        FleetServerStatus {
            id,
            name: "node".to_owned(),
            kind: "worker".to_owned(),
            version: "0.1.0".to_owned(),
            settings: settings.map(|(part, it)| (part.to_owned(), it.to_owned())).into(),
            draining: false,
            alive: true,
            heartbeat_s: 3.2,
            running: 2,
            waiting: 0,
        }
    }

    #[test]
    fn a_server_differs_in_the_parts_in_which_most_others_agree() {
        let servers = [server(1, "a"), server(2, "b"), server(3, "a")];
        let common = common_settings(&servers);
        let differing = servers.each_ref().map(|server| differing_parts(server, &common));
        assert_eq!(differing, [vec![], vec!["keys"], vec![]]);
        let silent = FleetServerStatus { alive: false, ..server(4, "b") };
        let status = FleetStatus {
            database: "PostgreSQL `db`".to_owned(),
            schema: 2,
            waiting: 1,
            running: 2,
            oldest_waiting_s: Some(4.0),
            unserved: vec![("work.wait".to_owned(), 1)],
            servers: vec![server(2, "b"), silent],
        };
        let text = render_status(&status, &common);
        assert!(text.contains("waiting jobs: 1 (the oldest for 4 s); running jobs: 2"), "{text}");
        assert!(text.contains("no server can run `work.wait` (waiting jobs: 1)"), "{text}");
        assert!(text.contains("0000000000000002  node  worker  0.1.0     alive"), "{text}");
        assert!(text.contains("3 s ago        2        0  differ: keys"), "{text}");
        assert!(text.contains("0000000000000004  node  worker  0.1.0     silent"), "{text}");
    }
}
