//! Finds jobs by their id or the beginning of the id.

use toolgate_contract::{CallError, JobId, JobSnapshot};
use toolgate_host::JobService;

use super::PAGE;

/// Minimum number of digits at the beginning of an id that identify a job.
const DIGITS_MIN: usize = 4;
/// Maximum number of jobs that an error about an ambiguous id lists.
const NAMED_MAX: usize = 5;
/// Largest edit distance between the id that the user typed and the id that an error suggests.
const EDITS_MAX: usize = 2;

/// Returns the newest `limit` jobs with their outcomes, newest first. The second value is true if
/// older jobs exist. Fails if the job store cannot be read.
pub(super) async fn newest_jobs(
    jobs: &JobService,
    limit: usize,
) -> Result<(Vec<JobSnapshot>, bool), CallError> {
    let mut found = Vec::new();
    let mut after = None;
    while found.len() < limit {
        let page = jobs.list(None, after, PAGE.min(limit - found.len())).await?;
        for job in page.jobs {
            // A list has no outcomes. A job that was deleted meanwhile is shown as listed.
            let whole = if job.state.is_terminal() {
                jobs.get(None, &job.id.to_string()).await.ok()
            } else {
                None
            };
            found.push(whole.unwrap_or(job));
        }
        after = page.next;
        if after.is_none() {
            return Ok((found, false));
        }
    }
    Ok((found, after.is_some()))
}

/// Returns the job with the id `id`, or the only job whose id starts with `id`.
///
/// # Errors
/// No job or more than one job has such an id.
pub(super) async fn find_job(jobs: &JobService, id: &str) -> Result<JobSnapshot, CallError> {
    let id = id.to_ascii_lowercase();
    let digits = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !digits {
        let message = format!("`{id}` is not a job id; `toolgate jobs` lists the jobs");
        return Err(CallError::NotFound { message });
    }
    // The host suggests similar ids for a complete one.
    if id.len() >= 32 {
        return jobs.get(None, &id).await;
    }
    if id.len() < DIGITS_MIN {
        let message =
            format!("`{id}` is too short for a job id; give at least {DIGITS_MIN} digits");
        return Err(CallError::NotFound { message });
    }
    let ids = ids(jobs).await?;
    let matching: Vec<_> = ids.iter().filter(|known| known.starts_with(&id)).collect();
    match matching.as_slice() {
        [one] => jobs.get(None, one).await,
        [] => {
            let nearest = suggestion(&id, &ids);
            let message =
                format!("no job id begins with `{id}`{nearest}; `toolgate jobs` lists the jobs");
            Err(CallError::NotFound { message })
        }
        several => {
            let listed = several.iter().take(NAMED_MAX).map(|id| format!("\n  {id}"));
            let more = match several.len().saturating_sub(NAMED_MAX) {
                0 => String::new(),
                more => format!("\n  and {more} more"),
            };
            let message = format!(
                "the ids of {} jobs begin with `{id}`; give more digits:{}{more}",
                several.len(),
                listed.collect::<String>(),
            );
            Err(CallError::NotFound { message })
        }
    }
}

/// Returns the error that there is no job with the id `id`, because the folder has no jobs.
pub(super) fn no_such_job_error(id: &str) -> CallError {
    CallError::NotFound {
        message: format!(
            "there is no job `{id}`, because this folder has no jobs; name the folder that you serve \
             with --root"
        ),
    }
}

/// Returns the error that the folder has no jobs. The message contains an example that starts a
/// job.
pub(super) fn no_jobs_error() -> CallError {
    let message = "this folder has no jobs; start one at a running server, e.g.\n  \
                   toolgate call jobs_start '{\"tool\":\"exec_run\",\"arguments\":{\"command\":\"make\"}}' \
                   --url http://127.0.0.1:8000/mcp";
    CallError::NotFound { message: message.to_owned() }
}

/// Returns the ids of all stored jobs, newest first. Fails if the job store cannot be read.
async fn ids(jobs: &JobService) -> Result<Vec<String>, CallError> {
    let mut ids = Vec::new();
    let mut after: Option<JobId> = None;
    loop {
        let page = jobs.list(None, after, PAGE).await?;
        ids.extend(page.jobs.iter().map(|job| job.id.to_string()));
        after = page.next;
        if after.is_none() {
            return Ok(ids);
        }
    }
}

fn suggestion(typed: &str, ids: &[String]) -> String {
    let beginnings = ids.iter().filter_map(|id| id.get(..typed.len()));
    let near = beginnings.map(|id| (strsim::damerau_levenshtein(typed, id), id));
    let nearest =
        near.min_by_key(|(letters, _)| *letters).filter(|(letters, _)| *letters <= EDITS_MAX);
    nearest.map(|(_, id)| format!(", did you mean `{id}`?")).unwrap_or_default()
}
