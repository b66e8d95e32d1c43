//! Lists the available tools (`toolgate tools`).

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::bail;
use serde_json::{Value, json};
use toolgate::assembly::wiring::ServedWorkspace;
use toolgate_contract::{Caller, Effects, ToolId, ToolSpec, fold_name};
use toolgate_dialects::mcp::model_text;
use toolgate_host::Host;

use super::schema_fields::{SchemaField, fields};
use super::{FolderArgs, print, run_to_end, small_runtime};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  toolgate tools                list all tools
  toolgate tools files_edit     show one tool with its arguments
  toolgate tools --tokens       show what each tool costs a model
  toolgate tools --json         print all details as JSON")]
pub(super) struct ToolsArgs {
    /// Show only this tool, with all details
    tool: Option<String>,
    /// Print all details as JSON
    #[arg(long)]
    json: bool,
    /// Show how many tokens each tool costs a model, about: its name, description and arguments
    #[arg(long, conflicts_with = "json")]
    tokens: bool,
    /// Caller whose tools are shown: the name of a key or token, `local` or `http`
    #[arg(long, value_name = "NAME", default_value = "local")]
    caller: String,
    /// Role of the caller; may be given more than once
    #[arg(long = "role", value_name = "ROLE")]
    roles: Vec<String>,
    /// Workspace of the tools
    #[arg(long, value_name = "PATH", default_value = ".", env = "TOOLGATE_ROOT")]
    root: PathBuf,
    #[command(flatten)]
    folder: FolderArgs,
}

pub(super) fn run(args: &ToolsArgs) -> anyhow::Result<ExitCode> {
    let loaded = args.folder.load(&args.root)?;
    run_to_end(small_runtime()?, async {
        let workspace = ServedWorkspace::open_for_inspection(&args.root, &loaded.config)?;
        // Upstreams without a known listing are asked for it.
        workspace.host.wait_for_listings().await;
        let shown = show(args, &workspace.host);
        workspace.close().await;
        shown
    })
}

fn show(args: &ToolsArgs, host: &Host) -> anyhow::Result<ExitCode> {
    let roles = args.roles.iter().map(|role| Arc::from(role.as_str())).collect();
    let page = host.tools(&Caller { roles, ..Caller::from_name(&args.caller) });
    let wanted = |spec: &ToolSpec| match &args.tool {
        Some(name) => fold_name(name) == fold_name(spec.id.as_str()),
        None => spec.listed || args.json,
    };
    let specs: Vec<_> =
        page.tools.iter().map(|tool| tool.spec()).filter(|spec| wanted(spec)).collect();
    if specs.is_empty() {
        let wanted = args.tool.as_deref().unwrap_or_default();
        if page.tools.is_empty() {
            bail!("no tool is available; check tools.allow, tools.deny and tools.effects");
        }
        let close = |name: &str| strsim::jaro_winkler(name, &fold_name(wanted));
        let names = page.tools.iter().map(|tool| fold_name(tool.spec().id.as_str()));
        let near = names.max_by(|a, b| close(a).total_cmp(&close(b)));
        let near = near.filter(|near| close(near) > 0.75);
        let hint = near.map_or_else(|| ";".to_owned(), |near| format!("; did you mean `{near}`?"));
        bail!("no tool is named `{wanted}`{hint} `toolgate tools` lists the tools");
    }
    if args.tokens {
        print(&token_table(&specs))?;
    } else if args.json {
        let all: Vec<_> = specs.iter().map(|spec| tool_json(spec)).collect();
        print(&format!("{}\n", serde_json::to_string_pretty(&all)?))?;
    } else if args.tool.is_some() {
        for spec in specs {
            let name = fold_name(spec.id.as_str());
            print(&format!("{name}\n{}\n\narguments:\n{}\n", spec.description, arguments(spec)))?;
        }
    } else {
        for spec in specs {
            let first =
                spec.description.split(". ").next().unwrap_or_default().trim_end_matches('.');
            let line = format!(
                "{:<16} {:<8} {first}\n",
                fold_name(spec.id.as_str()),
                effects_name(spec.effects)
            );
            print(&line)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Characters of a tool's text that make one token, on average.
const CHARACTERS_PER_TOKEN: f64 = 3.9;

/// Returns a line for each tool with its estimated tokens, the most expensive first, and the sum.
fn token_table(specs: &[&ToolSpec]) -> String {
    #[allow(clippy::cast_precision_loss, reason = "it is an estimate")]
    let tokens = |characters: usize| (characters as f64 / CHARACTERS_PER_TOKEN).round();
    let sizes = specs.iter().map(|spec| (model_text(spec).chars().count(), &spec.id));
    let mut sizes: Vec<_> = sizes.collect();
    sizes.sort_by(|a, b| b.cmp(a));
    let line = |(size, id): &(usize, &ToolId)| {
        format!("{:<24} {:>6}\n", fold_name(id.as_str()), tokens(*size))
    };
    let all = sizes.iter().map(|(size, _)| size).sum();
    let name = format!("all {} tools", sizes.len());
    sizes.iter().map(line).collect::<String>() + &format!("{name:<24} {:>6}\n", tokens(all))
}

fn tool_json(spec: &ToolSpec) -> Value {
    let mut tool = json!({
        "id": spec.id.as_str(),
        "title": spec.title,
        "description": spec.description,
        "effects": effects_name(spec.effects),
        "idempotent": spec.idempotent,
        "inputSchema": null,
        "outputSchema": null,
    });
    // `json!` would change the text of their numbers.
    tool["inputSchema"] = Value::clone(&spec.input_schema);
    tool["outputSchema"] = spec.output_schema.as_deref().cloned().unwrap_or_default();
    tool
}

fn arguments(spec: &ToolSpec) -> String {
    let lines = fields(&spec.input_schema).into_iter().map(|field| {
        let SchemaField { name, kind, presence, about } = field;
        format!("  {name}: {kind} ({presence})\n      {about}\n")
    });
    lines.collect()
}

pub(super) fn effects_name(effects: Effects) -> &'static str {
    match effects {
        Effects::Reads => "reads",
        Effects::Adds => "adds",
        Effects::Changes => "changes",
        Effects::Runs => "runs",
    }
}
