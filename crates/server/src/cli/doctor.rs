//! Checks the sandbox and upstreams (`toolgate doctor`).

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;

use anyhow::{Context, anyhow, bail};
use serde_json::json;
use toolgate::config::environment;
use toolgate_upstream::UpstreamListing;
use toolgate_world::sandbox::{
    SandboxCoverage, SandboxLayer, SandboxPaths, SandboxProfile, SandboxRequirement, ServerAccess,
    confine_server,
};
use toolgate_world::{Root, Sandbox};

use super::login::UpstreamArg;
use super::{FolderArgs, print, run_to_end};

#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  toolgate doctor                 what the sandbox of this folder's programs holds here
  toolgate doctor ~/src/app --json
  toolgate doctor upstreams       whether each upstream of this folder answers
  toolgate doctor oauth linear    how [upstream.linear] lets us in, step by step

Each layer is tried by doing it, in a process of its own. The exit code is 1 where the profile that
is configured promises what this system does not hold."
)]
pub(super) struct DoctorArgs {
    /// Workspace whose settings are checked
    #[arg(default_value = ".")]
    root: PathBuf,
    #[command(flatten)]
    folder: FolderArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(subcommand)]
    what: Option<DoctorCommand>,
}

#[derive(clap::Subcommand)]
enum DoctorCommand {
    /// Test the OAuth authorization of an upstream, step by step
    #[command(after_help = "\
A line a step; no token and no secret is in any. The exit code is 1 where one does not go.")]
    Oauth(UpstreamArg),
    /// Test each upstream by listing it
    #[command(
        alias = "upstream",
        after_help = "\
Examples:
  toolgate doctor upstreams
  toolgate doctor upstreams github linear

A line an upstream. The exit code is 1 where one does not answer."
    )]
    Upstreams(DoctorUpstreamsArgs),
}

#[derive(clap::Args)]
struct DoctorUpstreamsArgs {
    /// Upstreams to test; all by default
    names: Vec<String>,
    /// Workspace whose settings name the upstreams
    #[arg(long, value_name = "PATH", default_value = ".", env = "TOOLGATE_ROOT")]
    root: PathBuf,
    #[command(flatten)]
    folder: FolderArgs,
}

pub(super) fn run(args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    match &args.what {
        Some(DoctorCommand::Oauth(at)) => return test_oauth(at),
        Some(DoctorCommand::Upstreams(of)) => return test_upstreams(of),
        None => {}
    }
    let config = args.folder.load(&args.root)?.config;
    let sandbox =
        Sandbox::new(&config.sandbox, SandboxPaths::default()).map_err(|why| anyhow!(why))?;
    let root = Root::open(&args.root)
        .with_context(|| format!("the folder {} cannot be opened", args.root.display()))?;
    let configured = config.sandbox.profile;
    // Without a sandbox, the report shows the layers of the default profile.
    let asked =
        if configured == SandboxProfile::Off { SandboxProfile::Workspace } else { configured };
    let variables = environment().into_iter().collect();
    let held = sandbox.coverage(asked, &root, &variables)?;
    let profiles = [SandboxProfile::ReadOnly, SandboxProfile::Workspace, SandboxProfile::Network];
    let profiles = profiles.map(|profile| sandbox.coverage(profile, &root, &variables));
    let profiles = profiles.into_iter().collect::<Result<Vec<_>, _>>()?;
    let is_root = rustix::process::geteuid().is_root();
    // Confinement cannot be undone, so it runs on its own thread.
    let server = thread::spawn(|| confine_server(&ServerAccess::default())).join();
    let server = server.unwrap_or_else(|_| Err("trying it panicked".to_owned()));
    let server = match config.server.confined {
        true => server,
        false => Err("server.confined is false".to_owned()),
    };
    let text = if args.json {
        let is_held = |layer: SandboxLayer| !held.missing.iter().any(|it| it.layer == layer);
        let layers: serde_json::Map<_, _> = SandboxLayer::ALL
            .iter()
            .map(|&it| (it.name().to_owned(), is_held(it).into()))
            .collect();
        let told = json!({
            "configured": configured, "profile": asked, "require": config.sandbox.require,
            "layers": layers, "missing": held.missing, "profiles": profiles, "root": is_root,
            "server": { "confined": server.is_ok(), "why": server.err() },
        });
        format!("{told:#}\n")
    } else {
        render_report(&held, &profiles, configured, config.sandbox.require, &server, is_root)
    };
    print(&text)?;
    let is_kept = configured == SandboxProfile::Off || held.is_complete();
    Ok(if is_kept { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Tests the OAuth authorization of an upstream.
fn test_oauth(at: &UpstreamArg) -> anyhow::Result<ExitCode> {
    let is_in = run_to_end(super::small_runtime()?, async {
        let entry = at.open_sign_in()?;
        let is_in = entry
            .check_access(&mut |what, outcome| {
                let (mark, said) = match outcome {
                    Ok(said) => ("ok    ", said),
                    Err(why) => ("FAILED", why),
                };
                let _ = print(&format!("{mark}  {what}: {said}\n"));
            })
            .await;
        entry.close().await;
        anyhow::Ok(is_in)
    })?;
    Ok(if is_in { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Tests each upstream by listing it.
fn test_upstreams(of: &DoctorUpstreamsArgs) -> anyhow::Result<ExitCode> {
    let config = of.folder.load(&of.root)?.config;
    let said = run_to_end(
        super::small_runtime()?,
        toolgate::assembly::probe::probe_upstreams(&of.root, &config, &of.names),
    )?;
    if said.is_empty() {
        bail!("there is no upstream that is enabled in toolgate.toml");
    }
    let mut all_answer = true;
    for (name, listing) in said {
        let line = match listing {
            Ok(UpstreamListing { revision, tools, resources, prompts, .. }) => {
                let tools = tools.len();
                let resources = resources.len();
                let prompts = prompts.len();
                format!(
                    "ok      {name}: it speaks {revision} (tools: {tools}, resources: {resources}, \
                     prompts: {prompts})\n"
                )
            }
            Err(why) => {
                all_answer = false;
                format!("FAILED  {name}: {}\n", why.trim())
            }
        };
        print(&line)?;
    }
    Ok(if all_answer { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn render_report(
    held: &SandboxCoverage,
    profiles: &[SandboxCoverage],
    configured: SandboxProfile,
    require: SandboxRequirement,
    server: &Result<(), String>,
    is_root: bool,
) -> String {
    let mut text = match configured {
        SandboxProfile::Off => {
            "sandbox.profile is `off`: programs may do whatever the server may.\n\
                         With `workspace` this system would hold:\n"
                .to_owned()
        }
        profile => format!("sandbox.profile is `{}`. This system holds:\n", profile.name()),
    };
    for layer in SandboxLayer::ALL {
        let lacking = held.missing.iter().find(|it| it.layer == layer);
        let _ = match lacking {
            None => writeln!(text, "  held     {:<9} {}", layer.name(), layer.effect()),
            Some(it) => writeln!(text, "  MISSING  {:<9} {}", layer.name(), it.why),
        };
    }
    text.push_str("A program then\n");
    for held in profiles {
        let does = held.profile.description();
        let whole = if held.is_complete() { "whole" } else { "not whole" };
        let _ = writeln!(text, "  {:<9} {does}: {whole}", held.profile.name());
    }
    if !held.is_complete() {
        text.push_str(match require {
            SandboxRequirement::Best => {
                "Programs run all the same, and results say what is missing; \
                 `sandbox.require = \"strict\"` refuses them.\n"
            }
            SandboxRequirement::Strict => {
                "Programs are not run (`sandbox.require = \"strict\"`).\n"
            }
        });
    }
    let _ = match server {
        Ok(()) => writeln!(
            text,
            "The server itself is held by Landlock: of the machine's files it reads and writes what it \
             serves, keeps and was told of."
        ),
        Err(why) => writeln!(text, "The server itself is not confined: {why}"),
    };
    if is_root {
        text.push_str(
            "This is root: whatever is seen and is root's can be read. Serve as another user \
             where you can.\n",
        );
    }
    text
}
