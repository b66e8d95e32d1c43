//! Serves jobs as resources: their state, output and files.

use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout_at};
use tokio_util::task::AbortOnDropHandle;
use toolgate_contract::{
    Artefact, BoxFuture, CallError, Change, Changes, Completing, Contents, Ctx, Fault, Happened,
    Hold, Job, JobId, Meant, OpenFile, ResourceSpec, ResourceTemplate, Resources, ToolError,
    ToolSpec, Watch, Watched, Which,
};

use super::Jobs;
use super::tools::{Handle, Told, looking, refusal};

/// Prefix of the URIs.
const SCHEME: &str = "job://";
/// Largest output that is read at once, in bytes.
const OUTPUT_BYTES_MAX: usize = 256 << 10;
/// Largest file that is read at once, in bytes.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// Largest number of jobs read at once, or offered as completions.
const JOBS_MAX: usize = 200;
/// Time that a change waits to be combined with others.
const GATHER: Duration = Duration::from_millis(100);
/// Characters that are percent-encoded in a file name.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Creates the resources that expose the jobs in `handle`.
pub(crate) fn resources(handle: &Handle) -> Arc<dyn Resources> {
    Arc::new(JobResources { guard: looking(handle), handle: handle.clone() })
}

struct JobResources {
    guard: ToolSpec,
    handle: Handle,
}

/// Target of a URI.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    id: String,
    of: Part,
}

/// Part of a job.
#[derive(Debug, PartialEq, Eq)]
enum Part {
    /// State and result of the job.
    Job,
    /// Printed output.
    Output,
    /// File with this name that the job left.
    File(String),
}

impl Place {
    fn of(uri: &str) -> Option<Self> {
        let path = uri.strip_prefix(SCHEME)?;
        let (id, of) = match path.split_once('/') {
            None => (path, Part::Job),
            Some((id, "output")) => (id, Part::Output),
            Some((id, rest)) => {
                let name = rest.strip_prefix("files/").filter(|name| !name.contains('/'))?;
                let name = percent_decode_str(name).decode_utf8().ok()?;
                (id, Part::File(name.into_owned()))
            }
        };
        Some(Self { id: id.to_owned(), of })
    }
}

fn uri_of(id: JobId) -> String {
    format!("{SCHEME}{id}")
}

fn uri_of_file(id: JobId, name: &str) -> String {
    format!("{SCHEME}{id}/files/{}", utf8_percent_encode(name, PLAIN))
}

/// Returns the list entry of a job.
fn entry(job: &Job) -> ResourceSpec {
    let modified = Some(job.updated);
    ResourceSpec {
        title: Some(format!("{}, {}", job.tool, job.state.as_str())),
        about: job.message.clone(),
        media_type: Some("application/json".to_owned()),
        meant: Meant { modified, ..Meant::default() },
        ..ResourceSpec::new(uri_of(job.id), job.id.to_string())
    }
}

/// Returns the list entry of a file that a job left.
fn entry_of_file(id: JobId, file: &Artefact) -> ResourceSpec {
    ResourceSpec {
        about: Some(format!("left by job {id} as `{}`", file.path)),
        media_type: Some(file.media_type.clone()),
        bytes: Some(file.bytes),
        meant: Meant { modified: Some(file.modified), ..Meant::default() },
        ..ResourceSpec::new(uri_of_file(id, &file.name), &file.name)
    }
}

impl Resources for JobResources {
    fn guard(&self) -> &ToolSpec {
        &self.guard
    }

    fn owns(&self, uri: &str) -> bool {
        uri.starts_with(SCHEME)
    }

    fn list<'a>(
        &'a self,
        ctx: &'a Ctx,
        after: Option<&'a str>,
        at_most: usize,
    ) -> BoxFuture<'a, Result<Vec<ResourceSpec>, ToolError>> {
        Box::pin(self.entries(ctx, after, at_most))
    }

    fn templates(&self) -> Vec<ResourceTemplate> {
        let template = |uri: &str, name: &str, about: &str, media_type: Option<&str>| {
            let uri = format!("{SCHEME}{uri}");
            let name = name.to_owned();
            let media_type = media_type.map(str::to_owned);
            let about = Some(about.to_owned());
            ResourceTemplate { uri, name, about, media_type, ..ResourceTemplate::default() }
        };
        vec![
            template("{id}", "job", "How a job is, and what came of it.", Some("application/json")),
            template("{id}/output", "job output", "What a job printed.", Some("text/plain")),
            template("{id}/files/{name}", "job file", "A file that a job left.", None),
        ]
    }

    fn read<'a>(
        &'a self,
        ctx: &'a Ctx,
        uri: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Contents>, ToolError>> {
        Box::pin(async move {
            let Place { id, of } = Place::of(uri).ok_or_else(|| nothing_at(uri))?;
            let jobs = self.jobs_or(|| nothing_at(uri))?;
            let contents = match of {
                Part::Job => {
                    let job = jobs.get(Some(&ctx.caller), &id).await.map_err(refused)?;
                    let told = serde_json::to_string(&Told::of(job))
                        .map_err(|err| ToolError::because("the job is not JSON", err))?;
                    Contents::text(uri, "application/json", told)
                }
                Part::Output => Contents::text(uri, "text/plain", output(&jobs, ctx, &id).await?),
                Part::File(name) => file(&jobs, ctx, uri, &id, name).await?,
            };
            Ok(vec![contents])
        })
    }

    fn complete<'a>(
        &'a self,
        ctx: &'a Ctx,
        asked: &'a Completing,
    ) -> BoxFuture<'a, Result<Vec<String>, ToolError>> {
        Box::pin(async move {
            let Some(jobs) = self.some_jobs() else { return Ok(Vec::new()) };
            match asked.argument.as_str() {
                "id" => {
                    let page = jobs.list(Some(&ctx.caller), None, JOBS_MAX).await;
                    let page = page.map_err(refused)?;
                    Ok(page.jobs.iter().map(|job| job.id.to_string()).collect())
                }
                "name" => {
                    let Some(id) = asked.others.get("id") else { return Ok(Vec::new()) };
                    let job = jobs.get(Some(&ctx.caller), id).await.map_err(refused)?;
                    Ok(job.artefacts.into_iter().map(|file| file.name).collect())
                }
                _ => Ok(Vec::new()),
            }
        })
    }

    fn watch<'a>(
        &'a self,
        ctx: &'a Ctx,
        uri: &'a str,
        changes: &'a Changes,
    ) -> BoxFuture<'a, Result<Hold, ToolError>> {
        Box::pin(async move {
            let Place { id, of } = Place::of(uri).ok_or_else(|| nothing_at(uri))?;
            let jobs = self.jobs_or(|| nothing_at(uri))?;
            let job = jobs.get(Some(&ctx.caller), &id).await.map_err(refused)?;
            if job.state.is_terminal() {
                return Ok(Hold::nothing());
            }
            let watch = jobs.watch(Some(&ctx.caller), &id, job.last_event).await;
            let (_, watch) = watch.map_err(refused)?;
            let telling = tell_changes(watch, of, uri.into(), changes.clone());
            Ok(Hold::of(AbortOnDropHandle::new(tokio::spawn(telling))))
        })
    }

    fn watch_list(&self, changes: &Changes) -> Hold {
        let Ok(jobs) = self.handle.jobs() else { return Hold::nothing() };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return Hold::nothing() };
        let mut changed = jobs.changed();
        let changes = changes.clone();
        let telling = runtime.spawn(async move {
            while changed.changed().await.is_ok() {
                tokio::time::sleep(GATHER).await;
                changed.mark_unchanged();
                changes.tell(&Change::Resources);
            }
        });
        Hold::of(AbortOnDropHandle::new(telling))
    }
}

impl JobResources {
    /// Returns the jobs, if there are or were any. Creates nothing.
    fn some_jobs(&self) -> Option<Jobs> {
        self.handle.jobs().ok().filter(Jobs::any)
    }

    fn jobs_or(&self, none: impl FnOnce() -> ToolError) -> Result<Jobs, ToolError> {
        self.some_jobs().ok_or_else(none)
    }

    /// Lists jobs, newest first, each followed by its files.
    async fn entries(
        &self,
        ctx: &Ctx,
        after: Option<&str>,
        at_most: usize,
    ) -> Result<Vec<ResourceSpec>, ToolError> {
        let Some(jobs) = self.some_jobs() else { return Ok(Vec::new()) };
        let mut entries = Vec::new();
        let mut last = None;
        if let Some(after) = after {
            let Place { id, of } = Place::of(after).ok_or_else(|| nothing_at(after))?;
            let job = match jobs.get(Some(&ctx.caller), &id).await {
                Ok(job) => job,
                // If the job was removed since, older ones mostly were too, so the list ends here.
                Err(CallError::NotFound { .. }) => return Ok(entries),
                Err(err) => return Err(refused(err)),
            };
            let is_after = |file: &&Artefact| match &of {
                Part::Job | Part::Output => true,
                Part::File(name) => file.name > *name,
            };
            let rest = job.artefacts.iter().filter(is_after);
            entries.extend(rest.map(|file| entry_of_file(job.id, file)));
            last = Some(job.id);
        }
        while entries.len() < at_most {
            let size = (at_most - entries.len()).min(JOBS_MAX);
            let page = match jobs.list(Some(&ctx.caller), last, size).await {
                Ok(page) => page,
                Err(CallError::NotFound { .. }) => break,
                Err(err) => return Err(refused(err)),
            };
            for job in &page.jobs {
                entries.push(entry(job));
                entries.extend(job.artefacts.iter().map(|file| entry_of_file(job.id, file)));
            }
            last = page.next;
            if last.is_none() {
                break;
            }
        }
        entries.truncate(at_most);
        Ok(entries)
    }
}

/// Returns the printed output of a job, up to the limit.
async fn output(jobs: &Jobs, ctx: &Ctx, id: &str) -> Result<String, ToolError> {
    let mut text = String::new();
    let mut after = 0;
    loop {
        let room = OUTPUT_BYTES_MAX.saturating_sub(text.len());
        let page = jobs.page(&ctx.caller, id, after, room.max(1)).await;
        let (job, events) = page.map_err(refused)?;
        let Some(last) = events.last().map(|last| last.seq) else { return Ok(text) };
        if room == 0 {
            let note = "this is not all; read on with jobs_output";
            text.push_str(&format!("\n({note}, `job_id`: {}, `after`: {after})\n", job.id));
            return Ok(text);
        }
        for event in events {
            if let Happened::Output { text: piece, .. } = event.what {
                text.push_str(&piece);
            }
        }
        after = last;
    }
}

/// Reads a file that a job left, if it is within the limit.
async fn file(
    jobs: &Jobs,
    ctx: &Ctx,
    uri: &str,
    id: &str,
    name: String,
) -> Result<Contents, ToolError> {
    let open = jobs.open(&ctx.caller, id, Which::Named(name)).await.map_err(refused)?;
    let OpenFile { handle, bytes, media_type, held: _ } = open.file;
    if bytes > FILE_BYTES_MAX {
        let why = format!(
            "`{uri}` is {bytes} bytes long, and no more than {FILE_BYTES_MAX} are read at once; \
             files_read reads it in parts where it still lies in the workspace"
        );
        return Err(ToolError::new(Fault::TooLarge, why));
    }
    let held = spawn_blocking(move || {
        // Bounded by `FILE_BYTES_MAX`, so it fits.
        let mut held = vec![0; usize::try_from(bytes).unwrap_or_default()];
        handle.read_exact_at(&mut held, 0).map(|()| held)
    });
    let failed = || format!("`{uri}` could not be read");
    let held = held.await.map_err(|err| ToolError::because(failed(), err))?;
    let held = held.map_err(|err| ToolError::because(failed(), err))?;
    let is_text = !held.contains(&0);
    Ok(match String::from_utf8(held) {
        Ok(text) if is_text => Contents::text(uri, media_type, text),
        Ok(text) => Contents::bytes(uri, media_type, text.into_bytes()),
        Err(err) => Contents::bytes(uri, media_type, err.into_bytes()),
    })
}

/// Reports changes of `part` of a job, whose URI is `uri`, until the job ends.
async fn tell_changes(mut watch: Box<dyn Watch>, part: Part, uri: Arc<str>, changes: Changes) {
    loop {
        match watch.next().await {
            None => return,
            Some(Watched::Event(event)) if !is_seen(&part, &event.what) => continue,
            Some(Watched::Event(_) | Watched::Ended(_)) => {}
        }
        let until = Instant::now() + GATHER;
        let is_over = loop {
            match timeout_at(until, watch.next()).await {
                Ok(Some(_)) => {}
                Ok(None) => break true,
                Err(_elapsed) => break false,
            }
        };
        changes.tell(&Change::Resource(uri.clone()));
        if is_over {
            return;
        }
    }
}

/// Returns true if the event changes `part` of a job.
fn is_seen(part: &Part, what: &Happened) -> bool {
    match what {
        Happened::Queued | Happened::Started { .. } | Happened::Progress { .. } => {
            *part == Part::Job
        }
        Happened::Output { .. } => *part == Part::Output,
        // The representation of a job does not contain its log lines.
        Happened::Log { .. } => false,
        Happened::Asks { .. } => *part == Part::Job,
        Happened::Artefact(file) => match part {
            Part::Job => true,
            Part::Output => false,
            Part::File(name) => file.name == *name,
        },
        Happened::Finished { .. } => matches!(part, Part::Job | Part::Output),
    }
}

fn refused(err: CallError) -> ToolError {
    refusal(err, "")
}

fn nothing_at(uri: &str) -> ToolError {
    let uri: String = uri.chars().take(100).collect();
    ToolError::not_found(format!(
        "no resource is at `{uri}`; jobs are at {SCHEME}ID, {SCHEME}ID/output and \
         {SCHEME}ID/files/NAME"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_any_letters_is_found_again_by_its_uri() {
        let id = JobId::of(7);
        for name in ["plot.png", "a b%c?d#e", "ä/ö", ".."] {
            let place = Place::of(&uri_of_file(id, name)).expect("a place");
            assert_eq!(place, Place { id: id.to_string(), of: Part::File(name.to_owned()) });
        }
        for none in ["job://1/2", "job://1/files/a/b", "file:///a", "job://1/files"] {
            assert_eq!(Place::of(none), None, "{none}");
        }
    }
}
