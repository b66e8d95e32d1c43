//! `toolgate index`: a folder's index for searching, built or brought up to date.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::bail;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use toolgate::wiring::Workspace;
use toolgate_contract::{Answer, Asker, CallError, Caller, Output, Request};
use toolgate_host::Asked;

use super::follow::{Follow, Said};
use super::{Folder, complain, print, run_to_end, small_runtime};

/// The tool behind it.
const TOOL: &str = "search.index_status";
/// How long one look waits; then it is looked again.
const WAIT_MS: u64 = 10_000;
/// How often it is looked whether vectors are there.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// How long none comes before no more are waited for.
const STUCK: Duration = Duration::from_secs(120);

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  toolgate index                       build this folder's index, or bring it up to date
  toolgate index --namespace std       of another namespace
  toolgate index --vectors             and wait for the configured model's vectors, too
  toolgate index --json                how far it is in the end, for a program

A server does so by itself at the first search; done beforehand, that one does not wait.
How far it is goes to standard error. It exits with 0 when the index is up to date, 1 when it
cannot be built.")]
pub(super) struct Args {
    /// The folder to index
    #[arg(value_name = "PATH", default_value = ".", env = "TOOLGATE_ROOT")]
    root: PathBuf,
    /// Of this namespace instead of the whole folder
    #[arg(long)]
    namespace: Option<String>,
    /// Wait until all has a vector by the configured model
    #[arg(long)]
    vectors: bool,
    /// Print how far it is as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    folder: Folder,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let outcome = run_to_end(small_runtime()?, async {
        let stop = toolgate::shutdown::on_signal()?;
        indexed(args, stop).await
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

/// How far the index is, once it is up to date.
async fn indexed(
    args: &Args,
    stop: CancellationToken,
) -> anyhow::Result<Result<Output, CallError>> {
    let loaded = args.folder.load_to_serve(&args.root)?;
    let workspace = Workspace::open(&args.root, &loaded.config)?;
    let name = args.namespace.clone().unwrap_or_else(|| "workspace".to_owned());
    let input = json!({ "namespace": name, "wait_ms": WAIT_MS });
    let follow = Follow::begin("index", Duration::ZERO);
    let mut vectors = Vectors::default();
    let outcome = loop {
        let request = Request::CallTool { tool: TOOL.to_owned(), input: input.clone() };
        let asked = Asked {
            cancel: stop.clone(),
            events: follow.sink(),
            asker: Asker::nobody(),
            ..Asked::plain(request, Caller::local(), "cli")
        };
        match workspace.host.answer(asked).await {
            Ok(Answer::Output(output)) => {
                let indexed = &output.value["namespaces"][&name];
                if is_on_the_way(indexed) {
                    continue;
                }
                if !args.vectors || vectors.is_done(indexed) {
                    break Ok(output);
                }
                follow.say(vectors.said()).await;
                // They come by themselves.
                tokio::select! {
                    () = tokio::time::sleep(LOOK_AGAIN) => {}
                    () = stop.cancelled() => break Err(CallError::Canceled),
                }
            }
            Ok(_) => bail!("a call was answered with something else"),
            Err(error) => break Err(error),
        }
    };
    workspace.close().await;
    follow.end().await;
    Ok(outcome)
}

/// Whether files are still being read.
fn is_on_the_way(indexed: &Value) -> bool {
    matches!(indexed["state"].as_str(), Some("absent" | "building" | "rebuilding"))
}

/// How many vectors by the configured model there are.
#[derive(Default)]
struct Vectors {
    there: u64,
    wanted: u64,
    /// Since when there are no more of them.
    since: Option<Instant>,
}

impl Vectors {
    /// Takes in how many there are; whether there is nothing left to wait for.
    fn is_done(&mut self, indexed: &Value) -> bool {
        // Without a model there are none.
        let Some(there) = indexed["vectors"].as_u64() else { return true };
        if there != self.there || self.since.is_none() {
            self.since = Some(Instant::now());
        }
        (self.there, self.wanted) = (there, indexed["chunks"].as_u64().unwrap_or_default());
        // What is wrong with the model will not end by waiting, and says so.
        let note = indexed["note"].as_str().unwrap_or_default();
        let is_stuck = self.since.is_some_and(|since| since.elapsed() > STUCK);
        self.there >= self.wanted || note.starts_with("no vectors") || is_stuck
    }

    fn said(&self) -> Said {
        #[allow(clippy::cast_precision_loss, reason = "progress is a picture")]
        let (there, wanted) = (self.there as f64, self.wanted as f64);
        let message = format!("{} of {} passages have a vector", self.there, self.wanted);
        Said::progress(there, Some(wanted), Some(message))
    }
}
