//! Runs the envelope contract once and checks the results (`toolgate contract check`).

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use bytes::Bytes;
use http::{HeaderMap, Method};
use serde_json::{Value, json};
use toolgate_contract::{FrameMetadata, MessageFrame, ReplyBody};
use toolgate_host::{OutputSchemaCheck, SharedSchemaId};
use toolgate_service::answer_once;
use toolgate_service::assembly::wiring::ServedWorkspace;

use super::diff_logs::{self, EnvelopeLogComparison};
use crate::cli::envelope_options::EnvelopeOptions;
use crate::cli::{WorkspaceFolderArgs, complain, print, run_to_end, small_runtime};

/// Configuration file that `contract check` uses, if the checked folder contains it.
const CONFIGURATION: &str = "tests/fixtures/mcp/toolgate.toml";
/// Document that `contract check` loads through a tool.
const DOCUMENT: &str = "tests/fixtures/mcp/docs/sample_article.md";
/// Path of the newest envelope log inside the log folder.
const LATEST: &str = "mcp_server/envelope_validation.latest.jsonl";

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  toolgate contract check --once --deterministic-ids --log-dir runs
                        discover, get a prompt and load a document, each in its envelope
  toolgate contract check --once --deterministic-ids --log-dir runs \\
      --golden tests/fixtures/mcp/envelope_validation_golden.jsonl
                        also compare the log with a golden log

The configuration is tests/fixtures/mcp/toolgate.toml, if the folder has this file and --config is
not given. The exit code is 0 if the check succeeds, 1 if a request was refused, an envelope violates
its schema or the log differs, and 2 if nothing could be checked.")]
pub(super) struct ContractCheckArgs {
    /// Folder to check
    #[arg(default_value = ".", env = "TOOLGATE_ROOT")]
    path: PathBuf,
    /// Run the contract once, in this process
    #[arg(long, required = true)]
    once: bool,
    /// Effect if an envelope violates its schema: off, shadow or enforce
    #[arg(long, value_name = "MODE", value_parser = mode)]
    mode: Option<OutputSchemaCheck>,
    /// Compare the log with this log file
    #[arg(long, value_name = "FILE", requires = "log_dir")]
    golden: Option<PathBuf>,
    #[command(flatten)]
    enveloping: EnvelopeOptions,
    #[command(flatten)]
    folder: WorkspaceFolderArgs,
}

/// A request that `contract check` sends to the server in this process.
struct ContractCheckRequest {
    name: &'static str,
    method: Method,
    path: &'static str,
    body: Value,
}

fn steps() -> [ContractCheckRequest; 3] {
    let get =
        |name, path| ContractCheckRequest { name, method: Method::GET, path, body: Value::Null };
    [
        get("discover", "/mcp/discover"),
        get("prompt", "/mcp/prompt/core.generic.bootstrap@1"),
        ContractCheckRequest {
            name: "tool",
            method: Method::POST,
            path: "/mcp/tool/mcp.tool:docs.load.fetch",
            body: json!({ "arguments": { "path": DOCUMENT } }),
        },
    ]
}

pub(super) fn run(args: &ContractCheckArgs) -> anyhow::Result<ExitCode> {
    let own = args.path.join(CONFIGURATION);
    let own = (args.folder.config.is_none() && own.is_file()).then_some(own);
    let config = own.or_else(|| args.folder.config.clone());
    let folder = WorkspaceFolderArgs { config, ..args.folder.clone() };
    let mut loaded = folder.load_to_serve(&args.path)?;
    args.enveloping.apply(&mut loaded.config);
    if let Some(mode) = args.mode {
        loaded.config.envelope.validation = mode;
    }
    let all_passed = run_to_end(small_runtime()?, async {
        let workspace = ServedWorkspace::open(&args.path, &loaded.config)?;
        let served = workspace.server();
        let mut all_passed = true;
        for step in steps() {
            let reply = answer_once(&served, "envelope", step.frame()).await?;
            let ReplyBody::Json(bytes) = reply.body else { bail!("no answer to {}", step.name) };
            let envelope: Value = serde_json::from_slice(&bytes)?;
            let schemas = served.host.schemas();
            let problems = schemas.shared_problems(SharedSchemaId::Envelope, &envelope);
            for problem in &problems {
                complain(&format!("{}: {} {}", step.name, problem.pointer, problem.message));
            }
            all_passed &= reply.status == 200 && problems.is_empty();
            print(&step_line(step.name, reply.status, &envelope))?;
        }
        workspace.close().await;
        anyhow::Ok(all_passed)
    })?;
    let log = args.enveloping.log_dir().map(|folder| folder.join(LATEST));
    if let Some(log) = &log {
        complain(&format!("the log is in {}", log.display()));
    }
    let is_same = match (&log, &args.golden) {
        (Some(log), Some(golden)) => is_same_log(log, golden)?,
        _ => true,
    };
    Ok(if all_passed && is_same { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

impl ContractCheckRequest {
    fn frame(&self) -> MessageFrame {
        let head = FrameMetadata::Http {
            method: self.method.clone(),
            path: self.path.to_owned(),
            query: String::new(),
            headers: HeaderMap::new(),
        };
        let body = if self.body.is_null() { String::new() } else { self.body.to_string() };
        MessageFrame { head, body: Bytes::from(body) }
    }
}

/// Formats the result of the request `name` of `contract check` as a line for people.
fn step_line(name: &str, status: u16, envelope: &Value) -> String {
    let meta = &envelope["meta"];
    let outcome = match envelope["error"]["message"].as_str() {
        Some(why) => format!("{}: {why}", envelope["error"]["code"].as_str().unwrap_or_default()),
        None => "ok".to_owned(),
    };
    format!(
        "{name:<9} {status}  {} bytes in, {} out, {}  {outcome}\n",
        meta["inputBytes"],
        meta["outputBytes"],
        meta["requestId"].as_str().unwrap_or_default()
    )
}

/// Returns true if the envelope logs in the files `log` and `golden` are equal. Prints their
/// differences otherwise. Fails if a log cannot be read.
fn is_same_log(log: &Path, golden: &Path) -> anyhow::Result<bool> {
    let differences = EnvelopeLogComparison::default().differences(log, golden)?;
    diff_logs::print_differences(&differences)?;
    Ok(differences.is_empty())
}

fn mode(text: &str) -> Result<OutputSchemaCheck, String> {
    let mode = serde_json::from_value(Value::from(text.to_ascii_lowercase()));
    mode.map_err(|_| "expected off, shadow or enforce".to_owned())
}

/// Reads `file` and parses its content as JSON. Fails if either is not possible.
pub(super) fn read_json(file: &Path) -> anyhow::Result<Value> {
    let bytes = diff_logs::read_text(file)?;
    serde_json::from_str(&bytes).with_context(|| format!("{} is not JSON", file.display()))
}
