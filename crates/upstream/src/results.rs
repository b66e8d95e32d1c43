//! Stores results that are too large for a model, so that the model can read the rest later.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use toolgate_contract::{
    AnyTool, Caller, Effects, ResourceSource, ResourceSpec, Tool, ToolError, ToolErrorKind, ToolId,
    ToolSpec, erase_tool,
};

mod cutting;
mod picking;
mod reading;
mod source;
#[cfg(test)]
mod tests;

pub(crate) use cutting::ResultSizeBudget;
use reading::ReadStoredResult;
use source::StoredResults;

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
pub struct ResultStore(Arc<Mutex<StoredResultSet>>);

/// All stored results.
#[derive(Default)]
struct StoredResultSet {
    /// Stored results, newest last.
    kept: VecDeque<StoredResult>,
    /// Number of bytes that all stored results take.
    bytes: usize,
}

/// A stored result of a call, or a part of one.
struct StoredResult {
    caller: Caller,
    /// Entry of the result in lists and links. Its URI contains the id.
    spec: ResourceSpec,
    data: StoredData,
    since: Instant,
}

/// Data of a stored result.
#[derive(Clone)]
enum StoredData {
    Text(Arc<str>),
    Bytes(Bytes),
}

impl ResultStore {
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
        Arc::new(StoredResults { results: self.clone(), guard })
    }

    /// Locks the store of results after removing expired ones.
    fn lock(&self) -> MutexGuard<'_, StoredResultSet> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while all.kept.front().is_some_and(|kept| kept.since.elapsed() >= LIFETIME) {
            all.remove_oldest();
        }
        all
    }

    /// Stores `data` for `caller`. Returns `spec` with the URI and size of the stored result.
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
        let caller = caller.clone();
        let since = Instant::now();
        let result = StoredResult { caller, spec: spec.clone(), data, since };
        let mut all = self.lock();
        all.bytes += result.bytes();
        all.kept.push_back(result);
        while all.bytes > STORE_BYTES_MAX && all.kept.len() > 1 {
            all.remove_oldest();
        }
        Ok(spec)
    }

    /// Returns the stored result of `caller` with the given id or URI.
    fn find(&self, caller: &Caller, id: &str) -> Result<(ResourceSpec, StoredData), ToolError> {
        let id = id.strip_prefix(SCHEME).unwrap_or(id);
        let all = self.lock();
        let found =
            all.kept.iter().find(|kept| id_in_uri(&kept.spec) == id && kept.caller == *caller);
        found.map(|kept| (kept.spec.clone(), kept.data.clone())).ok_or_else(|| {
            let message = format!(
                "unknown result `{id}`: a result is kept for an hour, or until newer ones need its \
                 space; call the tool again"
            );
            ToolError::new(ToolErrorKind::NotFound, message)
        })
    }
}

impl StoredResultSet {
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
