//! Stores results that are too large for a model, so that it can read on.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use toolgate_contract::{
    AnyTool, Caller, Effects, Fault, ResourceSpec, Resources, Tool, ToolError, ToolId, ToolSpec,
    erase,
};

mod cutting;
mod reading;
mod source;
#[cfg(test)]
mod tests;

pub(crate) use cutting::Budget;
use reading::Read;
use source::Source;

/// Lifetime of a stored result.
const KEPT: Duration = Duration::from_secs(3600);
/// Most bytes of all stored results together.
const KEPT_BYTES: usize = 64 << 20;
/// Overhead of a stored result, in bytes.
const EACH: usize = 512;
/// URI prefix before the id.
const SCHEME: &str = "result://";

/// Store of long results. Clones share one store.
#[derive(Clone, Default)]
pub struct Results(Arc<Mutex<All>>);

/// All stored results.
#[derive(Default)]
struct All {
    /// Results, newest last.
    kept: VecDeque<Kept>,
    /// Bytes in use.
    bytes: usize,
}

/// A stored result, or a part of one.
struct Kept {
    whose: Caller,
    /// Entry for lists and links. Its URI contains the id.
    spec: ResourceSpec,
    whole: Whole,
    since: Instant,
}

/// Stored data.
#[derive(Clone)]
enum Whole {
    Text(Arc<str>),
    Bytes(Bytes),
}

impl Results {
    /// Returns the tool that reads stored results.
    pub fn tool(&self) -> Arc<dyn AnyTool> {
        erase(Read(self.clone()))
    }

    /// Returns the stored results as resources.
    pub fn resources(&self) -> Arc<dyn Resources> {
        let id = ToolId::new(Read::NAME).expect("an id");
        let guard = ToolSpec::new(id, Read::TITLE, Read::ABOUT, Effects::Reads);
        Arc::new(Source { results: self.clone(), guard })
    }

    /// Locks the store after removing expired results.
    fn all(&self) -> MutexGuard<'_, All> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while all.kept.front().is_some_and(|kept| kept.since.elapsed() >= KEPT) {
            all.forget();
        }
        all
    }

    /// Stores `whole` for `whose`. Returns `spec` with its URI and size.
    fn keep(
        &self,
        whose: &Caller,
        spec: ResourceSpec,
        whole: Whole,
    ) -> Result<ResourceSpec, ToolError> {
        let mut bits = [0; 8];
        getrandom::fill(&mut bits)
            .map_err(|err| ToolError::because("a result cannot be named", err))?;
        let uri = format!("{SCHEME}{:016x}", u64::from_le_bytes(bits));
        let spec = ResourceSpec { uri, bytes: Some(whole.len() as u64), ..spec };
        let whose = whose.clone();
        let since = Instant::now();
        let kept = Kept { whose, spec: spec.clone(), whole, since };
        let mut all = self.all();
        all.bytes += kept.bytes();
        all.kept.push_back(kept);
        while all.bytes > KEPT_BYTES && all.kept.len() > 1 {
            all.forget();
        }
        Ok(spec)
    }

    /// Returns the caller's result with the given id or URI.
    fn of(&self, caller: &Caller, id: &str) -> Result<(ResourceSpec, Whole), ToolError> {
        let id = id.strip_prefix(SCHEME).unwrap_or(id);
        let all = self.all();
        let found = all.kept.iter().find(|kept| id_of(&kept.spec) == id && kept.whose == *caller);
        found.map(|kept| (kept.spec.clone(), kept.whole.clone())).ok_or_else(|| {
            let message = format!(
                "there is no result `{id}`: one is kept for an hour, or until there are newer ones \
                 for its place; call the tool again"
            );
            ToolError::new(Fault::NotFound, message)
        })
    }
}

impl All {
    /// Removes the oldest result.
    fn forget(&mut self) {
        if let Some(gone) = self.kept.pop_front() {
            self.bytes -= gone.bytes();
        }
    }
}

impl Kept {
    /// Returns the bytes that the result takes.
    fn bytes(&self) -> usize {
        let ResourceSpec { name, about, media_type, .. } = &self.spec;
        let said = [about, media_type].into_iter().flatten().map(String::len).sum::<usize>();
        self.whole.len() + name.len() + said + EACH
    }
}

impl Whole {
    fn len(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Bytes(bytes) => bytes.len(),
        }
    }
}

/// Returns the id in the URI of `spec`.
fn id_of(spec: &ResourceSpec) -> &str {
    spec.uri.strip_prefix(SCHEME).unwrap_or(&spec.uri)
}

/// Returns at most `len` bytes of `text` from `at` on, at character boundaries.
fn piece(text: &str, at: usize, len: usize) -> &str {
    let start = text.floor_char_boundary(at.min(text.len()));
    let end = text.floor_char_boundary((start + len).min(text.len()));
    &text[start..end]
}
