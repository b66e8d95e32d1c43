//! Imports commands of programs and upstreams of MCP clients (`toolgate import`).

mod pack;
mod servers;
mod usage;
mod zyra;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use toolgate_toolsets::commands;

use super::{complain, print};
use pack::ImportedPack;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  toolgate import zyra --to packs/zyra
  toolgate import servers cursor --to toolgate.toml")]
pub(super) struct ImportArgs {
    #[command(subcommand)]
    importer: ImportCommand,
}

/// The sources of `toolgate import`, one file each.
#[derive(clap::Subcommand)]
enum ImportCommand {
    /// Import the commands of Zyra, which processes environmental data
    Zyra(PackImportArgs),
    /// Import MCP servers from your clients' configuration files
    Servers(servers::ImportServersArgs),
}

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  toolgate import zyra --to packs/zyra
  toolgate import zyra --from .tools/zyra/bin/zyra --to packs/zyra
  toolgate import zyra --from capabilities.json --to packs/zyra

The program itself gives more details than a listing in a file, so toolgate runs it. To offer the
commands, add `packs = [\"packs/zyra\"]` to [commands] in toolgate.toml.")]
struct PackImportArgs {
    /// Program, or a file with the program's list of commands; by default `zyra` in PATH
    #[arg(long, value_name = "FILE|PROGRAM")]
    from: Option<PathBuf>,
    /// Folder to write the pack of declared commands into
    #[arg(long, value_name = "FOLDER")]
    to: PathBuf,
}

pub(super) fn run(args: &ImportArgs) -> anyhow::Result<ExitCode> {
    match &args.importer {
        ImportCommand::Zyra(pack) => write_pack(zyra::import(pack.from.as_deref())?, &pack.to),
        ImportCommand::Servers(args) => servers::run(args),
    }
}

/// Writes an imported pack of commands into the folder `to`, and prints the imported commands and
/// the parts that could not be imported. Fails if the file cannot be written.
fn write_pack(imported: ImportedPack, to: &Path) -> anyhow::Result<ExitCode> {
    let ImportedPack { name, text, commands, left_out } = imported;
    let file = to.join(format!("{name}.toml"));
    write_file(&file, &text)?;
    let settings = commands::CommandSettings { packs: vec![file.clone()], ..Default::default() };
    let read = commands::load_commands(&settings, None)
        .context("cannot read the pack that was just written, which is a bug of the importer")?;
    let unit = if read.len() == 1 { "command" } else { "commands" };
    print(&format!("{}: {} {unit}\n", file.display(), read.len()))?;
    for id in commands {
        print(&format!("  {id}\n"))?;
    }
    for note in left_out {
        complain(&format!("not imported: {note}"));
    }
    Ok(ExitCode::SUCCESS)
}

#[allow(clippy::disallowed_methods, reason = "the user's own folder, named on the command line")]
fn write_file(file: &Path, text: &str) -> anyhow::Result<()> {
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot create the folder {}", folder.display()))?;
    }
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}
