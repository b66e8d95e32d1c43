//! Calls one tool from a shell (`toolgate call`).

use std::io::{IsTerminal, Read};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use toolgate_contract::{
    CallError, CallEventSink, Caller, ContentBody, HostAnswer, HostRequest, QuestionAsker,
    ResourceContents, ResourceData, ResultText, ToolOutput, ToolRunStatus, exact_json, fold_name,
    strip_byte_order_mark,
};
use toolgate_host::IncomingRequest;
use toolgate_service::assembly::wiring::ServedWorkspace;

use super::follow::ProgressDisplay;
use super::terminal_questions::TerminalUser;
use super::{WorkspaceFolderArgs, complain, print, remote, run_to_end, small_runtime, tools};

/// MCP name of the tool that starts jobs.
const JOBS_START: &str = "jobs_start";
/// End of the error message of a call that needs an answer from a person, if nobody can be asked.
const CANNOT_ASK: &str = "this client cannot ask anyone";

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  toolgate call files_read '{\"path\":\"README.md\"}'
  toolgate call files.search '{\"query\":\"fn main\",\"glob\":\"*.rs\"}' --json
  toolgate call files_write @note.json         read the arguments from a file
  toolgate call exec_run - < args.json         read the arguments from standard input
  toolgate call files_read '{\"path\":\"README.md\"}' --url http://127.0.0.1:8000/mcp
  toolgate call exec_run '{\"command\":\"make\"}' --follow    show progress and output

The result goes to standard output, and notes about it go to standard error. The exit code is 0 if
the call succeeded, 1 if it failed or was refused, and 2 if there was no call: the command line or
configuration is invalid, or no server responds.")]
pub(super) struct CallArgs {
    /// Name of the tool, e.g. files_read or files.read
    tool: String,
    /// Arguments as a JSON object; @FILE reads them from a file, - from standard input
    #[arg(value_name = "JSON", default_value = "{}")]
    arguments: String,
    /// Call the tool at this running server instead of in this process; the settings of that server
    /// apply
    #[arg(long, conflicts_with = "read_only")]
    url: Option<String>,
    #[command(flatten)]
    key: remote::RemoteKeyArgs,
    /// Workspace of the call
    #[arg(long, value_name = "PATH", default_value = ".", env = "TOOLGATE_ROOT")]
    root: PathBuf,
    /// Print the structured result as JSON
    #[arg(long)]
    json: bool,
    /// Show progress and the last log lines on standard error
    #[arg(long)]
    follow: bool,
    #[command(flatten)]
    folder: WorkspaceFolderArgs,
}

pub(super) fn run(args: &CallArgs) -> anyhow::Result<ExitCode> {
    // A configuration file named by the environment is allowed, because it only applies to calls in
    // this process.
    if args.url.is_some() && std::env::args().any(|word| word.starts_with("--config")) {
        bail!("--config does not work with --url, because the server has its own configuration");
    }
    let input = arguments(&args.arguments)?;
    let outcome = run_to_end(small_runtime()?, async {
        let stop = toolgate_service::serve::shutdown::on_signal()?;
        match &args.url {
            Some(url) => call_at_server(args, url, input, stop).await,
            None => call_in_process(args, input, stop).await,
        }
    })?;
    match outcome {
        Ok(output) => show(args, &output),
        Err(refusal) => {
            complain(&refusal);
            Ok(ExitCode::from(1))
        }
    }
}

/// Calls the tool in this process. Returns the tool's output, or the message of the refusal.
async fn call_in_process(
    args: &CallArgs,
    input: Value,
    stop: CancellationToken,
) -> anyhow::Result<Result<ToolOutput, String>> {
    if fold_name(&args.tool) == JOBS_START {
        bail!("jobs need a running server: name one with --url, or call the tool without a job");
    }
    let mut loaded = args.folder.load_to_serve(&args.root)?;
    for upstream in loaded.config.upstream.values_mut() {
        // Stored results would end with this process.
        (upstream.limits.text_bytes, upstream.limits.media_bytes) = (0, 0);
    }
    let workspace = ServedWorkspace::open(&args.root, &loaded.config)?;
    let follow = follow(args);
    let user = TerminalUser::at_terminal(&args.tool, follow.as_ref());
    let request = HostRequest::CallTool { tool: args.tool.clone(), input };
    let incoming = IncomingRequest {
        cancel: stop,
        events: follow.as_ref().map_or_else(CallEventSink::none, ProgressDisplay::sink),
        asker: user.as_ref().map_or_else(QuestionAsker::none, TerminalUser::asker),
        ..IncomingRequest::without_client(request, Caller::local(), "cli")
    };
    let answer = workspace.host.answer(incoming).await;
    let unavailable = match &answer {
        Err(CallError::UnknownTool { unavailable: None, .. }) => {
            tools::hidden_reason(&workspace.host, &args.tool)
                .or_else(|| workspace.unavailable_upstream(&args.tool))
        }
        Ok(_) | Err(_) => None,
    };
    workspace.close().await;
    if let Some(follow) = follow {
        follow.end().await;
    }
    Ok(match answer {
        Ok(HostAnswer::Output(output)) => Ok(output),
        Ok(_) => bail!("unexpected answer to a tool call"),
        Err(error) => Err(match unavailable {
            Some(why) => format!("`{}` is not available: {why}", args.tool),
            None => describe_refusal(&error, args, user.as_ref()),
        }),
    })
}

/// Calls the tool at the running server `url`. Returns the tool's output, or the message of the
/// refusal. Cancels the call if `stop` is cancelled.
async fn call_at_server(
    args: &CallArgs,
    url: &str,
    input: Value,
    stop: CancellationToken,
) -> anyhow::Result<Result<ToolOutput, String>> {
    let remote = args.key.remote(url)?;
    let follow = follow(args);
    let outcome = tokio::select! {
        outcome = remote::call_remote_tool(&remote, &args.tool, input, follow.as_ref()) => outcome,
        () = stop.cancelled() => Ok(Err(CallError::Canceled.to_string())),
    };
    if let Some(follow) = follow {
        follow.end().await;
    }
    outcome
}

fn follow(args: &CallArgs) -> Option<ProgressDisplay> {
    args.follow.then(|| ProgressDisplay::begin(&fold_name(&args.tool), Duration::ZERO))
}

/// Returns the text about the refusal of a call. The text includes the internal cause of `error`,
/// because a local caller may also read the log.
fn describe_refusal(error: &CallError, args: &CallArgs, user: Option<&TerminalUser>) -> String {
    let cause = error.cause().map(|cause| format!(": {cause}")).unwrap_or_default();
    match error {
        CallError::UnknownTool { name, nearest, unavailable } => {
            // `toolgate tools` lists names, not ids.
            let nearest = nearest.as_deref().map(|id| fold_name(id).into_owned());
            let (name, unavailable) = (name.clone(), unavailable.clone());
            let error = CallError::UnknownTool { name, nearest, unavailable };
            format!("{error} (`toolgate tools` lists the available tools)")
        }
        CallError::Conflict { details, .. } => format!("{error}\n{details}"),
        CallError::NotAllowed { .. } if user.is_some_and(TerminalUser::has_declined) => {
            "not done: you declined".to_owned()
        }
        CallError::NotAllowed { message } if user.is_none() => {
            let arguments = match args.arguments.as_str() {
                "-" => ", with the arguments on the command line",
                _ => "",
            };
            let advice = format!(
                "there is no terminal to ask in; run the command in a \
                                  terminal{arguments}"
            );
            message.replace(CANNOT_ASK, &advice)
        }
        other => format!("{other}{cause}"),
    }
}

fn show(args: &CallArgs, output: &ToolOutput) -> anyhow::Result<ExitCode> {
    if args.json {
        let value = match output.structured {
            true => output.value.clone(),
            // A result without a structured value has text and content only.
            false => json!({ "text": output.text.body, "content": output.content }),
        };
        print(&format!("{}\n", serde_json::to_string_pretty(&value)?))?;
    } else {
        let ResultText { body, note } = &output.text;
        print(body)?;
        // A file's bytes are printed unchanged, unless standard output is a terminal.
        let ends_line = std::io::stdout().is_terminal() || fold_name(&args.tool) != "files_read";
        if ends_line && !body.is_empty() && !body.ends_with('\n') {
            print("\n")?;
        }
        for content in &output.content {
            let text = content.as_text();
            match &content.shown {
                ContentBody::Text(_)
                | ContentBody::Resource(ResourceContents { held: ResourceData::Text(_), .. }) => {
                    let end = if text.ends_with('\n') { "" } else { "\n" };
                    print(&format!("{text}{end}"))?;
                }
                ContentBody::Image(_) | ContentBody::Audio(_) | ContentBody::Resource(_) => {
                    complain(&format!("not shown: {text}; use --json to print it"));
                }
                ContentBody::Link(_) => complain(&format!("link: {text}")),
            }
        }
        if let Some(note) = note {
            complain(note);
        }
        if args.url.is_none() && output.value["output_id"].is_string() {
            complain(
                "the rest of the output is not stored: raise max_output_bytes, or call a running \
                 server with --url and read the rest there",
            );
        }
    }
    Ok(match output.ending {
        ToolRunStatus::Done => ExitCode::SUCCESS,
        ToolRunStatus::ProgramFailed | ToolRunStatus::ToolFailed => ExitCode::from(1),
    })
}

#[allow(clippy::disallowed_methods, reason = "the user's own file, named on the command line")]
fn arguments(json: &str) -> anyhow::Result<Value> {
    let text = match json.strip_prefix('@') {
        Some(file) => std::fs::read_to_string(file)
            .with_context(|| format!("cannot read the arguments in {file}"))?,
        None if json == "-" => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).context("cannot read the arguments")?;
            text
        }
        None => json.to_owned(),
    };
    let text = strip_byte_order_mark(&text);
    let value = exact_json::parse(text).with_context(|| {
        format!("the arguments are not JSON; quote them for the shell: '{{\"path\":\"README.md\"}}'. They are: {text}")
    })?;
    if !value.is_object() {
        bail!("the arguments must be a JSON object such as {{\"path\":\"README.md\"}}, not {text}");
    }
    Ok(value)
}
