//! Serves jobs as resources: their state, output and files.

use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use tokio::time::{Instant, timeout_at};
use tokio_util::task::AbortOnDropHandle;
use toolgate_contract::{
    ArtefactSelection, CallError, ChangeFeed, CompletionRequest, ContentAnnotations, JobArtefact,
    JobEventKind, JobEventStream, JobId, JobSnapshot, JobStreamItem, KeepActiveGuard, OutgoingFile,
    ResourceContents, ResourceSource, ResourceSpec, ResourceTemplate, ServerChange, ToolContext,
    ToolError, ToolErrorKind, ToolFuture, ToolSpec,
};
use toolgate_net::spawn_blocking;

use super::JobService;
use super::tools::{JobView, JobsToolHandle, guard_spec, tool_error};

/// Prefix of the URIs of job resources.
const SCHEME: &str = "job://";
/// Maximum number of bytes of a job's output that one read returns.
const OUTPUT_BYTES_MAX: usize = 256 << 10;
/// Largest file of a job that can be read as a resource, in bytes.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// Maximum number of jobs that are listed at once, or offered as completions.
const JOBS_MAX: usize = 200;
/// Time for which a change of a job resource waits to be combined with other changes.
const GATHER_TIME: Duration = Duration::from_millis(100);
/// Characters of a file name that are percent-encoded in a job resource's URI.
const ESCAPED_CHARS: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Creates the source of MCP resources for the jobs of `handle`.
pub(crate) fn resources(handle: &JobsToolHandle) -> Arc<dyn ResourceSource> {
    Arc::new(JobResourceSource { guard: guard_spec(handle), handle: handle.clone() })
}

/// Source of resources that are jobs, their output and their files.
struct JobResourceSource {
    guard: ToolSpec,
    handle: JobsToolHandle,
}

/// Parsed URI of a job resource: the id of the job, and the part of the job that the URI names.
#[derive(Debug, PartialEq, Eq)]
struct ParsedJobUri {
    id: String,
    part: JobResourcePart,
}

/// Part of a job that clients can read as a resource.
#[derive(Debug, PartialEq, Eq)]
enum JobResourcePart {
    /// State and result of the job, as a resource.
    Job,
    /// Output that the job's programs printed, as a resource.
    Output,
    /// File with this name that the job produced, as a resource.
    File(String),
}

impl ParsedJobUri {
    fn parse(uri: &str) -> Option<Self> {
        let path = uri.strip_prefix(SCHEME)?;
        let (id, of) = match path.split_once('/') {
            None => (path, JobResourcePart::Job),
            Some((id, "output")) => (id, JobResourcePart::Output),
            Some((id, rest)) => {
                let name = rest.strip_prefix("files/").filter(|name| !name.contains('/'))?;
                let name = percent_decode_str(name).decode_utf8().ok()?;
                (id, JobResourcePart::File(name.into_owned()))
            }
        };
        Some(Self { id: id.to_owned(), part: of })
    }
}

fn job_uri(id: JobId) -> String {
    format!("{SCHEME}{id}")
}

fn file_uri(id: JobId, name: &str) -> String {
    format!("{SCHEME}{id}/files/{}", utf8_percent_encode(name, ESCAPED_CHARS))
}

/// Returns the entry of a job in the list of resources.
fn job_entry(job: &JobSnapshot) -> ResourceSpec {
    let modified = Some(job.updated);
    ResourceSpec {
        title: Some(format!("{}, {}", job.tool, job.state.as_str())),
        about: job.message.clone(),
        media_type: Some("application/json".to_owned()),
        meant: ContentAnnotations { modified, ..ContentAnnotations::default() },
        ..ResourceSpec::new(job_uri(job.id), job.id.to_string())
    }
}

/// Returns the entry of a job's file in the list of resources.
fn file_entry(id: JobId, file: &JobArtefact) -> ResourceSpec {
    ResourceSpec {
        about: Some(format!("file `{}` of job {id}", file.path)),
        media_type: Some(file.media_type.clone()),
        bytes: Some(file.bytes),
        meant: ContentAnnotations {
            modified: Some(file.modified),
            ..ContentAnnotations::default()
        },
        ..ResourceSpec::new(file_uri(id, &file.name), &file.name)
    }
}

impl ResourceSource for JobResourceSource {
    fn guard(&self) -> &ToolSpec {
        &self.guard
    }

    fn owns(&self, uri: &str) -> bool {
        uri.starts_with(SCHEME)
    }

    fn list<'a>(
        &'a self,
        ctx: &'a ToolContext,
        after: Option<&'a str>,
        at_most: usize,
    ) -> ToolFuture<'a, Vec<ResourceSpec>> {
        Box::pin(self.list_entries(ctx, after, at_most))
    }

    fn templates(&self) -> Vec<ResourceTemplate> {
        let template = |uri: &str, name: &str, about: &str, media_type: Option<&str>| {
            let uri = format!("{SCHEME}{uri}");
            let name = name.to_owned();
            let media_type = media_type.map(str::to_owned);
            let about = Some(about.to_owned());
            ResourceTemplate {
                uri,
                name,
                description: about,
                media_type,
                ..ResourceTemplate::default()
            }
        };
        vec![
            template("{id}", "job", "A job's state and result.", Some("application/json")),
            template("{id}/output", "job output", "A job's printed output.", Some("text/plain")),
            template("{id}/files/{name}", "job file", "A file that a job left.", None),
        ]
    }

    fn read<'a>(
        &'a self,
        ctx: &'a ToolContext,
        uri: &'a str,
    ) -> ToolFuture<'a, Vec<ResourceContents>> {
        Box::pin(async move {
            let ParsedJobUri { id, part: of } =
                ParsedJobUri::parse(uri).ok_or_else(|| unknown_uri(uri))?;
            let jobs = self.jobs_or(|| unknown_uri(uri))?;
            let contents = match of {
                JobResourcePart::Job => {
                    let job = jobs.get(Some(&ctx.caller), &id).await.map_err(job_error)?;
                    let json = serde_json::to_string(&JobView::from_job(job)).map_err(|err| {
                        ToolError::with_cause("the job cannot be serialized", err)
                    })?;
                    ResourceContents::text(uri, "application/json", json)
                }
                JobResourcePart::Output => {
                    ResourceContents::text(uri, "text/plain", read_output(&jobs, ctx, &id).await?)
                }
                JobResourcePart::File(name) => read_file(&jobs, ctx, uri, &id, name).await?,
            };
            Ok(vec![contents])
        })
    }

    fn complete<'a>(
        &'a self,
        ctx: &'a ToolContext,
        asked: &'a CompletionRequest,
    ) -> ToolFuture<'a, Vec<String>> {
        Box::pin(async move {
            let Some(jobs) = self.existing_jobs() else { return Ok(Vec::new()) };
            match asked.argument.as_str() {
                "id" => {
                    let page = jobs.list(Some(&ctx.caller), None, JOBS_MAX).await;
                    let page = page.map_err(job_error)?;
                    Ok(page.jobs.iter().map(|job| job.id.to_string()).collect())
                }
                "name" => {
                    let Some(id) = asked.other_arguments.get("id") else { return Ok(Vec::new()) };
                    let job = jobs.get(Some(&ctx.caller), id).await.map_err(job_error)?;
                    Ok(job.artefacts.into_iter().map(|file| file.name).collect())
                }
                _ => Ok(Vec::new()),
            }
        })
    }

    fn watch<'a>(
        &'a self,
        ctx: &'a ToolContext,
        uri: &'a str,
        changes: &'a ChangeFeed,
    ) -> ToolFuture<'a, KeepActiveGuard> {
        Box::pin(async move {
            let ParsedJobUri { id, part: of } =
                ParsedJobUri::parse(uri).ok_or_else(|| unknown_uri(uri))?;
            let jobs = self.jobs_or(|| unknown_uri(uri))?;
            let job = jobs.get(Some(&ctx.caller), &id).await.map_err(job_error)?;
            if job.state.is_terminal() {
                return Ok(KeepActiveGuard::none());
            }
            let watch = jobs.watch(Some(&ctx.caller), &id, job.last_event).await;
            let (_, watch) = watch.map_err(job_error)?;
            let task = report_changes(watch, of, uri.into(), changes.clone());
            Ok(KeepActiveGuard::new(AbortOnDropHandle::new(toolgate_net::spawn_task(task))))
        })
    }

    fn watch_list(&self, changes: &ChangeFeed) -> KeepActiveGuard {
        let Ok(jobs) = self.handle.jobs() else { return KeepActiveGuard::none() };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return KeepActiveGuard::none();
        };
        let mut changed = jobs.subscribe();
        let changes = changes.clone();
        let task = toolgate_net::spawn_task_on(&runtime, async move {
            while changed.changed().await.is_ok() {
                tokio::time::sleep(GATHER_TIME).await;
                changed.mark_unchanged();
                changes.publish(&ServerChange::Resources);
            }
        });
        KeepActiveGuard::new(AbortOnDropHandle::new(task))
    }
}

impl JobResourceSource {
    /// Returns the job service if there are or were any jobs. Does not create the job store.
    fn existing_jobs(&self) -> Option<JobService> {
        self.handle.jobs().ok().filter(JobService::has_jobs)
    }

    fn jobs_or(&self, none: impl FnOnce() -> ToolError) -> Result<JobService, ToolError> {
        self.existing_jobs().ok_or_else(none)
    }

    /// Lists the resources of jobs, newest job first, each followed by its files.
    async fn list_entries(
        &self,
        ctx: &ToolContext,
        after: Option<&str>,
        at_most: usize,
    ) -> Result<Vec<ResourceSpec>, ToolError> {
        let Some(jobs) = self.existing_jobs() else { return Ok(Vec::new()) };
        let mut entries = Vec::new();
        let mut last = None;
        if let Some(after) = after {
            let ParsedJobUri { id, part: of } =
                ParsedJobUri::parse(after).ok_or_else(|| unknown_uri(after))?;
            let job = match jobs.get(Some(&ctx.caller), &id).await {
                Ok(job) => job,
                // If the job was removed since, older ones mostly were too, so the list ends here.
                Err(CallError::NotFound { .. }) => return Ok(entries),
                Err(err) => return Err(job_error(err)),
            };
            let is_after = |file: &&JobArtefact| match &of {
                JobResourcePart::Job | JobResourcePart::Output => true,
                JobResourcePart::File(name) => file.name > *name,
            };
            let rest = job.artefacts.iter().filter(is_after);
            entries.extend(rest.map(|file| file_entry(job.id, file)));
            last = Some(job.id);
        }
        while entries.len() < at_most {
            let size = (at_most - entries.len()).min(JOBS_MAX);
            let page = match jobs.list(Some(&ctx.caller), last, size).await {
                Ok(page) => page,
                Err(CallError::NotFound { .. }) => break,
                Err(err) => return Err(job_error(err)),
            };
            for job in &page.jobs {
                entries.push(job_entry(job));
                entries.extend(job.artefacts.iter().map(|file| file_entry(job.id, file)));
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

/// Returns the output that a job's programs printed, up to the size limit.
async fn read_output(jobs: &JobService, ctx: &ToolContext, id: &str) -> Result<String, ToolError> {
    let mut text = String::new();
    let mut after = 0;
    loop {
        let room = OUTPUT_BYTES_MAX.saturating_sub(text.len());
        let page = jobs.read_events(&ctx.caller, id, after, room.max(1)).await;
        let (job, events) = page.map_err(job_error)?;
        let Some(last) = events.last().map(|last| last.seq) else { return Ok(text) };
        if room == 0 {
            let note = "there is more output; read it with jobs_output";
            text.push_str(&format!("\n({note}, `job_id`: {}, `cursor`: {after})\n", job.id));
            return Ok(text);
        }
        for event in events {
            if let JobEventKind::Output { text: piece, .. } = event.kind {
                text.push_str(&piece);
            }
        }
        after = last;
    }
}

/// Reads a file that a job produced, if its size is within the limit.
async fn read_file(
    jobs: &JobService,
    ctx: &ToolContext,
    uri: &str,
    id: &str,
    name: String,
) -> Result<ResourceContents, ToolError> {
    let open = jobs
        .open_artefact(&ctx.caller, id, ArtefactSelection::Named(name))
        .await
        .map_err(job_error)?;
    let OutgoingFile { handle, bytes, media_type, guard: _ } = open.file;
    if bytes > FILE_BYTES_MAX {
        let why = format!(
            "`{uri}` is {bytes} bytes long, and the limit is {FILE_BYTES_MAX}; if the file is still \
             in the workspace, read it in parts with files_read"
        );
        return Err(ToolError::new(ToolErrorKind::TooLarge, why));
    }
    let contents = spawn_blocking(move || {
        // Bounded by `FILE_BYTES_MAX`, so it fits.
        let mut contents = vec![0; usize::try_from(bytes).unwrap_or_default()];
        handle.read_exact_at(&mut contents, 0).map(|()| contents)
    });
    let failed = || format!("`{uri}` could not be read");
    let contents = contents.await.map_err(|err| ToolError::with_cause(failed(), err))?;
    let contents = contents.map_err(|err| ToolError::with_cause(failed(), err))?;
    let is_text = !contents.contains(&0);
    Ok(match String::from_utf8(contents) {
        Ok(text) if is_text => ResourceContents::text(uri, media_type, text),
        Ok(text) => ResourceContents::bytes(uri, media_type, text.into_bytes()),
        Err(err) => ResourceContents::bytes(uri, media_type, err.into_bytes()),
    })
}

/// Reports changes of `part` of a job, whose URI is `uri`, until the job ends.
async fn report_changes(
    mut watch: Box<dyn JobEventStream>,
    part: JobResourcePart,
    uri: Arc<str>,
    changes: ChangeFeed,
) {
    loop {
        match watch.next().await {
            None => return,
            Some(JobStreamItem::Event(event)) if !affects_part(&part, &event.kind) => continue,
            Some(JobStreamItem::Event(_) | JobStreamItem::Ended(_)) => {}
        }
        let until = Instant::now() + GATHER_TIME;
        let is_over = loop {
            match timeout_at(until, watch.next()).await {
                Ok(Some(_)) => {}
                Ok(None) => break true,
                Err(_elapsed) => break false,
            }
        };
        changes.publish(&ServerChange::Resource(uri.clone()));
        if is_over {
            return;
        }
    }
}

/// Returns true if the event changes `part` of a job.
fn affects_part(part: &JobResourcePart, kind: &JobEventKind) -> bool {
    match kind {
        JobEventKind::Queued | JobEventKind::Started { .. } | JobEventKind::Progress { .. } => {
            *part == JobResourcePart::Job
        }
        JobEventKind::Output { .. } => *part == JobResourcePart::Output,
        // The representation of a job does not contain its log lines.
        JobEventKind::Log { .. } => false,
        JobEventKind::Asks { .. } => *part == JobResourcePart::Job,
        JobEventKind::Artefact(file) => match part {
            JobResourcePart::Job => true,
            JobResourcePart::Output => false,
            JobResourcePart::File(name) => file.name == *name,
        },
        JobEventKind::Finished { .. } => {
            matches!(part, JobResourcePart::Job | JobResourcePart::Output)
        }
    }
}

fn job_error(err: CallError) -> ToolError {
    tool_error(err, "")
}

fn unknown_uri(uri: &str) -> ToolError {
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
    fn a_file_name_with_any_characters_survives_its_uri() {
        let id = JobId::from_bits(7);
        for name in ["plot.png", "a b%c?d#e", "ä/ö", ".."] {
            let place = ParsedJobUri::parse(&file_uri(id, name)).expect("a place");
            assert_eq!(
                place,
                ParsedJobUri { id: id.to_string(), part: JobResourcePart::File(name.to_owned()) }
            );
        }
        for none in ["job://1/2", "job://1/files/a/b", "file:///a", "job://1/files"] {
            assert_eq!(ParsedJobUri::parse(none), None, "{none}");
        }
    }
}
