//! Answers that are larger than a model is to be given at once: kept here, to be read on.

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

/// How long a result is kept.
const KEPT: Duration = Duration::from_secs(3600);
/// How many bytes of all.
const KEPT_BYTES: usize = 64 << 20;
/// What keeping one takes beside what is kept, in bytes.
const EACH: usize = 512;
/// What its URI begins with, before its id.
const SCHEME: &str = "result://";

/// Results that are kept. Clones are one.
#[derive(Clone, Default)]
pub struct Results(Arc<Mutex<All>>);

/// All that are kept.
#[derive(Default)]
struct All {
    /// The newest last.
    kept: VecDeque<Kept>,
    /// How much they take.
    bytes: usize,
}

/// A result, or a part of one.
struct Kept {
    whose: Caller,
    /// As it is listed and linked to; its URI has its id.
    spec: ResourceSpec,
    whole: Whole,
    since: Instant,
}

/// What is kept of it.
#[derive(Clone)]
enum Whole {
    Text(Arc<str>),
    Bytes(Bytes),
}

impl Results {
    /// The tool that reads them.
    pub fn tool(&self) -> Arc<dyn AnyTool> {
        erase(Read(self.clone()))
    }

    /// Them as resources.
    pub fn resources(&self) -> Arc<dyn Resources> {
        let id = ToolId::new(Read::NAME).expect("an id");
        let guard = ToolSpec::new(id, Read::TITLE, Read::ABOUT, Effects::Reads);
        Arc::new(Source { results: self.clone(), guard })
    }

    /// All that there still are.
    fn all(&self) -> MutexGuard<'_, All> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while all.kept.front().is_some_and(|kept| kept.since.elapsed() >= KEPT) {
            all.forget();
        }
        all
    }

    /// Keeps `whole` for `whose`, known as `spec`; gives that back with its URI and its length.
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
        let (whose, since) = (whose.clone(), Instant::now());
        let kept = Kept { whose, spec: spec.clone(), whole, since };
        let mut all = self.all();
        all.bytes += kept.bytes();
        all.kept.push_back(kept);
        while all.bytes > KEPT_BYTES && all.kept.len() > 1 {
            all.forget();
        }
        Ok(spec)
    }

    /// The result that `id` names, or its URI, if it is the caller's.
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
    /// Lets go of the oldest.
    fn forget(&mut self) {
        if let Some(gone) = self.kept.pop_front() {
            self.bytes -= gone.bytes();
        }
    }
}

impl Kept {
    /// How much it takes.
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

/// What a result that is kept as `spec` is read by, beside its URI.
fn id_of(spec: &ResourceSpec) -> &str {
    spec.uri.strip_prefix(SCHEME).unwrap_or(&spec.uri)
}

/// At most `len` bytes of `text` from `at` on, with no character cut in two.
fn piece(text: &str, at: usize, len: usize) -> &str {
    let start = text.floor_char_boundary(at.min(text.len()));
    let end = text.floor_char_boundary((start + len).min(text.len()));
    &text[start..end]
}
