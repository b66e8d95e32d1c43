//! Makes files of jobs and long results readable at all servers of a fleet.

use std::collections::HashMap;
use std::fs::File;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::time::{Instant, timeout};
use toolgate_contract::{
    ArtefactSelection, BoxFuture, CallError, Caller, JobArtefact, JobId, JobSnapshot, ResourceSpec,
    SharedLongResult, SharedResultStore, lock_mutex,
};
use toolgate_net::spawn_blocking;

use super::postgres::{ContentSharingError, FleetContentStore};
use super::store::JobStoreError;
use super::{JobService, JobServiceState};

/// Pause before this server tries again to share a file.
const RETRY_PAUSE: Duration = Duration::from_millis(500);
/// Maximum number of tries to share a file while the server stops. After that, the file stays at
/// this server.
const LAST_TRIES_MAX: u32 = 3;
/// Interval between two searches for expired shared files and results.
const EXPIRED_INTERVAL: Duration = Duration::from_secs(15);
/// Longest time for which the answer to a call waits until its long result is shared.
const SHARE_WAIT: Duration = Duration::from_secs(5);
/// Time for which results are not shared after the database did not answer.
const AWAY_TIME: Duration = Duration::from_secs(5);

impl JobService {
    /// Returns the store of the long results that the servers of a fleet share, or `None` if this
    /// server is not part of a fleet.
    pub fn shared_results(&self) -> Option<Arc<dyn SharedResultStore>> {
        if !self.0.is_shared() {
            return None;
        }
        let away_until = Mutex::default();
        Some(Arc::new(FleetResultStore { jobs: Arc::downgrade(&self.0), away_until }))
    }
}

impl JobServiceState {
    /// Returns the store of the files and results that the servers of a fleet share, or `None` if
    /// there is no fleet.
    async fn shared_contents(&self) -> Result<Option<Arc<FleetContentStore>>, JobStoreError> {
        if !self.is_shared() {
            return Ok(None);
        }
        self.store().await?;
        Ok(self.contents.get().cloned())
    }

    /// Passes the files of a job, which are stored in the folder of this server, to all servers of
    /// the fleet. Waits for the database if it is unavailable. Returns a message about each file
    /// that stays at this server.
    pub(super) async fn share_files(
        &self,
        id: JobId,
        attempt: u32,
        files: &[JobArtefact],
    ) -> Vec<String> {
        let mut messages = Vec::new();
        if !self.is_shared() {
            return messages;
        }
        let mut last_tries = LAST_TRIES_MAX;
        for file in files {
            let why = loop {
                match self.share_file(id, attempt, &file.name).await {
                    Ok(()) => break None,
                    Err(ContentSharingError::Refused(why)) => break Some(why),
                    Err(ContentSharingError::Unavailable(err)) if last_tries == 0 => {
                        break Some(err.to_string());
                    }
                    Err(ContentSharingError::Unavailable(err)) => {
                        tracing::warn!(job = %id, "{err}; trying again to store a file of the job");
                        last_tries -= u32::from(self.stopping.is_cancelled());
                        tokio::time::sleep(RETRY_PAUSE).await;
                    }
                }
            };
            match why {
                Some(why) => messages.push(format!(
                    "only the server that ran the job has its file `{}`: {why}",
                    file.path
                )),
                None => {
                    let (stored, name) = (self.files.clone(), file.name.clone());
                    // The copy that is left is removed with the job.
                    let _ = spawn_blocking(move || stored.remove_one(id, &name)).await;
                }
            }
        }
        messages
    }

    async fn share_file(
        &self,
        id: JobId,
        attempt: u32,
        name: &str,
    ) -> Result<(), ContentSharingError> {
        let contents = self.shared_contents().await.map_err(ContentSharingError::Unavailable)?;
        let Some(contents) = contents else { return Ok(()) };
        let (stored, file_name) = (self.files.clone(), name.to_owned());
        let opened = spawn_blocking(move || stored.open_stored(id, &file_name)).await;
        let opened = opened.map_err(std::io::Error::other).flatten();
        let file = opened.map_err(|err| ContentSharingError::Refused(err.to_string()))?;
        contents.store_job_file(id, attempt, name, file).await
    }

    /// Fetches the selected files of `job` that the servers of the fleet share, by name. The result
    /// lacks files that only this server has.
    pub(super) async fn fetch_files(
        &self,
        job: &JobSnapshot,
        which: &ArtefactSelection,
    ) -> Result<HashMap<String, File>, CallError> {
        let mut fetched = HashMap::new();
        if job.artefacts.is_empty() {
            return Ok(fetched);
        }
        let Some(contents) = self.shared_contents().await? else { return Ok(fetched) };
        for file in &job.artefacts {
            if matches!(which, ArtefactSelection::Named(name) if *name != file.name) {
                continue;
            }
            if let Some(open) = contents.open_job_file(job.id, job.attempts, &file.name).await? {
                fetched.insert(file.name.clone(), open);
            }
        }
        Ok(fetched)
    }

    /// Removes expired shared files and results, now and periodically, until the server stops. Runs
    /// as a separate task, so that a slow store of large files delays no takeover of jobs.
    pub(super) async fn remove_expired_contents(&self) {
        if !self.is_shared() {
            return;
        }
        while !self.stopping.is_cancelled() {
            if let Some(contents) = self.contents.get() {
                let removed = tokio::select! {
                    () = self.stopping.cancelled() => return,
                    removed = contents.remove_expired() => removed,
                };
                if let Err(err) = removed {
                    tracing::warn!("{err}; expired files and results are removed later");
                }
            }
            self.wait_for_stop(EXPIRED_INTERVAL).await;
        }
    }

    /// Marks the shared files of jobs as expired if a server of an older version has removed these
    /// jobs.
    pub(super) async fn expire_unknown_contents(&self) {
        let Ok(Some(contents)) = self.shared_contents().await else { return };
        if let Err(err) = contents.expire_unknown().await {
            tracing::warn!("{err}; files of removed jobs are removed later");
        }
    }
}

/// Store of the long results that the servers of a fleet share through the job store.
struct FleetResultStore {
    jobs: Weak<JobServiceState>,
    /// Time until which results are not shared, because the database did not answer.
    away_until: Mutex<Option<Instant>>,
}

impl FleetResultStore {
    async fn contents(&self) -> Result<Arc<FleetContentStore>, JobStoreError> {
        let stopped = || JobStoreError("this server stops".to_owned());
        let jobs = self.jobs.upgrade().ok_or_else(stopped)?;
        jobs.shared_contents().await?.ok_or_else(stopped)
    }

    fn is_away(&self) -> bool {
        let until = *lock_mutex(&self.away_until);
        until.is_some_and(|until| Instant::now() < until)
    }

    fn note_absence(&self, why: &JobStoreError) {
        tracing::warn!("{why}; only this server can return a long result that it has just cut");
        let until = Instant::now() + AWAY_TIME;
        *lock_mutex(&self.away_until) = Some(until);
    }
}

impl SharedResultStore for FleetResultStore {
    fn share<'a>(&'a self, caller: &'a Caller, result: SharedLongResult) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            if self.is_away() {
                return;
            }
            let work = async {
                let contents = self.contents().await.map_err(ContentSharingError::Unavailable)?;
                contents.store_result(caller, &result).await
            };
            let uri = &result.spec.uri;
            match timeout(SHARE_WAIT, work).await {
                Ok(Ok(())) => {}
                Ok(Err(ContentSharingError::Refused(why))) => {
                    tracing::warn!("only this server can return the long result {uri}: {why}");
                }
                Ok(Err(ContentSharingError::Unavailable(err))) => self.note_absence(&err),
                Err(_) => self.note_absence(&JobStoreError(format!(
                    "the database did not store a result within {} s",
                    SHARE_WAIT.as_secs()
                ))),
            }
        })
    }

    fn find<'a>(
        &'a self,
        caller: &'a Caller,
        uri: &'a str,
    ) -> BoxFuture<'a, Result<Option<SharedLongResult>, String>> {
        Box::pin(async move {
            let work = async { self.contents().await?.find_result(caller, uri).await };
            work.await.map_err(|err: JobStoreError| err.to_string())
        })
    }

    fn list<'a>(&'a self, caller: &'a Caller) -> BoxFuture<'a, Vec<ResourceSpec>> {
        Box::pin(async move {
            if self.is_away() {
                return Vec::new();
            }
            let work = async { self.contents().await?.list_results(caller).await };
            match work.await {
                Ok(entries) => entries,
                Err(err) => {
                    tracing::warn!("{err}; long results of other servers are not listed");
                    Vec::new()
                }
            }
        })
    }
}
