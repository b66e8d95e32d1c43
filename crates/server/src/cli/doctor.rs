//! Checks the sandbox and upstreams (`toolgate doctor`).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;

use anyhow::{Context, anyhow, bail};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use toolgate_host::{FleetDurability, FleetReport, FleetServer};
use toolgate_service::assembly::probe::{
    UpstreamProbeResult, hide_failures_from_log, probe_upstreams,
};
use toolgate_service::assembly::programs_with_hosts::confined_programs_with_hosts;
use toolgate_service::config::{Config, environment};
use toolgate_toolsets::grammars;
use toolgate_upstream::pins::one_line;
use toolgate_upstream::{UpstreamListing, UpstreamSettings};
use toolgate_world::sandbox::{
    IncompleteSandboxPolicy, ProgramConfinement, SandboxCoverage, SandboxLayer, SandboxPaths,
    SandboxProfile, ServerPathAccess, confine_server,
};
use toolgate_world::{ProcessRunner, Root, Sandbox};

use super::login::UpstreamNameArg;
use super::{WorkspaceFolderArgs, complain, print, run_to_end};

#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  toolgate doctor                 check the sandbox of this folder's programs
  toolgate doctor ~/src/app --json
  toolgate doctor upstreams       check whether each upstream of this folder responds
  toolgate doctor oauth linear    check each step of the authorization at [upstream.linear]
  toolgate doctor fleet           check the database of [fleet], and which failures jobs survive

Each sandbox layer is tested in a separate process. The exit code is 1 if this system lacks a layer
of the configured profile."
)]
pub(super) struct DoctorArgs {
    /// Workspace whose settings are checked
    #[arg(default_value = ".")]
    root: PathBuf,
    #[command(flatten)]
    folder: WorkspaceFolderArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(subcommand)]
    command: Option<DoctorCommand>,
}

#[derive(clap::Subcommand)]
enum DoctorCommand {
    /// Test the OAuth authorization of an upstream, step by step
    #[command(after_help = "\
Prints one line for each step, without tokens and secrets. The exit code is 1 if a step fails.")]
    Oauth(UpstreamNameArg),
    /// Test each upstream by listing it
    #[command(
        alias = "upstream",
        after_help = "\
Examples:
  toolgate doctor upstreams
  toolgate doctor upstreams github linear

Prints one line for each upstream. If one fails, more lines show toolgate's requests, the answers
and the output of the program. The exit code is 1 if an upstream fails, or if an entry of its
setting `tools` matches no tool."
    )]
    Upstreams(DoctorUpstreamsArgs),
    /// Check the database that servers share, and print which failures jobs survive
    #[command(after_help = "\
Prints the database, the failures that its jobs survive, and the servers of this workspace.
Creates the tables if they are missing. The exit code is 1 if the database cannot be used.")]
    Fleet(DoctorFleetArgs),
}

#[derive(clap::Args)]
struct DoctorFleetArgs {
    /// Workspace whose settings name the database
    #[arg(long, value_name = "PATH", default_value = ".", env = "TOOLGATE_ROOT")]
    root: PathBuf,
    #[command(flatten)]
    folder: WorkspaceFolderArgs,
}

#[derive(clap::Args)]
struct DoctorUpstreamsArgs {
    /// Upstreams to test; all by default
    names: Vec<String>,
    /// Workspace whose settings name the upstreams
    #[arg(long, value_name = "PATH", default_value = ".", env = "TOOLGATE_ROOT")]
    root: PathBuf,
    #[command(flatten)]
    folder: WorkspaceFolderArgs,
}

pub(super) fn run(args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    match &args.command {
        Some(DoctorCommand::Oauth(args)) => return test_oauth(args),
        Some(DoctorCommand::Upstreams(args)) => return test_upstreams(args),
        Some(DoctorCommand::Fleet(args)) => return test_fleet(args),
        None => {}
    }
    // The first call decides the level. The report says what a line of the log would say.
    toolgate_service::telemetry::start_logging("warn")?;
    let config = args.folder.load(&args.root)?.config;
    let sandbox =
        Sandbox::new(&config.sandbox, SandboxPaths::default()).map_err(|why| anyhow!(why))?;
    let root = Root::open(&args.root)
        .with_context(|| format!("cannot open the folder {}", args.root.display()))?;
    // Programs cannot be confined to a workspace that is the whole machine.
    let is_machine = root.path() == Path::new("/");
    let empty = is_machine.then(tempfile::tempdir).transpose()?;
    let root = match &empty {
        Some(folder) => Root::open(folder.path())?,
        None => root,
    };
    let configured = config.sandbox.profile;
    // Without a sandbox, the report shows the layers of the default profile.
    let tested =
        if configured == SandboxProfile::Off { SandboxProfile::Workspace } else { configured };
    let variables = environment().into_iter().collect();
    let coverage = sandbox.coverage(tested, &root, &variables)?;
    let profiles = [SandboxProfile::ReadOnly, SandboxProfile::Workspace, SandboxProfile::Network];
    let profiles = profiles.map(|profile| sandbox.coverage(profile, &root, &variables));
    let profiles = profiles.into_iter().collect::<Result<Vec<_>, _>>()?;
    let is_root = rustix::process::geteuid().is_root();
    // Confinement cannot be undone, so it runs on its own thread.
    let server = thread::spawn(|| confine_server(&ServerPathAccess::default())).join();
    let server = server.unwrap_or_else(|_| Err("the test panicked".to_owned()));
    let server = match config.server.confined {
        true => server,
        false => Err("server.confined is false".to_owned()),
    };
    let programs = confined_programs_with_hosts(&config, &sandbox, &root)?;
    let hosts = check_hosts(&sandbox, &root, variables, programs)?;
    let presets = ask_presets(&sandbox, &root)?;
    let parser = check_parser();
    let text = if args.json {
        let is_present = |layer: SandboxLayer| !coverage.missing.iter().any(|it| it.layer == layer);
        let named: BTreeMap<_, _> = presets.iter().cloned().collect();
        let layers: serde_json::Map<_, _> = SandboxLayer::ALL
            .iter()
            .map(|&it| (it.name().to_owned(), is_present(it).into()))
            .collect();
        let report = json!({
            "configured": configured, "profile": tested, "require": config.sandbox.require,
            "layers": layers, "missing": coverage.missing, "profiles": profiles, "root": is_root,
            "server": { "confined": server.is_ok(), "why": server.err() },
            "hosts": { "checked": hosts.as_ref().ok(), "why": hosts.as_ref().err() },
            "presets": named,
            "parser": { "works": parser.is_ok(), "why": parser.as_ref().err() },
        });
        format!("{report:#}\n")
    } else {
        let require = config.sandbox.require;
        render_report(&coverage, &profiles, configured, require, &server, is_root)
            + &render_hosts(&hosts)
            + &render_presets(&presets)
            + &render_parser(&parser)
    };
    print(&text)?;
    if is_machine {
        complain(
            "the workspace / is the whole machine, so programs cannot be confined to it; this \
             report describes an empty folder instead",
        );
    }
    let is_effective = coverage.is_complete() && !is_machine && hosts.is_ok();
    let is_satisfied = configured == SandboxProfile::Off || is_effective;
    Ok(if is_satisfied { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Checks that programs can reach only the hosts that the settings name for their sandbox profiles,
/// or for the `programs` themselves. The inner result contains the checked profiles, or the reason
/// why they cannot be used.
fn check_hosts(
    sandbox: &Sandbox,
    root: &Root,
    variables: BTreeMap<OsString, OsString>,
    programs: Vec<ProgramConfinement>,
) -> anyhow::Result<Result<Vec<SandboxProfile>, String>> {
    let sandbox = sandbox.clone();
    let root = root.clone();
    let checked = run_to_end(super::small_runtime()?, async {
        toolgate_net::spawn_blocking(move || sandbox.check_hosts(&root, &variables, programs)).await
    });
    Ok(checked?.map_err(|err| err.to_string()))
}

/// Returns a line of the report about the hosts that programs may reach.
fn render_hosts(hosts: &Result<Vec<SandboxProfile>, String>) -> String {
    match hosts {
        Ok(profiles) if profiles.is_empty() => String::new(),
        Ok(profiles) => {
            let names: Vec<_> = profiles.iter().map(|profile| profile.name()).collect();
            format!(
                "Programs with `hosts` reach a network only by the forwarder: tested for {}.\n",
                names.join(", ")
            )
        }
        Err(why) => format!("Programs with `hosts` do not run: {why}\n"),
    }
}

/// Asks each package manager that the settings name as a sandbox preset for the hosts that it uses.
/// Returns the name and the hosts of each package manager. Fails if no program can be started.
fn ask_presets(sandbox: &Sandbox, root: &Root) -> anyhow::Result<Vec<(&'static str, Vec<String>)>> {
    let sources = sandbox.host_sources();
    if sources.is_empty() {
        return Ok(Vec::new());
    }
    let processes = ProcessRunner::with_sandbox(environment(), sandbox.clone());
    let processes = processes.context("cannot run programs")?;
    Ok(run_to_end(super::small_runtime()?, async {
        let cancel = CancellationToken::new();
        let mut presets = Vec::new();
        for source in sources {
            let answer = processes.named_hosts(source, root, &cancel).await;
            presets.push((source.name(), answer.map(|answer| answer.hosts).unwrap_or_default()));
        }
        processes.close().await;
        presets
    }))
}

/// Returns a line of the report about the hosts that each package manager uses.
fn render_presets(presets: &[(&'static str, Vec<String>)]) -> String {
    let lines = presets.iter().map(|(name, hosts)| match hosts.is_empty() {
        true => format!("{name} names no host: it is missing, or programs can change it.\n"),
        false => format!("{name} names the hosts {}.\n", hosts.join(", ")),
    });
    lines.collect()
}

/// Checks that the server can start the separate process that parses code. The error is the reason
/// why it cannot.
fn check_parser() -> Result<(), String> {
    let processes = ProcessRunner::new(environment());
    let checked = processes.and_then(|processes| grammars::check_worker(&processes));
    checked.map_err(|err| err.to_string())
}

/// Returns a line of the report about the process that parses code, or an empty text if it works.
fn render_parser(parser: &Result<(), String>) -> String {
    match parser {
        Ok(()) => String::new(),
        Err(why) => {
            format!("Code cannot be parsed, so search guesses definitions line by line: {why}\n")
        }
    }
}

/// Tests the OAuth authorization of an upstream and prints the result of each step.
fn test_oauth(args: &UpstreamNameArg) -> anyhow::Result<ExitCode> {
    toolgate_service::telemetry::start_logging("warn")?;
    let is_authorized = run_to_end(super::small_runtime()?, async {
        let session = args.open_sign_in()?;
        let mut last_failure = None;
        let is_authorized = session
            .check_access(&mut |step, outcome| {
                // A failed step fails the steps around it with the same text.
                if let Err(why) = outcome
                    && last_failure.replace(why.clone()).as_ref() == Some(why)
                {
                    return;
                }
                let (mark, detail) = match outcome {
                    Ok(detail) => ("ok    ", detail),
                    Err(why) => ("FAILED", why),
                };
                let _ = print(&format!("{mark}  {step}: {detail}\n"));
            })
            .await;
        session.close().await;
        anyhow::Ok(is_authorized)
    })?;
    Ok(if is_authorized { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Tests each upstream by listing its tools, and prints the results.
fn test_upstreams(args: &DoctorUpstreamsArgs) -> anyhow::Result<ExitCode> {
    // The first call decides the level. The report says what a line of the log would say.
    toolgate_service::telemetry::start_logging("warn")?;
    let config = args.folder.load(&args.root)?.config;
    hide_failures_from_log(&config)?;
    let is_wanted = |name: &String| args.names.is_empty() || args.names.contains(name);
    let wanted = config.upstream.iter().filter(|(name, it)| it.enabled && is_wanted(name));
    let wanted: Vec<_> = wanted.map(|(name, _)| name.as_str()).collect();
    // A start may download a program first, and its lines come only after it.
    if !wanted.is_empty() && std::io::stderr().is_terminal() {
        complain(&format!("starting {} ...", wanted.join(", ")));
    }
    let probes =
        run_to_end(super::small_runtime()?, probe_upstreams(&args.root, &config, &args.names))?;
    if probes.is_empty() {
        bail!("toolgate.toml has no enabled upstream");
    }
    let mut all_answer = true;
    for UpstreamProbeResult { name, listing, exchanges, notes, error_output } in probes {
        let is_failed = listing.is_err();
        let mut lines = match listing {
            Ok(listing) => {
                let mut lines = render_listing(&name, &listing, config.upstream.get(&name));
                for warning in tool_warnings(&listing, config.upstream.get(&name)) {
                    all_answer = false;
                    let _ = writeln!(lines, "WARNING {name}: {warning}");
                }
                lines
            }
            Err(why) => {
                all_answer = false;
                format!("FAILED  {name}: {}\n", why.trim())
            }
        };
        if is_failed && exchanges.is_empty() {
            lines.push_str(
                "        no request was sent: the failure happened before the first request\n",
            );
        }
        let exchanges = exchanges.iter().filter(|_| is_failed);
        for line in exchanges.chain(&notes) {
            let _ = writeln!(lines, "        {line}");
        }
        if !error_output.is_empty() {
            lines.push_str("        it printed on standard error:\n");
        }
        for line in &error_output {
            let _ = writeln!(lines, "          {line}");
        }
        print(&lines)?;
    }
    if args.names.is_empty() {
        print(&render_disabled(&config))?;
    }
    Ok(if all_answer { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns a line for each upstream that was not tested because it is disabled.
fn render_disabled(config: &Config) -> String {
    let disabled = config.upstream.iter().filter(|(_, settings)| !settings.enabled);
    let line = |name: &String| {
        format!(
            "skipped {name}: no request was sent, because the upstream is disabled; to test it, \
             remove `enabled = false` from [upstream.{name}]\n"
        )
    };
    disabled.map(|(name, _)| line(name)).collect()
}

/// Returns the line of the report about an upstream that answered, with the numbers of its tools,
/// resources and prompts. Tools that `settings` hide are counted separately.
fn render_listing(
    name: &str,
    listing: &UpstreamListing,
    settings: Option<&UpstreamSettings>,
) -> String {
    let UpstreamListing { revision, tools, resources, prompts, .. } = listing;
    let is_hidden = |tool: &&Value| {
        let tool = tool["name"].as_str().unwrap_or_default();
        settings.is_some_and(|settings| !settings.offers_tool(tool))
    };
    let hidden = tools.iter().filter(is_hidden).count();
    let shown = tools.len() - hidden;
    let hidden = if hidden > 0 { format!(", {hidden} hidden") } else { String::new() };
    format!(
        "ok      {name}: MCP {revision} (tools: {shown}{hidden}, resources: {}, prompts: {})\n",
        resources.len(),
        prompts.len()
    )
}

/// Returns a warning for each entry of the upstream's setting `tools` that matches no tool of
/// `listing`.
fn tool_warnings(listing: &UpstreamListing, settings: Option<&UpstreamSettings>) -> Vec<String> {
    let unmatched = settings.into_iter().flat_map(|settings| settings.unmatched_tools(listing));
    let describe = |entry: &str| {
        let close = |name: &str| strsim::jaro_winkler(name, entry.trim_start_matches('!'));
        let names = listing.tools.iter().filter_map(|tool| tool["name"].as_str());
        let near = names.max_by(|a, b| close(a).total_cmp(&close(b)));
        let near = near.filter(|near| close(near) > 0.75).map(one_line);
        let hint = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
        format!("`tools` has {entry:?}, which matches no tool{hint}")
    };
    unmatched.map(describe).collect()
}

/// Checks the database of `[fleet]`, and prints the failures that the jobs in it survive. Fails if
/// the settings name no database.
fn test_fleet(args: &DoctorFleetArgs) -> anyhow::Result<ExitCode> {
    toolgate_service::telemetry::start_logging("warn")?;
    let config = args.folder.load(&args.root)?.config;
    let root = Root::open(&args.root)
        .with_context(|| format!("cannot open the folder {}", args.root.display()))?;
    let Some(settings) = config.fleet.job_store(root.path()).map_err(|why| anyhow!(why))? else {
        bail!(
            "fleet.url is not set: jobs are stored in a folder, which servers on one machine share"
        );
    };
    match run_to_end(super::small_runtime()?, FleetReport::read(settings)) {
        Ok(report) => {
            print(&render_fleet(&report))?;
            let files = config.fleet.files.unwrap_or_default();
            match &report.files {
                Some(Err(why)) => {
                    print(&format!("FAILED  large files cannot be stored in {files}: {why}\n"))?;
                    return Ok(ExitCode::FAILURE);
                }
                Some(Ok(())) => print(&format!("ok      large files are stored in {files}\n"))?,
                None => {}
            }
            Ok(ExitCode::SUCCESS)
        }
        Err(err) => {
            print(&format!("FAILED  {err}\n"))?;
            Ok(ExitCode::FAILURE)
        }
    }
}

fn render_fleet(report: &FleetReport) -> String {
    let promise = match report.durability {
        FleetDurability::Volatile => {
            "none: `fsync` or `synchronous_commit` is off, so a crash of the database can lose \
             acknowledged jobs"
        }
        FleetDurability::Disk => {
            "acknowledged jobs survive a crash of the database, but not the loss of its disk"
        }
        FleetDurability::LaggingStandby => {
            "a failover loses the jobs that the standby has not received, and may run a job again; \
             set `synchronous_standby_names` to prevent that"
        }
        FleetDurability::SynchronousStandby => {
            "acknowledged jobs survive the loss of the database server"
        }
    };
    let mut text = format!(
        "ok      {} (version {})\npromise {promise}\n",
        report.database, report.server_version
    );
    if report.servers.is_empty() {
        text.push_str("no server of this workspace uses the database\n");
    }
    for FleetServer { id, version, jobs, silent_s } in &report.servers {
        let state = if *silent_s < 0.0 {
            "alive".to_owned()
        } else {
            format!("silent for {silent_s:.0} s")
        };
        let _ = writeln!(text, "server  {id:016x} toolgate {version}: {state}, jobs: {jobs}");
    }
    text
}

fn render_report(
    coverage: &SandboxCoverage,
    profiles: &[SandboxCoverage],
    configured: SandboxProfile,
    require: IncompleteSandboxPolicy,
    server: &Result<(), String>,
    is_root: bool,
) -> String {
    let mut text = match configured {
        SandboxProfile::Off => {
            "sandbox.profile is `off`: programs have all rights of the server.\n\
             Layers that `workspace` would have on this system:\n"
                .to_owned()
        }
        profile => {
            format!("sandbox.profile is `{}`. Layers on this system:\n", profile.name())
        }
    };
    for layer in SandboxLayer::ALL {
        let missing = coverage.missing.iter().find(|it| it.layer == layer);
        let _ = match missing {
            None => writeln!(text, "  ok       {:<9} {}", layer.name(), layer.effect()),
            Some(it) => writeln!(text, "  MISSING  {:<9} {}", layer.name(), it.why),
        };
    }
    text.push_str("Profiles on this system:\n");
    for profile in profiles {
        let does = profile.profile.description();
        let state = if profile.is_complete() { "complete" } else { "incomplete" };
        let _ = writeln!(text, "  {:<9} {does}: {state}", profile.profile.name());
    }
    if !coverage.is_complete() {
        text.push_str(match require {
            IncompleteSandboxPolicy::Best => {
                "Programs run without the missing layers, and results name the layers. With \
                 `sandbox.require = \"strict\"`, toolgate refuses to run programs.\n"
            }
            IncompleteSandboxPolicy::Strict => {
                "Programs are refused (`sandbox.require = \"strict\"`).\n"
            }
        });
    }
    let _ = match server {
        Ok(()) => writeln!(
            text,
            "Landlock confines the server itself to the files it serves, stores and has in its \
             settings."
        ),
        Err(why) => writeln!(text, "The server itself is not confined: {why}"),
    };
    if is_root {
        text.push_str(
            "You are root: programs can read all visible files that root may read. If you can, run \
             the server as another user.\n",
        );
    }
    text
}
