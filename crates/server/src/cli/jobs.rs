//! Lists, follows and cancels jobs from a shell (`toolgate jobs`).

mod find;
mod table;
mod one;
mod told;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use serde_json::json;
use toolgate::wiring::Workspace;
use toolgate_contract::{Answer, CallError, Job, Request};
use toolgate_host::{Asked, Host, Jobs};

use super::{Folder, complain, print, remote, run_to_end, small_runtime};
use one::View;

/// Jobs per page.
const PAGE: usize = 500;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  toolgate jobs                       the newest 20 of this folder
  toolgate jobs 3f9a                  one: what it says until it ends, its result, its files
  toolgate jobs 3f9a --no-follow      the same as it is now
  toolgate jobs 3f9a --get all        the files it left, in a zip
  toolgate jobs 3f9a --cancel --url http://127.0.0.1:8000/mcp
  toolgate jobs --json --limit 1000 | jq 'select(.state == \"failed\")'

A job belongs to the server that runs it; here it is only looked at, and ctrl-c stops looking.
The result goes to standard output, all else to standard error. It exits with 0 when the job
succeeded or still runs, 1 when it did not succeed or there is none, 2 for a faulty command line
or configuration.")]
pub(super) struct Args {
    /// Show only this job, by its id or at least the first four digits
    id: Option<String>,
    /// Most jobs to list, newest first
    #[arg(long, value_name = "N", default_value_t = 20, conflicts_with = "id")]
    limit: usize,
    /// Show the job as it is now, without waiting for its end
    #[arg(long, requires = "id")]
    no_follow: bool,
    /// Cancel the job
    #[arg(long, requires = "id", conflicts_with_all = ["no_follow", "get"])]
    cancel: bool,
    /// Cancel it at this server
    #[arg(long, requires = "cancel")]
    url: Option<String>,
    #[command(flatten)]
    key: remote::KeyArgs,
    /// Write a file that the job left, or `all` of them in a zip
    #[arg(long, value_name = "NAME", requires = "id", conflicts_with_all = ["no_follow", "json"])]
    get: Option<String>,
    /// Output file for --get; `-` is standard output
    #[arg(short, long, value_name = "FILE", requires = "get")]
    output: Option<PathBuf>,
    /// Print one line of JSON per job
    #[arg(long)]
    json: bool,
    /// Workspace of the jobs
    #[arg(long, value_name = "PATH", default_value = ".", env = "TOOLGATE_ROOT")]
    root: PathBuf,
    /// Configuration file, instead of toolgate.toml in the folder
    #[arg(long, value_name = "FILE", env = "TOOLGATE_CONFIG")]
    config: Option<PathBuf>,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let folder = Folder { config: args.config.clone(), read_only: false };
    let loaded = folder.load(&args.root)?;
    let done = run_to_end(small_runtime()?, async {
        let workspace = Workspace::look(&args.root, &loaded.config)?;
        let done = look(args, &workspace.host).await;
        workspace.close().await;
        done
    })?;
    done.or_else(|refusal| {
        complain(&refusal.to_string());
        Ok(ExitCode::from(1))
    })
}

/// Runs the command. Returns the exit code or the refusal.
async fn look(args: &Args, host: &Host) -> anyhow::Result<Result<ExitCode, CallError>> {
    let Ok(jobs) = host.jobs() else { bail!("no jobs are kept here: jobs.to is `off`") };
    let Some(id) = &args.id else { return list(args, jobs).await };
    // Opening the store would create it, which a lookup must not.
    if !jobs.any() {
        return Ok(Err(find::none_here()));
    }
    let job = match find::job(jobs, id).await {
        Ok(job) => job,
        Err(refusal) => return Ok(Err(refusal)),
    };
    if args.cancel {
        cancel(args, host, &job).await
    } else if let Some(name) = &args.get {
        one::get(host, &job, name, args.output.as_deref()).await
    } else {
        one::show(jobs, job, View { follow: !args.no_follow, json: args.json }).await
    }
}

async fn list(args: &Args, jobs: &Jobs) -> anyhow::Result<Result<ExitCode, CallError>> {
    let mut found = Vec::new();
    let mut more = false;
    if jobs.any() {
        (found, more) = match find::newest(jobs, args.limit).await {
            Ok(newest) => newest,
            Err(refusal) => return Ok(Err(refusal)),
        };
    }
    if args.json {
        let lines = found.iter().map(|job| format!("{}\n", told::summary(job)));
        print(&lines.collect::<String>())?;
    } else if found.is_empty() {
        complain(&find::none_here().to_string());
    } else {
        print(&table::of(&found))?;
        if more {
            complain("older ones are left out; --limit N shows more");
        }
    }
    Ok(Ok(ExitCode::SUCCESS))
}

/// Cancels `job` on behalf of its caller.
async fn cancel(
    args: &Args,
    host: &Host,
    job: &Job,
) -> anyhow::Result<Result<ExitCode, CallError>> {
    let id = job.id.to_string();
    if let Some(url) = &args.url {
        let remote = args.key.remote(url)?;
        let outcome = remote::call(&remote, "jobs_cancel", json!({ "job_id": id }), None).await?;
        return Ok(match outcome {
            Ok(output) => {
                complain(&output.text.body);
                Ok(ExitCode::SUCCESS)
            }
            Err(message) => Err(CallError::Unavailable { message }),
        });
    }
    Ok(match asked(host, job, Request::CancelJob { id: id.clone() }).await {
        Ok(_) => {
            complain(&format!("job {id} is stopped"));
            Ok(ExitCode::SUCCESS)
        }
        Err(CallError::Unavailable { message }) => Err(CallError::Unavailable {
            message: format!(
                "{message}, e.g. with `toolgate jobs {} --cancel --url http://127.0.0.1:8000/mcp`",
                table::short(job)
            ),
        }),
        Err(refusal) => Err(refusal),
    })
}

/// Sends a request to the host on behalf of the job's caller, because the machine's owner may act
/// for all callers.
async fn asked(host: &Host, job: &Job, request: Request) -> Result<Answer, CallError> {
    host.answer(Asked::plain(request, job.caller.clone(), "cli")).await
}
