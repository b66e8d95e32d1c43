//! Shows one job: its state, its output until it ends, and its result.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;
use toolgate_contract::printable::escape_line;
use toolgate_contract::{
    ArtefactSelection, CallError, ClientQuestion, HostAnswer, HostRequest, JobEventKind,
    JobEventStream, JobSnapshot, JobState, JobStreamItem, OpenArtefact, fold_name,
};
use toolgate_host::{Host, JobService};

use super::describe::{error, full_json, output, progress_text, running_time, time_between};
use super::{ask_host, table};
use crate::cli::follow::terminal_text::{format_age, format_duration, format_size, plain_line};
use crate::cli::follow::{ProgressDisplay, ProgressUpdate};
use crate::cli::{complain, print};

/// Number of bytes that are copied at once from a job's file.
const COPY_BYTES: usize = 256 << 10;
/// Exit code after the user pressed Ctrl+C.
const EXIT_INTERRUPTED: u8 = 130;

/// Options for the display of one job.
pub(super) struct JobDisplayOptions {
    /// True to show the job's progress and output until the job ends.
    pub(super) follow: bool,
    /// True to print JSON instead of text.
    pub(super) json: bool,
}

type JobDisplayResult = anyhow::Result<Result<ExitCode, CallError>>;

/// Prints the state, output and result of `job`.
pub(super) async fn show_job(
    jobs: &JobService,
    mut job: JobSnapshot,
    view: JobDisplayOptions,
) -> JobDisplayResult {
    if !view.json {
        complain(&summary_line(&job));
        print_questions(&job);
    }
    if view.follow && !job.state.is_terminal() {
        let stop = toolgate_service::serve::shutdown::on_signal()?;
        job = match follow(jobs, &job, stop).await {
            Ok(Some(ended)) => ended,
            Ok(None) => {
                complain(&format!(
                    "job {} continues; `toolgate jobs {}` follows the job again",
                    job.id,
                    table::short_id(&job)
                ));
                return Ok(Ok(ExitCode::from(EXIT_INTERRUPTED)));
            }
            Err(refusal) => return Ok(Err(refusal)),
        };
    }
    if view.json {
        print(&format!("{}\n", full_json(&job)))?;
    } else if let Some(output) = output(&job) {
        print(&whole_lines(&output.body_text()))?;
        output.text.note.iter().for_each(|note| complain(note));
    } else {
        if let Err(refusal) = print_so_far(jobs, &job).await? {
            return Ok(Err(refusal));
        }
        if let Some(error) = error(&job) {
            let cause = error.cause().map(|cause| format!(": {cause}")).unwrap_or_default();
            complain(&format!("{error}{cause}"));
        }
    }
    if !view.json {
        report_files(&job);
    }
    Ok(Ok(match job.state {
        JobState::Succeeded | JobState::Queued | JobState::Running => ExitCode::SUCCESS,
        JobState::Failed | JobState::Canceled => ExitCode::from(1),
    }))
}

/// Writes the file `name` that `job` produced, or a zip of all files if `name` is `all`. `to` is
/// the output path, or `-` for standard output. Without it, the file keeps its own name.
pub(super) async fn write_artefact(
    host: &Host,
    job: &JobSnapshot,
    name: &str,
    to: Option<&Path>,
) -> JobDisplayResult {
    let which = if name == "all" {
        ArtefactSelection::All
    } else {
        ArtefactSelection::Named(name.to_owned())
    };
    let request = HostRequest::OpenArtefact { id: job.id.to_string(), which };
    let OpenArtefact { name, file } = match ask_host(host, job, request).await {
        Ok(HostAnswer::Artefact(open)) => open,
        Ok(_) => bail!("unexpected answer to a request for a file"),
        Err(refusal) => return Ok(Err(refusal)),
    };
    match to {
        Some(path) if path == Path::new("-") => {
            let done = copy(&file.handle, &mut io::stdout().lock());
            if let Err(err) = done
                && err.kind() != io::ErrorKind::BrokenPipe
            {
                return Err(err.into());
            }
        }
        Some(path) => write_file(&file.handle, path, true)?,
        None => {
            write_file(&file.handle, Path::new(&name), false)?;
            complain(&format!("{}, {}", plain_line(&name), format_size(file.bytes)));
        }
    }
    Ok(Ok(ExitCode::SUCCESS))
}

/// Displays the progress and output of `job` until it ends, and returns the ended job. Returns
/// `None` if `stop` is cancelled before that. Fails if the job store cannot be read.
async fn follow(
    jobs: &JobService,
    job: &JobSnapshot,
    stop: CancellationToken,
) -> Result<Option<JobSnapshot>, CallError> {
    let id = job.id.to_string();
    let (_, mut watch) = jobs.watch(None, &id, 0).await?;
    let follow = ProgressDisplay::begin(
        &fold_name(job.tool.as_str()),
        running_time(job, Timestamp::now()).unwrap_or_default(),
    );
    if job.state == JobState::Queued {
        let message = Some("waiting to run".to_owned());
        follow.show(ProgressUpdate::Progress { fraction: None, message }).await;
    }
    let watched = async {
        while let Some(watched) = watch.next().await {
            match watched {
                JobStreamItem::Event(event) => {
                    if let Some(update) = ProgressUpdate::from_job_event(&event.kind) {
                        follow.show(update).await;
                    }
                }
                JobStreamItem::Ended(job) => return Ok(*job),
            }
        }
        // The watch ends early if the job is deleted or the store cannot be read.
        jobs.get(None, &id).await
    };
    let ended = tokio::select! {
        ended = watched => ended.map(Some),
        () = stop.cancelled() => Ok(None),
    };
    follow.end().await;
    ended
}

/// Prints the output of `job` up to now without waiting for its end. The inner error is a refusal
/// of the job store.
async fn print_so_far(
    jobs: &JobService,
    job: &JobSnapshot,
) -> anyhow::Result<Result<(), CallError>> {
    let mut watch: Box<dyn JobEventStream> = match jobs.watch(None, &job.id.to_string(), 0).await {
        Ok((_, watch)) => watch,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let mut seq = 0;
    let mut ended = true;
    while seq < job.last_event {
        let Some(JobStreamItem::Event(event)) = watch.next().await else { break };
        seq = event.seq;
        if let JobEventKind::Output { text, .. } = &event.kind {
            print(text)?;
            ended = text.ends_with('\n');
        }
    }
    if !ended {
        print("\n")?;
    }
    Ok(Ok(()))
}

/// Prints the questions that the job asks a person.
fn print_questions(job: &JobSnapshot) {
    for question in job.questions.values() {
        let (ClientQuestion::Form { message, .. } | ClientQuestion::Visit { message, .. }) =
            question
        else {
            continue;
        };
        complain(&format!("the question: {}", escape_line(message)));
    }
}

/// Returns a one-line summary of the job.
fn summary_line(job: &JobSnapshot) -> String {
    let now = Timestamp::now();
    let tool = fold_name(job.tool.as_str());
    let id = job.id;
    let caller = plain_line(&job.caller.name);
    let age = format_age(time_between(job.created, now));
    let attempt =
        if job.attempts > 1 { format!(", attempt {}", job.attempts) } else { String::new() };
    let after = running_time(job, now)
        .map(|ran| format!(" after {}", format_duration(ran)))
        .unwrap_or_default();
    let how = match job.state {
        JobState::Queued => "waiting to run".to_owned(),
        JobState::Running => match progress_text(job).as_str() {
            "" => format!("running{after}"),
            progress => format!("at {progress}{after}"),
        },
        JobState::Succeeded => format!("succeeded{after}"),
        JobState::Failed => format!("failed{after}"),
        JobState::Canceled => format!("cancelled{after}"),
    };
    format!("job {id}: {tool} for {caller}, {age}; {how}{attempt}")
}

fn report_files(job: &JobSnapshot) {
    for file in &job.artefacts {
        let named = if file.path.rsplit('/').next() == Some(&file.name) {
            String::new()
        } else {
            format!(", stored as {}", plain_line(&file.name))
        };
        complain(&format!("wrote {} ({}{named})", plain_line(&file.path), format_size(file.bytes)));
    }
    if let Some(first) = job.artefacts.first() {
        let name =
            if job.artefacts.len() == 1 { plain_line(&first.name) } else { "all".to_owned() };
        complain(&format!("`toolgate jobs {} --get {name}` copies it here", table::short_id(job)));
    }
}

fn whole_lines(text: &str) -> String {
    let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    format!("{text}{end}")
}

#[allow(clippy::disallowed_methods, reason = "the user's own file, named on the command line")]
fn write_file(from: &File, path: &Path, over: bool) -> anyhow::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    let options = if over { options.create(true).truncate(true) } else { options.create_new(true) };
    let shown = path.display();
    let mut to = match options.write(true).open(path) {
        Err(err) if err.kind() == io::ErrorKind::AlreadyExists => {
            bail!("`{shown}` exists already; choose another file, or overwrite it, with -o FILE")
        }
        opened => opened.with_context(|| format!("cannot write `{shown}`"))?,
    };
    copy(from, &mut to).with_context(|| format!("cannot write `{shown}`"))
}

/// Copies the file `from` from its first to its last byte, regardless of its current read position.
fn copy(from: &File, to: &mut impl Write) -> io::Result<()> {
    let mut piece = vec![0; COPY_BYTES];
    let mut done = 0;
    loop {
        let read = match from.read_at(&mut piece, done) {
            Ok(0) => return to.flush(),
            Ok(read) => read,
            Err(err) if err.kind() == io::ErrorKind::Interrupted => continue,
            Err(err) => return Err(err),
        };
        to.write_all(&piece[..read])?;
        done += read as u64;
    }
}
