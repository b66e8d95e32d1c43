//! Lists the available tools (`toolgate tools`).

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::bail;
use serde_json::{Value, json};
use toolgate_contract::{Caller, Effects, ToolSpec, fold_name};
use toolgate_dialects::mcp::model_text;
use toolgate_host::{ExplainedToolMatch, Host, estimate_tokens};
use toolgate_service::assembly::wiring::ServedWorkspace;

use super::schema_fields::{SchemaField, fields};
use super::{WorkspaceFolderArgs, complain, print, remote, run_to_end, small_runtime};

/// Maximum number of tools that `--why` shows.
const FOUND_MAX: usize = 10;

/// Smallest width of the column with the names of tools, in characters.
const NAME_WIDTH_MIN: usize = 16;

/// Largest width of the column with the names of tools, in characters. A longer name shifts only
/// its own line.
const NAME_WIDTH_MAX: usize = 32;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  toolgate tools                list all tools
  toolgate tools files_edit     show one tool with its arguments
  toolgate tools --tokens       show what each tool costs a model
  toolgate tools --why 'undo a commit'
                                show what a search finds, and by which words
  toolgate tools --json         print all details as JSON
  toolgate tools --url http://127.0.0.1:8000/mcp
                                list the tools that a running server offers to your key

Without --url and --caller, the tools are those of the caller `local`.")]
pub(super) struct ToolsArgs {
    /// Show only this tool, with all details
    tool: Option<String>,
    /// Print all details as JSON
    #[arg(long)]
    json: bool,
    /// Show about how many tokens each tool's name, description and arguments cost a model
    #[arg(long, conflicts_with = "json")]
    tokens: bool,
    /// Show the tools that `tools_search` finds for this question, with their scores and the words
    /// that found them
    #[arg(long, value_name = "QUESTION", conflicts_with_all = ["tool", "json", "tokens", "url"])]
    why: Option<String>,
    /// Caller whose tools are shown: the name of a key or token, `local` or `http`
    #[arg(long, value_name = "NAME", default_value = "local", conflicts_with = "url")]
    caller: String,
    /// Role of the caller; may be given more than once
    #[arg(long = "role", value_name = "ROLE", conflicts_with = "url")]
    roles: Vec<String>,
    /// List the tools of the running server at this URL instead of the tools of this folder; the
    /// settings of the server apply
    #[arg(long, conflicts_with = "read_only")]
    url: Option<String>,
    #[command(flatten)]
    key: remote::RemoteKeyArgs,
    /// Workspace of the tools
    #[arg(long, value_name = "PATH", default_value = ".", env = "TOOLGATE_ROOT")]
    root: PathBuf,
    #[command(flatten)]
    folder: WorkspaceFolderArgs,
}

/// A tool in the list of `toolgate tools`.
struct ToolTableRow {
    /// Name of the tool, as MCP clients see it.
    name: String,
    description: String,
    effects: &'static str,
    input_schema: Value,
    /// False for a tool that clients do not see in lists.
    listed: bool,
    /// Number of characters that a model reads about the tool: name, description and arguments.
    model_chars: usize,
    /// All details of the tool, as `--json` prints them.
    json: Value,
}

pub(super) fn run(args: &ToolsArgs) -> anyhow::Result<ExitCode> {
    let Some(url) = &args.url else { return run_in_process(args) };
    if std::env::args().any(|word| word.starts_with("--config")) {
        bail!("--config does not work with --url, because the server has its own configuration");
    }
    let remote = args.key.remote(url)?;
    let entries = run_to_end(small_runtime()?, remote::list_remote_tools(&remote))?;
    let tools: Vec<_> = entries.iter().map(ToolTableRow::from_entry).collect();
    if tools.is_empty() {
        bail!("{url} offers no tool to this caller; its policy decides which tools you see");
    }
    show(args, &tools)
}

fn run_in_process(args: &ToolsArgs) -> anyhow::Result<ExitCode> {
    let loaded = args.folder.load(&args.root)?;
    run_to_end(small_runtime()?, async {
        let workspace = ServedWorkspace::open_for_inspection(&args.root, &loaded.config)?;
        // Upstreams without a known listing are asked for it.
        workspace.host.wait_for_listings().await;
        let shown = show_of_caller(args, &workspace.host);
        workspace.close().await;
        shown
    })
}

/// Prints the tools that are available to the caller in the options `args`. Fails if there is no
/// such tool.
fn show_of_caller(args: &ToolsArgs, host: &Host) -> anyhow::Result<ExitCode> {
    let roles = args.roles.iter().map(|role| Arc::from(role.as_str())).collect();
    let caller = Caller { roles, ..Caller::from_name(&args.caller) };
    let name = &args.caller;
    let page = host.tools(&caller);
    let hidden = host.hidden_tool_count(&caller);
    if page.tools.is_empty() && hidden == 0 {
        bail!("no tool is available; check tools.allow, tools.deny and tools.effects");
    }
    if page.tools.is_empty() {
        bail!(
            "no tool is available to the caller `{name}`: the policy hides {hidden} tools from it; \
             `toolgate policy explain {name} TOOL` shows why, and `toolgate tools --url URL` lists \
             the tools of your key"
        );
    }
    if let Some(tool) = &args.tool
        && caller == Caller::local()
        && let Some(why) = hidden_reason(host, tool)
    {
        bail!("`{tool}` is not available: {why}");
    }
    if let Some(question) = &args.why {
        return show_search(host, &caller, question);
    }
    let tools: Vec<_> =
        page.tools.iter().map(|tool| ToolTableRow::from_spec(tool.spec())).collect();
    let shown = show(args, &tools)?;
    if hidden > 0 && args.tool.is_none() {
        complain(&format!("the policy hides tools from the caller `{name}`: {hidden}"));
    }
    Ok(shown)
}

/// Prints the tools that `caller` finds with the search `question`, with their scores and matching
/// words. Fails if no tool matches.
fn show_search(host: &Host, caller: &Caller, question: &str) -> anyhow::Result<ExitCode> {
    let found = host.explain_search(caller, question, FOUND_MAX);
    if found.is_empty() {
        bail!("no tool contains a word of `{question}`; `toolgate tools` lists the tools");
    }
    for ExplainedToolMatch { name, score, words } in found {
        let words = words.iter().map(|it| format!("{} {:.2}", it.word, it.score));
        let words = words.collect::<Vec<_>>().join(", ");
        print(&format!("{score:>6.2} {name:<24} {words}\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the reason why the policy hides `tool` from the caller `local`, with the command that
/// explains the decision. Returns `None` if the tool does not exist or is not hidden.
pub(super) fn hidden_reason(host: &Host, tool: &str) -> Option<String> {
    let explained = host.explain(&Caller::local(), tool, json!({})).ok()?;
    (!explained.visible).then(|| match explained.rule.starts_with("tools.") {
        true => format!("`{}` denies the tool to all callers", explained.rule),
        false => format!(
            "this command runs as the caller `local`, and the policy hides the tool from this \
             caller (decided by `{}`); `toolgate policy explain local {tool}` shows why, and \
             `--url` with a key asks a running server",
            explained.rule
        ),
    })
}

/// Prints `tools`, or only the tool that the options `args` name. Fails if that tool does not
/// exist.
fn show(args: &ToolsArgs, tools: &[ToolTableRow]) -> anyhow::Result<ExitCode> {
    let is_wanted = |tool: &&ToolTableRow| match &args.tool {
        Some(wanted) => fold_name(wanted) == fold_name(&tool.name),
        None => tool.listed || args.json,
    };
    let shown: Vec<_> = tools.iter().filter(is_wanted).collect();
    if shown.is_empty() {
        let wanted = args.tool.as_deref().unwrap_or_default();
        let close = |name: &str| strsim::jaro_winkler(name, &fold_name(wanted));
        let names = tools.iter().map(|tool| tool.name.as_str());
        let near = names.max_by(|a, b| close(a).total_cmp(&close(b)));
        let near = near.filter(|near| close(near) > 0.75);
        let hint = near.map_or_else(|| ";".to_owned(), |near| format!("; did you mean `{near}`?"));
        bail!("no tool is named `{wanted}`{hint} `toolgate tools` lists the tools");
    }
    if args.tokens {
        print(&token_table(&shown))?;
    } else if args.json {
        let all: Vec<_> = shown.iter().map(|tool| &tool.json).collect();
        print(&format!("{}\n", serde_json::to_string_pretty(&all)?))?;
    } else if args.tool.is_some() {
        for ToolTableRow { name, description, input_schema, .. } in shown {
            let arguments = arguments(input_schema);
            print(&format!("{name}\n{description}\n\narguments:\n{arguments}\n"))?;
        }
    } else {
        let longest = shown.iter().map(|tool| tool.name.chars().count()).max();
        let width = longest.unwrap_or_default().clamp(NAME_WIDTH_MIN, NAME_WIDTH_MAX);
        for ToolTableRow { name, description, effects, .. } in shown {
            let first = first_sentence(description);
            print(&format!("{name:<width$} {effects:<8} {first}\n"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the first sentence of `description` without its full stop, but at most the first line.
fn first_sentence(description: &str) -> &str {
    let line = description.trim().lines().next().unwrap_or_default();
    line.split(". ").next().unwrap_or_default().trim_end_matches('.')
}

impl ToolTableRow {
    fn from_spec(spec: &ToolSpec) -> Self {
        Self {
            name: fold_name(spec.id.as_str()).into_owned(),
            description: spec.description.clone(),
            effects: spec.effects.as_str(),
            input_schema: Value::clone(&spec.input_schema),
            listed: spec.listed,
            model_chars: model_text(spec).chars().count(),
            json: tool_json(spec),
        }
    }

    /// Converts `entry`, an item of a running server's `tools/list`, to a row. The hints in the
    /// entry tell the tool's effects, but not whether the tool runs programs.
    fn from_entry(entry: &Value) -> Self {
        let text = |key: &str| entry[key].as_str().unwrap_or_default().to_owned();
        let hint =
            |key: &str, default: bool| entry["annotations"][key].as_bool().unwrap_or(default);
        let effects = match (hint("readOnlyHint", false), hint("destructiveHint", true)) {
            (true, _) => Effects::Reads,
            (false, false) => Effects::Adds,
            (false, true) => Effects::Changes,
        };
        let (name, description) = (text("name"), text("description"));
        let schema = entry["inputSchema"].to_string();
        let parts = [&name, &description, &schema];
        Self {
            model_chars: parts.iter().map(|part| part.chars().count()).sum(),
            name,
            description,
            effects: effects.as_str(),
            input_schema: entry["inputSchema"].clone(),
            listed: true,
            json: entry.clone(),
        }
    }
}

/// Returns a line for each tool with the estimated number of its tokens, the most expensive first,
/// and the sum.
fn token_table(tools: &[&ToolTableRow]) -> String {
    let mut sizes: Vec<_> = tools.iter().map(|it| (it.model_chars, it.name.as_str())).collect();
    sizes.sort_by(|a, b| b.cmp(a));
    let line = |(size, name): &(usize, &str)| format!("{name:<24} {:>6}\n", estimate_tokens(*size));
    let all = sizes.iter().map(|(size, _)| size).sum();
    let name = format!("all {} tools", sizes.len());
    sizes.iter().map(line).collect::<String>()
        + &format!("{name:<24} {:>6}\n", estimate_tokens(all))
}

fn tool_json(spec: &ToolSpec) -> Value {
    let mut tool = json!({
        "id": spec.id.as_str(),
        "title": spec.title,
        "description": spec.description,
        "effects": spec.effects.as_str(),
        "idempotent": spec.idempotent,
        "inputSchema": null,
        "outputSchema": null,
    });
    // `json!` would change the text of their numbers.
    tool["inputSchema"] = Value::clone(&spec.input_schema);
    tool["outputSchema"] = spec.output_schema.as_deref().cloned().unwrap_or_default();
    tool
}

fn arguments(input_schema: &Value) -> String {
    let lines = fields(input_schema).into_iter().map(|field| {
        let SchemaField { name, kind, presence, about } = field;
        format!("  {name}: {kind} ({presence})\n      {about}\n")
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_is_cut_after_its_first_sentence_or_line() {
        for (description, first) in [
            ("Reads a file. Use it often.", "Reads a file"),
            ("Reads a file.", "Reads a file"),
            ("\nThinks in steps.\n\nWhen to use this tool:\n- often", "Thinks in steps"),
            ("A title\nReads. Writes.", "A title"),
            ("", ""),
        ] {
            assert_eq!(first_sentence(description), first, "{description}");
        }
    }
}
