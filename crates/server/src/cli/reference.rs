//! Generates pages of `docs/reference/` from the code (`toolgate reference`).

use std::path::Path;
use std::process::ExitCode;

use clap::CommandFactory;
use toolgate::assembly::wiring::ServedWorkspace;
use toolgate::config;
use toolgate_contract::{Caller, fold_name};

use super::schema_fields::{SchemaField, fields};
use super::{Cli, print, tools};

#[derive(clap::Args)]
pub(super) struct ReferenceArgs {
    /// Name of the page
    page: ReferencePage,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum ReferencePage {
    /// Settings
    Config,
    /// JSON Schema of the configuration file
    ConfigSchema,
    /// Tools
    Tools,
    /// Metrics
    Metrics,
    /// Command line
    Cli,
}

pub(super) fn run(args: &ReferenceArgs) -> anyhow::Result<ExitCode> {
    let page = match args.page {
        ReferencePage::Config => config::reference(),
        ReferencePage::ConfigSchema => {
            format!("{}\n", serde_json::to_string_pretty(&config::schema())?)
        }
        ReferencePage::Tools => tool_pages()?,
        ReferencePage::Metrics => toolgate::telemetry::metrics_reference(),
        ReferencePage::Cli => command_line(),
    };
    print(&page)?;
    Ok(ExitCode::SUCCESS)
}

fn tool_pages() -> anyhow::Result<String> {
    let mut config = config::Config::default();
    config.assets.owner.always_offered = true;
    let host = ServedWorkspace::open_for_inspection(Path::new("."), &config)?.host;
    let mut page = String::from(
        "# Tools\n\n<!-- Written by `cargo xtask codegen` from the tools themselves; edit those. -->\n",
    );
    for tool in host.tools(&Caller::local()).tools {
        let spec = tool.spec();
        page += &format!(
            "\n## {id}\n\n{about}\n\n- name in MCP: `{name}`\n- effects: {effects}\n- idempotent: {idempotent}\n\n\
             | argument | type | meaning |\n|---|---|---|\n",
            id = spec.id,
            about = spec.description,
            name = fold_name(spec.id.as_str()),
            effects = tools::effects_name(spec.effects),
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
        let SchemaField { name, kind, presence: when, about } = field;
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
