//! Lists, follows and cancels jobs from a shell (`toolgate jobs`).

mod find;
mod table;
mod single;
mod describe;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use serde_json::json;
use toolgate_contract::printable::escape_line;
use toolgate_contract::{
    CallError, ClientAnswer, ClientQuestion, ElicitationAnswer, EndedJobCancelReply, HostAnswer,
    HostRequest, JobSnapshot, JobState,
};
use toolgate_host::{Host, IncomingRequest, JobService};
use toolgate_service::assembly::wiring::ServedWorkspace;

use super::terminal_questions::ask_yes_no;
use super::{WorkspaceFolderArgs, complain, print, remote, run_to_end, small_runtime};
use single::JobDisplayOptions;

/// Number of stored jobs that `toolgate jobs` reads at once from the job store.
const PAGE: usize = 500;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  toolgate jobs                       list the newest 20 jobs of this folder
  toolgate jobs 3f9a                  follow one job, then print its result and files
  toolgate jobs 3f9a --no-follow      print its present state and output
  toolgate jobs 3f9a --get all        write the files it left into a zip
  toolgate jobs 3f9a --cancel         cancel the job, whichever server runs it
  toolgate jobs 3f9a --answer '{}'    agree to what the job asks
  toolgate jobs --json --limit 1000 | jq 'select(.state == \"failed\")'

A server runs the job; ctrl-c ends this command, and the job continues. The result goes to standard
output, and everything else goes to standard error. The exit code is 0 if the job succeeded or still
runs, 1 if it failed or does not exist, and 2 if the command line or configuration is invalid.")]
pub(super) struct JobsArgs {
    /// Id of the job to show, or at least its first four digits
    id: Option<String>,
    /// Maximum number of jobs to list, newest first
    #[arg(long, value_name = "N", default_value_t = 20, conflicts_with = "id")]
    limit: usize,
    /// Show the current state of the job, without waiting for its end
    #[arg(long, requires = "id")]
    no_follow: bool,
    /// Cancel the job
    #[arg(long, requires = "id", conflicts_with_all = ["no_follow", "get"])]
    cancel: bool,
    /// Answer the question that the job asks: a JSON object with the values, or `{}` to agree
    #[arg(long, value_name = "JSON", requires = "id", conflicts_with_all = ["no_follow", "get", "cancel"])]
    answer: Option<String>,
    /// Send the answer without asking you. Without a terminal, the command does not ask you
    #[arg(long, short, requires = "answer")]
    yes: bool,
    /// Decline the question that the job asks
    #[arg(long, requires = "id", conflicts_with_all = ["no_follow", "get", "cancel", "answer"])]
    decline: bool,
    /// Cancel the job with a request to this server, instead of through the stored jobs
    #[arg(long, requires = "cancel")]
    url: Option<String>,
    #[command(flatten)]
    key: remote::RemoteKeyArgs,
    /// Write this file of the job; `all` writes all its files into a zip
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

pub(super) fn run(args: &JobsArgs) -> anyhow::Result<ExitCode> {
    let folder =
        WorkspaceFolderArgs { config: args.config.clone(), read_only: false, tools: Vec::new() };
    let loaded = folder.load(&args.root)?;
    let done = run_to_end(small_runtime()?, async {
        let workspace = ServedWorkspace::open_for_inspection(&args.root, &loaded.config)?;
        let done = run_command(args, &workspace.host).await;
        workspace.close().await;
        done
    })?;
    done.or_else(|refusal| {
        complain(&refusal.to_string());
        Ok(ExitCode::from(1))
    })
}

/// Runs `toolgate jobs`. Returns the exit code, or the error with which the host refused.
async fn run_command(args: &JobsArgs, host: &Host) -> anyhow::Result<Result<ExitCode, CallError>> {
    let Ok(jobs) = host.jobs() else { bail!("jobs are off (jobs.to)") };
    let Some(id) = &args.id else { return list(args, jobs).await };
    // Opening the store would create it, which a lookup must not.
    if !jobs.has_jobs() {
        return Ok(Err(find::no_such_job_error(id)));
    }
    let job = match find::find_job(jobs, id).await {
        Ok(job) => job,
        Err(refusal) => return Ok(Err(refusal)),
    };
    if args.cancel {
        cancel(args, host, &job).await
    } else if args.answer.is_some() || args.decline {
        answer(args, host, &job).await
    } else if let Some(name) = &args.get {
        single::write_artefact(host, &job, name, args.output.as_deref()).await
    } else {
        single::show_job(jobs, job, JobDisplayOptions { follow: !args.no_follow, json: args.json })
            .await
    }
}

async fn list(args: &JobsArgs, jobs: &JobService) -> anyhow::Result<Result<ExitCode, CallError>> {
    let mut found = Vec::new();
    let mut more = false;
    if jobs.has_jobs() {
        (found, more) = match find::newest_jobs(jobs, args.limit).await {
            Ok(newest) => newest,
            Err(refusal) => return Ok(Err(refusal)),
        };
    }
    if args.json {
        let lines = found.iter().map(|job| format!("{}\n", describe::summary_json(job)));
        print(&lines.collect::<String>())?;
    } else if found.is_empty() {
        complain(&find::no_jobs_error().to_string());
    } else {
        print(&table::format_table(&found))?;
        if more {
            complain("older jobs are not shown; --limit N shows more");
        }
    }
    Ok(Ok(ExitCode::SUCCESS))
}

/// Cancels `job` on behalf of its caller. Returns the exit code, or the error with which the host
/// refused.
async fn cancel(
    args: &JobsArgs,
    host: &Host,
    job: &JobSnapshot,
) -> anyhow::Result<Result<ExitCode, CallError>> {
    let id = job.id.to_string();
    if let Some(url) = &args.url {
        let remote = args.key.remote(url)?;
        let outcome =
            remote::call_remote_tool(&remote, "jobs_cancel", json!({ "job_id": id }), None).await?;
        return Ok(match outcome {
            Ok(output) => {
                complain(&output.text.body);
                Ok(ExitCode::SUCCESS)
            }
            Err(message) => Err(CallError::Unavailable { message }),
        });
    }
    let request = HostRequest::CancelJob { id: id.clone(), if_ended: EndedJobCancelReply::Job };
    Ok(match ask_host(host, job, request).await {
        Ok(HostAnswer::Job(job)) if job.state != JobState::Canceled => {
            let message = format!("job {id} has ended already: it {}", job.state.as_str());
            Err(CallError::Conflict { message, details: json!({ "state": job.state }) })
        }
        Ok(_) => {
            complain(&format!("job {id} was cancelled"));
            Ok(ExitCode::SUCCESS)
        }
        Err(refusal) => Err(refusal),
    })
}

/// Answers the question of `job` on behalf of the job's caller: with the JSON object of `--answer`,
/// or with a refusal. A person at a terminal is shown the question first.
async fn answer(
    args: &JobsArgs,
    host: &Host,
    job: &JobSnapshot,
) -> anyhow::Result<Result<ExitCode, CallError>> {
    let id = job.id.to_string();
    let conflict = |message: String| CallError::Conflict { message, details: json!({}) };
    let Some((key, question)) = job.questions.first_key_value() else {
        return Ok(Err(conflict(format!("job {id} asks no question"))));
    };
    let (ClientQuestion::Form { message, .. } | ClientQuestion::Visit { message, .. }) = question
    else {
        return Ok(Err(conflict(format!("only the client of job {id} can answer its question"))));
    };
    complain(&format!("the question: {}", escape_line(message)));
    let choice = match args.answer.as_deref() {
        None => ElicitationAnswer::Declined,
        Some(values) => ElicitationAnswer::Accepted(
            serde_json::from_str(values).context("--answer needs a JSON object, such as {}")?,
        ),
    };
    let is_agreed = matches!(choice, ElicitationAnswer::Accepted(_));
    if is_agreed && !args.yes && ask_yes_no("Send this answer? ") == Some(false) {
        complain("no answer was sent");
        return Ok(Ok(ExitCode::from(1)));
    }
    let given = BTreeMap::from([(key.clone(), ClientAnswer::Choice(choice))]);
    let request = HostRequest::AnswerJob { id: id.clone(), given };
    Ok(ask_host(host, job, request).await.map(|_| {
        complain(&format!("the answer was sent to job {id}"));
        ExitCode::SUCCESS
    }))
}

/// Sends `request` to the host on behalf of the caller of `job`. The user of this machine may act
/// for all callers.
async fn ask_host(
    host: &Host,
    job: &JobSnapshot,
    request: HostRequest,
) -> Result<HostAnswer, CallError> {
    host.answer(IncomingRequest::without_client(request, job.caller.clone(), "cli")).await
}
