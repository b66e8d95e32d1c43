//! Approves upstreams and shows changes since (`toolgate pins`).

use std::path::PathBuf;
use std::process::ExitCode;

use toolgate::assembly::pins::PinComparison;
use toolgate_upstream::pins::render_changes;

use super::{FolderArgs, complain, print, run_to_end};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  toolgate pins diff              what upstreams have that nobody agreed to
  toolgate pins accept            agree to it, in toolgate.lock
  toolgate pins accept github     of one upstream

A tool that is not as it was pinned is not called, and instructions that are not are not told, until
someone has agreed to them (pins.on_change).
Differences are cosmetic, widening (what went before goes still), breaking, or instruction-like: a
text that speaks to the model rather than of the tool. `diff` ends with 1 where there is any.")]
pub(super) struct PinsArgs {
    #[command(subcommand)]
    what: PinsCommand,
}

#[derive(clap::Subcommand)]
enum PinsCommand {
    /// Show changes of upstreams since they were approved
    Diff(PinnedUpstreamsArgs),
    /// Approve the tools and instructions of upstreams as they are now
    Accept(PinnedUpstreamsArgs),
}

#[derive(clap::Args)]
struct PinnedUpstreamsArgs {
    /// Only these upstreams
    upstreams: Vec<String>,
    /// Workspace whose settings name the upstreams
    #[arg(long, value_name = "PATH", default_value = ".", env = "TOOLGATE_ROOT")]
    root: PathBuf,
    #[command(flatten)]
    folder: FolderArgs,
}

pub(super) fn run(args: &PinsArgs) -> anyhow::Result<ExitCode> {
    let (which, accepts) = match &args.what {
        PinsCommand::Diff(which) => (which, false),
        PinsCommand::Accept(which) => (which, true),
    };
    let loaded = which.folder.load(&which.root)?;
    let runtime = super::small_runtime()?;
    let compared = PinComparison::compare(&which.root, &loaded.config, &which.upstreams);
    let mut compared = run_to_end(runtime, compared)?;
    let text: String =
        compared.changes().map(|(name, became)| render_changes(name, &became)).collect();
    print(&text)?;
    for (name, why) in &compared.unanswered {
        complain(&format!("{name} does not say what it has: {why}"));
    }
    for (name, tool) in &compared.duplicates {
        complain(&format!("{name} lists {tool:?} twice: neither is served, nor agreed to"));
    }
    if !accepts {
        for name in compared.unpinned() {
            complain(&format!("{name} has no pins yet; `toolgate pins accept {name}` makes them"));
        }
    } else if !text.is_empty() || compared.unpinned().next().is_some() {
        let file = compared.accept()?.display().to_string();
        complain(&format!("agreed to, in {file}"));
    } else {
        complain("nothing differs from what was agreed to");
    }
    Ok(match (compared.unanswered.is_empty(), accepts || text.is_empty()) {
        (false, _) => ExitCode::from(2),
        (true, false) => ExitCode::from(1),
        (true, true) => ExitCode::SUCCESS,
    })
}
