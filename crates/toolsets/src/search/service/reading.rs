//! Reads files and cuts them into chunks.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::Mutex;
use std::thread;

use serde_json::Map;
use toolgate_chunks::{
    FileClassification, FilePurpose, TextChunk, chunks, is_generated, is_generated_text, is_secret,
    is_secret_text, is_vendored,
};
use toolgate_contract::{ToolError, ToolErrorKind, lock_mutex};

use crate::search::engines::StoredDocument;
use toolgate_world::Root;
use toolgate_world::root::{DiskWorkMonitor, Etag, FileTime, WorkspaceFile};

/// The maximum size of a file to index, in bytes. Larger files usually contain data.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// The maximum length of a line in a file to index, in bytes.
const LINE_BYTES_MAX: usize = 4 << 10;
/// The number of bytes at the start of a file that are checked for binary data.
const HEAD_BYTES: u64 = 8 << 10;
/// The maximum number of attempts to read a file that changes while it is read.
const ATTEMPTS_MAX: usize = 3;

/// A file whose current version must be read, because the index has an earlier version or none.
#[derive(Debug, Clone)]
pub(super) struct StaleIndexedFile {
    pub(super) path: String,
    /// The etag of the indexed version of the file. `None` if the file is not indexed.
    pub(super) etag: Option<String>,
    pub(super) size: u64,
}

/// Result of reading a file for the index.
#[derive(Debug)]
pub(super) struct IndexFileReadOutcome {
    pub(super) path: String,
    /// Fingerprint of this version of the file. Empty if an equal fingerprint would not prove that
    /// the file is unchanged.
    pub(super) stamp: Vec<u8>,
    pub(super) content: IndexableContent,
}

/// The result of reading the content of a file for the index.
#[derive(Debug)]
pub(super) enum IndexableContent {
    /// Text to be indexed, cut into chunks.
    Text(Box<StoredDocument>),
    /// A file that has not changed since it was indexed.
    Unchanged,
    /// The file exists, but is not indexed, for example because it is binary or too large.
    Unsearched,
    /// The file no longer exists or cannot be read.
    Gone,
}

/// Reads all `files` for the index.
///
/// # Errors
///
/// Fails if the work is canceled.
pub(super) fn read_all(
    root: &Root,
    files: Vec<StaleIndexedFile>,
    watch: &DiskWorkMonitor,
) -> Result<Vec<IndexFileReadOutcome>, ToolError> {
    let is_shared = files.len() > 1;
    let left = Mutex::new(files.into_iter().enumerate());
    let next = || lock_mutex(&left).next();
    let read_some = || -> Result<Vec<(usize, IndexFileReadOutcome)>, ToolError> {
        let mut readings = Vec::new();
        while let Some((at, stale)) = next() {
            readings.push((at, read_file(root, stale, watch, chunks)?));
        }
        Ok(readings)
    };
    // While one thread waits for the process that parses its text, the other reads.
    let (readings, others) = thread::scope(|scope| {
        let other = is_shared.then(|| scope.spawn(read_some));
        let readings = read_some();
        let others = other.map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
        (readings, others.unwrap_or_else(|| Ok(Vec::new())))
    });
    let mut readings = readings?;
    readings.extend(others?);
    readings.sort_by_key(|(at, _)| *at);
    Ok(readings.into_iter().map(|(_, reading)| reading).collect())
}

/// A function that cuts a text into chunks. The arguments are the path and the text of a file.
type ChunkingFunction = fn(&str, &str) -> Vec<TextChunk>;

fn read_file(
    root: &Root,
    stale: StaleIndexedFile,
    watch: &DiskWorkMonitor,
    cut: ChunkingFunction,
) -> Result<IndexFileReadOutcome, ToolError> {
    let StaleIndexedFile { path, etag, .. } = stale;
    let gone =
        |path| IndexFileReadOutcome { path, stamp: Vec::new(), content: IndexableContent::Gone };
    for again in (0..ATTEMPTS_MAX).rev() {
        watch.check_cancelled()?;
        let start = FileTime::now();
        let Ok(file) = root.open_walked(Path::new(&path)) else { return Ok(gone(path)) };
        let stamp = file.meta().stamp();
        let settled = !file.meta().has_changed_since(start);
        let content = match read_text(&path, &file, watch) {
            Ok(content) => content,
            Err(err) if err.fault == ToolErrorKind::Canceled => return Err(err),
            Err(_) => return Ok(gone(path)),
        };
        let is_same = file.current_stamp().is_some_and(|now| now == stamp);
        if !is_same && again > 0 {
            continue;
        }
        let settled = settled && is_same;
        let stamp = if settled { stamp.to_bytes().to_vec() } else { Vec::new() };
        let Some(content) = content else {
            return Ok(IndexFileReadOutcome { path, stamp, content: IndexableContent::Unsearched });
        };
        let now = root.etag_of_content(content.as_bytes(), file.meta());
        if etag.as_deref() == Some(now.as_str()) {
            return Ok(IndexFileReadOutcome { path, stamp, content: IndexableContent::Unchanged });
        }
        // A file that makes the chunker panic must not affect others.
        let document =
            catch_unwind(AssertUnwindSafe(|| make_document(&path, content, &stamp, &now, cut)));
        let content = match document {
            Ok(document) if !document.chunks.is_empty() => {
                IndexableContent::Text(Box::new(document))
            }
            Ok(_) => IndexableContent::Unsearched,
            Err(_) => {
                tracing::error!("`{path}` is not searched: splitting it into passages failed");
                IndexableContent::Unsearched
            }
        };
        return Ok(IndexFileReadOutcome { path, stamp, content });
    }
    Ok(gone(path))
}

/// Returns the text of `file`. Returns `None` if the file must not be indexed, for example because
/// it is binary. Fails if the file cannot be read or the call is canceled.
fn read_text(
    path: &str,
    file: &WorkspaceFile,
    watch: &DiskWorkMonitor,
) -> Result<Option<String>, ToolError> {
    let size = file.meta().size();
    let is_left_out = is_generated(path) || is_vendored(path) || is_secret(path);
    if size > FILE_BYTES_MAX || size == 0 || is_left_out {
        return Ok(None);
    }
    let head = file.read(0, size.min(HEAD_BYTES), watch)?;
    if head.contains(&0) {
        return Ok(None);
    }
    let mut content = head;
    if size > HEAD_BYTES {
        content.extend(file.read(HEAD_BYTES, size - HEAD_BYTES, watch)?);
    }
    let Ok(text) = String::from_utf8(content) else { return Ok(None) };
    // Code shows keys for people to read; other files have keys in use.
    if FileClassification::for_path(path).kind != FilePurpose::Code && is_secret_text(&text) {
        return Ok(None);
    }
    let is_long = text.split('\n').any(|line| line.len() > LINE_BYTES_MAX);
    Ok((!is_long && !is_generated_text(&text)).then_some(text))
}

fn make_document(
    path: &str,
    text: String,
    stamp: &[u8],
    etag: &Etag,
    cut: ChunkingFunction,
) -> StoredDocument {
    let sort = FileClassification::for_path(path);
    StoredDocument {
        chunks: cut(path, &text),
        path: path.to_owned(),
        stamp: stamp.to_vec(),
        etag: etag.to_string(),
        commit: None,
        lang: sort.lang.map(str::to_owned),
        tags: sort.tags().into_iter().map(str::to_owned).collect(),
        text,
        metadata: Map::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::thread::sleep;
    use std::time::Duration;

    use tempfile::TempDir;

    use super::*;

    #[test]
    #[allow(clippy::disallowed_methods, reason = "a test sets up the world itself")]
    fn a_file_on_which_the_chunker_panics_is_left_out_and_others_are_not() {
        let folder = TempDir::new().unwrap();
        let root = Root::open(folder.path()).unwrap();
        let cut = |path: &str, text: &str| {
            assert!(path != "bad.rs", "a fault in a parser");
            chunks(path, text)
        };
        let read = |path: &str| {
            std::fs::write(folder.path().join(path), "fn okapi() {}\n").unwrap();
            // Afterwards its modification time identifies this version.
            sleep(Duration::from_millis(50));
            let stale = StaleIndexedFile { path: path.to_owned(), etag: None, size: 14 };
            read_file(&root, stale, &DiskWorkMonitor::default(), cut).unwrap()
        };
        let bad = read("bad.rs");
        let good = read("good.rs");
        assert!(
            matches!(bad.content, IndexableContent::Unsearched) && !bad.stamp.is_empty(),
            "{bad:?}"
        );
        assert!(matches!(good.content, IndexableContent::Text(_)), "{good:?}");
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "a test sets up the world itself")]
    fn the_stamp_of_a_file_written_in_the_current_clock_tick_is_empty() {
        let folder = TempDir::new().unwrap();
        let root = Root::open(folder.path()).unwrap();
        let stamp = || {
            let stale = StaleIndexedFile { path: "a.rs".to_owned(), etag: None, size: 10 };
            let mut readings = read_all(&root, vec![stale], &DiskWorkMonitor::default()).unwrap();
            let IndexFileReadOutcome { stamp, content, .. } = readings.remove(0);
            assert!(matches!(content, IndexableContent::Text(_)), "{content:?}");
            stamp
        };
        // Sometimes the clock ticks between writing and reading.
        let without_stamp = (0..100).filter(|round| {
            std::fs::write(folder.path().join("a.rs"), format!("fn a{round:03}() {{}}\n")).unwrap();
            stamp().is_empty()
        });
        assert!(without_stamp.count() > 0, "a change in the same tick would be missed");
        sleep(Duration::from_millis(50));
        assert!(!stamp().is_empty(), "the file would be read again and again");
    }
}
