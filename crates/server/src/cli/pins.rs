//! Approves upstreams and shows changes since (`toolgate pins`).

use std::path::PathBuf;
use std::process::ExitCode;

use toolgate::pins::Compared;
use toolgate_upstream::pins::shown;

use super::{Folder, complain, print, run_to_end};

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
pub(super) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// Show changes of upstreams since they were approved
    Diff(Which),
    /// Approve the tools and instructions of upstreams as they are now
    Accept(Which),
}

#[derive(clap::Args)]
struct Which {
    /// Only these upstreams
    upstreams: Vec<String>,
    /// Workspace whose settings name the upstreams
    #[arg(long, value_name = "PATH", default_value = ".", env = "TOOLGATE_ROOT")]
    root: PathBuf,
    #[command(flatten)]
    folder: Folder,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let (which, accepts) = match &args.what {
        What::Diff(which) => (which, false),
        What::Accept(which) => (which, true),
    };
    let loaded = which.folder.load(&which.root)?;
    let runtime = super::small_runtime()?;
    let compared = Compared::of(&which.root, &loaded.config, &which.upstreams);
    let mut compared = run_to_end(runtime, compared)?;
    let text: String = compared.changes().map(|(name, became)| shown(name, &became)).collect();
    print(&text)?;
    for (name, why) in &compared.silent {
        complain(&format!("{name} does not say what it has: {why}"));
    }
    for (name, tool) in &compared.twice {
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
    Ok(match (compared.silent.is_empty(), accepts || text.is_empty()) {
        (false, _) => ExitCode::from(2),
        (true, false) => ExitCode::from(1),
        (true, true) => ExitCode::SUCCESS,
    })
}
