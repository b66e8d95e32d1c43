//! Builds or updates the search index of a workspace (`toolgate index`).

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::bail;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use toolgate_contract::{CallError, Caller, HostAnswer, HostRequest, QuestionAsker, ToolOutput};
use toolgate_host::IncomingRequest;
use toolgate_service::assembly::wiring::ServedWorkspace;

use super::follow::{ProgressDisplay, ProgressUpdate};
use super::{WorkspaceFolderArgs, complain, print, run_to_end, small_runtime};

/// Id of the tool that reports the state of the search index.
const TOOL: &str = "search.index_status";
/// Time for which one call of `search.index_status` waits for the index, in milliseconds.
const WAIT_MS: u64 = 10_000;
/// Time between two checks whether passages still lack vectors.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Time without new vectors after which `toolgate index` stops waiting.
const VECTORS_STUCK_AFTER: Duration = Duration::from_secs(120);
/// Time without newly indexed files after which `toolgate index` no longer waits for another server
/// that builds the index. A working server reports progress every few seconds.
const BUILDER_STUCK_AFTER: Duration = Duration::from_secs(30);

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  toolgate index                       build or update this folder's index
  toolgate index --namespace std       index another namespace
  toolgate index --vectors             also wait for the configured model's vectors
  toolgate index --json                print the final state as JSON

A server builds the index at the first search, which then waits for it. If another server is
building the index, this command waits for that server. Progress goes to standard error. The exit
code is 0 if the index is up to date, and 1 if it cannot be built.")]
pub(super) struct IndexCommandArgs {
    /// Workspace to index
    #[arg(value_name = "PATH", default_value = ".", env = "TOOLGATE_ROOT")]
    root: PathBuf,
    /// Namespace to index; the whole workspace by default
    #[arg(long)]
    namespace: Option<String>,
    /// Wait until all passages have a vector from the configured model
    #[arg(long)]
    vectors: bool,
    /// Print the final state as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    folder: WorkspaceFolderArgs,
}

pub(super) fn run(args: &IndexCommandArgs) -> anyhow::Result<ExitCode> {
    let outcome = run_to_end(small_runtime()?, async {
        let stop = toolgate_service::serve::shutdown::on_signal()?;
        wait_indexed(args, stop).await
    })?;
    let indexed = match outcome {
        Ok(indexed) => indexed,
        Err(refusal) => {
            let cause = refusal.cause().map(|cause| format!(": {cause}")).unwrap_or_default();
            complain(&format!("{refusal}{cause}"));
            return Ok(ExitCode::from(1));
        }
    };
    if args.json {
        print(&format!("{}\n", serde_json::to_string_pretty(&indexed.value)?))?;
    } else {
        print(&indexed.text.body)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Waits until the search index is up to date and returns the index's state, or the refusal of the
/// tool call.
async fn wait_indexed(
    args: &IndexCommandArgs,
    stop: CancellationToken,
) -> anyhow::Result<Result<ToolOutput, CallError>> {
    let loaded = args.folder.load_to_serve(&args.root)?;
    let workspace = ServedWorkspace::open(&args.root, &loaded.config)?;
    let name = args.namespace.clone().unwrap_or_else(|| "workspace".to_owned());
    let input = json!({ "namespace": name, "wait_ms": WAIT_MS });
    let follow = ProgressDisplay::begin("index", Duration::ZERO);
    let mut other = OtherServerIndexProgress::default();
    let mut vectors = VectorIndexProgress::default();
    let outcome = loop {
        let request = HostRequest::CallTool { tool: TOOL.to_owned(), input: input.clone() };
        let incoming = IncomingRequest {
            cancel: stop.clone(),
            events: follow.sink(),
            asker: QuestionAsker::none(),
            ..IncomingRequest::without_client(request, Caller::local(), "cli")
        };
        match workspace.host.answer(incoming).await {
            Ok(HostAnswer::Output(output)) => {
                let indexed = &output.value["namespaces"][&name];
                if is_reading_files(indexed) {
                    continue;
                }
                let progress = if other.update(indexed) {
                    other.progress()
                } else if args.vectors && !vectors.update(indexed) {
                    vectors.progress()
                } else {
                    break Ok(output);
                };
                follow.show(progress).await;
                // The other server, or the model, proceeds in the background.
                tokio::select! {
                    () = tokio::time::sleep(POLL_INTERVAL) => {}
                    () = stop.cancelled() => break Err(CallError::Canceled),
                }
            }
            Ok(_) => bail!("unexpected answer to a tool call"),
            Err(error) => break Err(error),
        }
    };
    workspace.close().await;
    follow.end().await;
    Ok(outcome)
}

/// Returns true if `indexed`, the state of the search index, says that files are still being read.
fn is_reading_files(indexed: &Value) -> bool {
    matches!(indexed["state"].as_str(), Some("absent" | "building" | "rebuilding"))
}

/// Progress of a different server, which builds the same search index.
#[derive(Default)]
struct OtherServerIndexProgress {
    files: ProgressCount,
}

impl OtherServerIndexProgress {
    /// Updates the number of files that the other server has indexed from `indexed`, the state of
    /// the index. Returns true if that server is still indexing.
    fn update(&mut self, indexed: &Value) -> bool {
        if indexed["state"] != "following" || indexed["complete"] == true {
            return false;
        }
        // The index may stay incomplete, because a limit was reached or that server is stuck.
        self.files.update(indexed["files"].as_u64().unwrap_or_default()) <= BUILDER_STUCK_AFTER
    }

    fn progress(&self) -> ProgressUpdate {
        let files = self.files.count;
        let unit = if files == 1 { "file" } else { "files" };
        let message = format!("another server is building the index: {files} {unit} indexed");
        #[allow(clippy::cast_precision_loss, reason = "progress need not be exact")]
        ProgressUpdate::progress(files as f64, None, Some(message))
    }
}

/// Progress of computing vectors with the configured embedding model.
#[derive(Default)]
struct VectorIndexProgress {
    vectors: ProgressCount,
    wanted: u64,
}

impl VectorIndexProgress {
    /// Updates the number of vectors from `indexed`, the state of the index. Returns true if the
    /// command need not wait longer: all passages have vectors, no model can compute vectors, or
    /// the number of vectors has not changed for two minutes.
    fn update(&mut self, indexed: &Value) -> bool {
        // Without a model there are no vectors.
        let Some(vectors) = indexed["vectors"].as_u64() else { return true };
        let is_stuck = self.vectors.update(vectors) > VECTORS_STUCK_AFTER;
        self.wanted = indexed["chunks"].as_u64().unwrap_or_default();
        // Waiting does not fix an error of the model, which the note reports.
        let note = indexed["note"].as_str().unwrap_or_default();
        vectors >= self.wanted || note.starts_with("no vectors") || is_stuck
    }

    fn progress(&self) -> ProgressUpdate {
        let vectors = self.vectors.count;
        let message = format!("{vectors} of {} passages have a vector", self.wanted);
        #[allow(clippy::cast_precision_loss, reason = "progress need not be exact")]
        ProgressUpdate::progress(vectors as f64, Some(self.wanted as f64), Some(message))
    }
}

/// Number that grows, such as the number of indexed files, with the time of its last change.
#[derive(Default)]
struct ProgressCount {
    count: u64,
    /// Time at which the number last changed.
    since: Option<Instant>,
}

impl ProgressCount {
    /// Sets the number to `count`. Returns the time since the last change of the number.
    fn update(&mut self, count: u64) -> Duration {
        if count != self.count {
            (self.count, self.since) = (count, None);
        }
        self.since.get_or_insert_with(Instant::now).elapsed()
    }
}
