//! Approves the tools of upstreams, and shows how they changed since (`toolgate pins`).

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use toolgate_service::assembly::pins::PinComparison;
use toolgate_upstream::pins::render_changes;

use super::terminal_questions::ask_yes_no;
use super::{WorkspaceFolderArgs, complain, print, run_to_end};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  toolgate pins diff              show tools and instructions that are not approved
  toolgate pins accept            approve all of them in toolgate.lock, which you commit
  toolgate pins accept github     approve the tools and instructions of one upstream

If a tool differs from its pin, toolgate does not call the tool until you approve the change.
toolgate does not pass on changed instructions until you approve them (pins.on_change). A change is
cosmetic, widening (earlier calls still work), breaking, or instruction-like (the new text addresses
the model). The exit code of `diff` is 1 if there are changes.")]
pub(super) struct PinsArgs {
    #[command(subcommand)]
    command: PinsCommand,
}

#[derive(clap::Subcommand)]
enum PinsCommand {
    /// Show changes of upstreams since they were approved
    Diff(PinnedUpstreamsArgs),
    /// Approve the current tools and instructions of upstreams
    Accept(AcceptPinsArgs),
}

#[derive(clap::Args)]
struct AcceptPinsArgs {
    #[command(flatten)]
    pinned: PinnedUpstreamsArgs,
    /// Print full definitions and differences, as `diff` does, instead of a summary
    #[arg(long)]
    full: bool,
    /// Approve without asking. Without a terminal, the command approves only with this option
    #[arg(long, short)]
    yes: bool,
}

#[derive(clap::Args)]
struct PinnedUpstreamsArgs {
    /// Upstreams to compare or approve; all by default
    upstreams: Vec<String>,
    /// Workspace whose settings name the upstreams
    #[arg(long, value_name = "PATH", default_value = ".", env = "TOOLGATE_ROOT")]
    root: PathBuf,
    #[command(flatten)]
    folder: WorkspaceFolderArgs,
}

pub(super) fn run(args: &PinsArgs) -> anyhow::Result<ExitCode> {
    let (args, accept) = match &args.command {
        PinsCommand::Diff(args) => (args, None),
        PinsCommand::Accept(accept) => (&accept.pinned, Some(accept)),
    };
    let loaded = args.folder.load(&args.root)?;
    let runtime = super::small_runtime()?;
    let comparison = PinComparison::compare(&args.root, &loaded.config, &args.upstreams);
    let mut comparison = run_to_end(runtime, comparison)?;
    let text: String =
        comparison.changes().map(|(name, changes)| render_changes(name, &changes)).collect();
    match accept {
        Some(accept) if !accept.full => print(&comparison.summary())?,
        Some(_) | None => print(&text)?,
    }
    for (name, why) in &comparison.unanswered {
        complain(&format!("{name} does not list its tools: {why}"));
    }
    for (name, tool) in &comparison.duplicates {
        complain(&format!("{name} lists {tool:?} twice: toolgate neither serves nor approves it"));
    }
    match accept {
        None => {
            for name in comparison.unpinned() {
                complain(&format!(
                    "{name} has no pins yet; `toolgate pins accept {name}` adds them"
                ));
            }
        }
        Some(_) if text.is_empty() && comparison.unpinned().next().is_none() => {
            complain("nothing has changed since the approval");
        }
        Some(accept) => {
            let question = "Approve these definitions? `toolgate pins diff` shows them in full. ";
            match accept.yes.then_some(true).or_else(|| ask_yes_no(question)) {
                Some(true) => {}
                Some(false) => {
                    complain("nothing was approved");
                    return Ok(ExitCode::from(1));
                }
                None => bail!(
                    "nothing was approved: no terminal to ask on; read the definitions, then run the \
                     command with --yes"
                ),
            }
            let file = comparison.accept()?.display().to_string();
            let left: Vec<_> =
                comparison.unanswered.iter().map(|(name, _)| name.as_str()).collect();
            let except = match left.is_empty() {
                true => String::new(),
                false => format!(", except {}", left.join(", ")),
            };
            complain(&format!("approved{except}, in {file}; commit this file"));
        }
    }
    Ok(match (comparison.unanswered.is_empty(), accept.is_some() || text.is_empty()) {
        (false, _) => ExitCode::from(2),
        (true, false) => ExitCode::from(1),
        (true, true) => ExitCode::SUCCESS,
    })
}
