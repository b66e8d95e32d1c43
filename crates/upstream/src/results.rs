//! Stores results that are too large for a model, so that the model can read the rest later.
//!
//! A result is in the memory of the server that cut it. In a fleet, it is in a store that all
//! servers share as well.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use toolgate_contract::{
    AnyTool, Caller, Effects, ResourceSource, ResourceSpec, SharedLongResult, SharedResultStore,
    Tool, ToolError, ToolErrorKind, ToolId, ToolSpec, erase_tool, lock_mutex,
};

mod cutting;
mod picking;
mod reading;
mod source;
#[cfg(test)]
mod tests;

pub(crate) use cutting::{ResultSizeBudget, TruncatedToolResult};
use reading::ReadStoredResult;
use source::StoredResultSource;

/// Time for which a result that was too long to return at once stays stored.
const LIFETIME: Duration = Duration::from_secs(3600);
/// Maximum number of bytes of all stored results together.
const STORE_BYTES_MAX: usize = 64 << 20;
/// Additional memory that each stored result takes, in bytes.
const OVERHEAD_BYTES: usize = 512;
/// Prefix of a stored result's URI before the id.
const SCHEME: &str = "result://";

/// Store of results that were too long to return at once. Clones share one store.
#[derive(Clone, Default)]
pub struct UpstreamResultStore(Arc<ResultStoreState>);

#[derive(Default)]
struct ResultStoreState {
    results: Mutex<StoredResultList>,
    /// Store that other servers of a fleet read as well, if there is a fleet.
    shared: OnceLock<Arc<dyn SharedResultStore>>,
}

/// All stored results, with their total size.
#[derive(Default)]
struct StoredResultList {
    /// Stored results, newest last.
    kept: VecDeque<StoredResult>,
    /// Number of bytes that all stored results take.
    bytes: usize,
}

/// A stored result of a call, or a piece of a result, such as an image.
struct StoredResult {
    caller: Caller,
    /// Entry of the result in lists and links. Its URI contains the id.
    spec: ResourceSpec,
    data: StoredData,
    /// Time at which the result is removed.
    until: Instant,
}

/// Data of a stored result: text or binary.
#[derive(Clone)]
pub(crate) enum StoredData {
    Text(Arc<str>),
    Bytes(Bytes),
}

impl UpstreamResultStore {
    /// Returns the tool that reads stored results.
    pub fn tool(&self) -> Arc<dyn AnyTool> {
        erase_tool(ReadStoredResult(self.clone()))
    }

    /// Returns the stored results as resources.
    pub fn resources(&self) -> Arc<dyn ResourceSource> {
        let id = ToolId::new(ReadStoredResult::NAME).expect("an id");
        let guard = ToolSpec::new(
            id,
            ReadStoredResult::TITLE,
            ReadStoredResult::DESCRIPTION,
            Effects::Reads,
        );
        Arc::new(StoredResultSource { results: self.clone(), guard })
    }

    /// Makes new results readable at all servers that share `store`.
    pub fn share_through(&self, store: Arc<dyn SharedResultStore>) {
        // A server sets it once.
        let _ = self.0.shared.set(store);
    }

    /// Locks the list of stored results and removes the expired ones.
    fn lock(&self) -> MutexGuard<'_, StoredResultList> {
        let mut all = lock_mutex(&self.0.results);
        all.remove_expired(Instant::now());
        all
    }

    /// Stores `data` for `caller` in memory. Returns `spec` with the URI and size of the stored
    /// result.
    fn store(
        &self,
        caller: &Caller,
        spec: ResourceSpec,
        data: StoredData,
    ) -> Result<ResourceSpec, ToolError> {
        let mut bits = [0; 8];
        getrandom::fill(&mut bits)
            .map_err(|err| ToolError::with_cause("the result cannot be stored", err))?;
        let uri = format!("{SCHEME}{:016x}", u64::from_le_bytes(bits));
        let spec = ResourceSpec { uri, bytes: Some(data.len() as u64), ..spec };
        self.keep(caller, spec.clone(), data, LIFETIME);
        Ok(spec)
    }

    /// Stores the result of `caller` in memory for `time`, or until newer results need the memory.
    fn keep(&self, caller: &Caller, spec: ResourceSpec, data: StoredData, time: Duration) {
        let until = Instant::now() + time.min(LIFETIME);
        let result = StoredResult { caller: caller.clone(), spec, data, until };
        let mut all = self.lock();
        all.bytes += result.bytes();
        all.kept.push_back(result);
        while all.bytes > STORE_BYTES_MAX && all.kept.len() > 1 {
            all.remove_oldest();
        }
    }

    /// Passes results of `caller`, which were just stored, to the other servers of the fleet, if
    /// there is one.
    pub(crate) async fn share(&self, caller: &Caller, stored: Vec<(ResourceSpec, StoredData)>) {
        let Some(shared) = self.0.shared.get() else { return };
        for (spec, data) in stored {
            let (content, is_text) = match data {
                StoredData::Text(text) => (Bytes::copy_from_slice(text.as_bytes()), true),
                StoredData::Bytes(bytes) => (bytes, false),
            };
            shared.share(caller, SharedLongResult { spec, content, is_text, keep: LIFETIME }).await;
        }
    }

    /// Returns the stored result of `caller` with the given id or URI. Another server of the fleet
    /// may have stored it.
    async fn find(
        &self,
        caller: &Caller,
        id: &str,
    ) -> Result<(ResourceSpec, StoredData), ToolError> {
        let id = id.strip_prefix(SCHEME).unwrap_or(id);
        if let Some(found) = self.find_here(caller, id) {
            return Ok(found);
        }
        let Some(shared) = self.0.shared.get() else { return Err(unknown_result(id)) };
        let found = shared.find(caller, &format!("{SCHEME}{id}")).await.map_err(|why| {
            let message =
                format!("the result `{id}` is not in the memory of this server, and {why}");
            ToolError::new(ToolErrorKind::Unavailable, message)
        })?;
        let SharedLongResult { spec, content, is_text, keep } =
            found.ok_or_else(|| unknown_result(id))?;
        let data = StoredData::from_content(content, is_text);
        // So the next part of the result is read from memory.
        self.keep(caller, spec.clone(), data.clone(), keep);
        Ok((spec, data))
    }

    /// Returns the result of `caller` with the id `id` from the memory of this server, if it is
    /// stored there.
    fn find_here(&self, caller: &Caller, id: &str) -> Option<(ResourceSpec, StoredData)> {
        let all = self.lock();
        let is_found = |one: &&StoredResult| id_in_uri(&one.spec) == id && one.caller == *caller;
        let found = all.kept.iter().find(is_found)?;
        Some((found.spec.clone(), found.data.clone()))
    }

    /// Returns the entries of all stored results of `caller`, in the order of their URIs.
    async fn list(&self, caller: &Caller) -> Vec<ResourceSpec> {
        let mut entries: Vec<_> = {
            let all = self.lock();
            let own = all.kept.iter().filter(|kept| kept.caller == *caller);
            own.map(|kept| kept.spec.clone()).collect()
        };
        if let Some(shared) = self.0.shared.get() {
            entries.extend(shared.list(caller).await);
        }
        entries.sort_by(|a, b| a.uri.cmp(&b.uri));
        entries.dedup_by(|a, b| a.uri == b.uri);
        entries
    }
}

fn unknown_result(id: &str) -> ToolError {
    let message = format!(
        "unknown result `{id}`: a result is kept for an hour, or until newer ones need its space; \
         call the tool again"
    );
    ToolError::new(ToolErrorKind::NotFound, message)
}

impl StoredResultList {
    /// Removes the results whose time is over at `now`.
    fn remove_expired(&mut self, now: Instant) {
        let Self { kept, bytes } = self;
        kept.retain(|one| {
            let stays = one.until > now;
            if !stays {
                *bytes -= one.bytes();
            }
            stays
        });
    }

    /// Removes the oldest stored result.
    fn remove_oldest(&mut self) {
        if let Some(oldest) = self.kept.pop_front() {
            self.bytes -= oldest.bytes();
        }
    }
}

impl StoredResult {
    /// Returns the number of bytes that the stored result takes.
    fn bytes(&self) -> usize {
        let ResourceSpec { name, about, media_type, .. } = &self.spec;
        let described = [about, media_type].into_iter().flatten().map(String::len).sum::<usize>();
        self.data.len() + name.len() + described + OVERHEAD_BYTES
    }
}

impl StoredData {
    /// Creates the data of a result that another server has shared.
    fn from_content(content: Bytes, is_text: bool) -> Self {
        if !is_text {
            return Self::Bytes(content);
        }
        match std::str::from_utf8(&content) {
            Ok(text) => Self::Text(text.into()),
            Err(_) => Self::Bytes(content),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Bytes(bytes) => bytes.len(),
        }
    }
}

/// Returns the id of the stored result in the URI of `spec`.
fn id_in_uri(spec: &ResourceSpec) -> &str {
    spec.uri.strip_prefix(SCHEME).unwrap_or(&spec.uri)
}

/// Returns at most `len` bytes of `text` from `at` on, at character boundaries.
fn piece(text: &str, at: usize, len: usize) -> &str {
    let start = text.floor_char_boundary(at.min(text.len()));
    let end = text.floor_char_boundary((start + len).min(text.len()));
    &text[start..end]
}
