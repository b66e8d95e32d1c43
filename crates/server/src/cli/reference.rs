//! Generates pages of `docs/reference/` from the code (`toolgate reference`).

use std::path::Path;
use std::process::ExitCode;

use clap::CommandFactory;
use toolgate::config;
use toolgate::wiring::Workspace;
use toolgate_contract::{Caller, fold};

use super::shape::{Field, fields};
use super::{Cli, print, tools};

#[derive(clap::Args)]
pub(super) struct Args {
    /// Name of the page
    page: Page,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Page {
    /// Settings
    Config,
    /// JSON Schema of the configuration file
    ConfigSchema,
    /// Tools
    Tools,
    /// Command line
    Cli,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let page = match args.page {
        Page::Config => config::reference(),
        Page::ConfigSchema => format!("{}\n", serde_json::to_string_pretty(&config::schema())?),
        Page::Tools => tool_pages()?,
        Page::Cli => command_line(),
    };
    print(&page)?;
    Ok(ExitCode::SUCCESS)
}

fn tool_pages() -> anyhow::Result<String> {
    let mut config = config::Config::default();
    config.assets.owner.always = true;
    let host = Workspace::look(Path::new("."), &config)?.host;
    let mut page = String::from(
        "# Tools\n\n<!-- Written by `cargo xtask codegen` from the tools themselves; edit those. -->\n",
    );
    for tool in host.tools(&Caller::local()).tools {
        let spec = tool.spec();
        page += &format!(
            "\n## {id}\n\n{about}\n\n- name in MCP: `{name}`\n- effects: {effects}\n- idempotent: {idempotent}\n\n\
             | argument | type | meaning |\n|---|---|---|\n",
            id = spec.id,
            about = spec.about,
            name = fold(spec.id.as_str()),
            effects = tools::effect(spec.effects),
            idempotent = if spec.idempotent { "yes" } else { "no" },
        );
        page += &rows(&spec.input_schema);
        page += "\n| result | type | meaning |\n|---|---|---|\n";
        page += &rows(spec.output_schema.as_deref().unwrap_or(&serde_json::Value::Null));
    }
    Ok(page)
}

fn rows(schema: &serde_json::Value) -> String {
    let rows = fields(schema).into_iter().map(|field| {
        let Field { name, kind, when, about } = field;
        format!("| `{name}` | {kind}, {when} | {} |\n", about.replace('|', "\\|"))
    });
    rows.collect()
}

fn command_line() -> String {
    let mut page = String::from(
        "# Command line\n\n<!-- Written by `cargo xtask codegen` from the command line itself; edit that. -->\n",
    );
    let mut root = Cli::command().term_width(100);
    root.build();
    page += &format!("\n```text\n{}```\n", root.render_long_help());
    sections(&mut root, "##", "", &mut page);
    page
}

/// Adds a section for each command of `root` with headings of this `depth`, and below it those of
/// its subcommands. `before` is the prefix of their names.
fn sections(root: &mut clap::Command, depth: &str, before: &str, page: &mut String) {
    let is_told =
        |command: &&mut clap::Command| !command.is_hide_set() && command.get_name() != "help";
    for command in root.get_subcommands_mut().filter(is_told) {
        let name = format!("{before}{}", command.get_name());
        let help = command.render_long_help();
        *page += &format!("\n{depth} {name}\n\n```text\n{help}```\n");
        sections(command, &format!("{depth}#"), &format!("{name} "), page);
    }
}
