//! Reads prompts from a folder of the workspace and follows its changes.

use std::path::Path;
use std::sync::Arc;

use toolgate_contract::{
    AnyPrompt, BoxFuture, ChangeFeed, KeepActiveGuard, PromptSource, ServerChange, ToolError,
    ToolErrorKind,
};

use super::file_prompt::FileBackedPrompt;
use super::prompt_file::PromptFile;
use crate::front_matter::{FileErrorWithLine, SkippedFile};
use crate::workspace_scan::{FileValueCache, WorkspaceScanState, WorkspaceScanner};
use toolgate_world::Root;
use toolgate_world::root::{DiskWorkMonitor, EntryKind};

/// The maximum number of entries of the folder of prompts that are read.
const ENTRIES_MAX: usize = 500;
/// The maximum size of one prompt file, in bytes.
const FILE_BYTES_MAX: u64 = 256 << 10;

/// Source of the prompts in a folder of the workspace. Each request rereads the files that changed.
pub struct PromptFolder {
    path: String,
    scan: Arc<WorkspaceScanner<PromptFileResult, PromptFiles>>,
}

/// The result of reading one prompt file: a prompt or an error.
pub(super) type PromptFileResult = Result<Arc<PromptFile>, FileErrorWithLine>;
/// Parsed prompt files of a folder.
pub(super) type PromptFiles = Vec<Arc<PromptFile>>;

impl PromptFolder {
    /// Creates the source of the prompts in the folder `path` of the workspace `root`.
    pub fn new(root: &Root, path: &str) -> Self {
        let path = path.trim_end_matches('/').to_owned();
        let folder = path.clone();
        let scan_fn =
            move |root: &Root, memory: &mut _, watch: &_| refresh(root, &folder, memory, watch);
        Self { path, scan: WorkspaceScanner::new(root, scan_fn) }
    }
}

impl PromptSource for PromptFolder {
    fn all(&self) -> BoxFuture<'_, Vec<Arc<dyn AnyPrompt>>> {
        Box::pin(async {
            let now = self.scan.scan_in_background().await;
            let files = now.or_else(|| self.scan.latest()).unwrap_or_default();
            let prompt =
                |file: &Arc<_>| Arc::new(FileBackedPrompt::new(self.scan.root(), file)) as _;
            files.iter().map(prompt).collect()
        })
    }

    fn unusable_reason(&self, name: &str) -> Option<String> {
        let file = file_path(&self.path, name);
        self.scan.left_out_reason(|left_out| left_out.file == file)
    }

    fn watch_list(&self, changes: &ChangeFeed) -> KeepActiveGuard {
        let changes = changes.clone();
        self.scan.subscribe(move |_, _| changes.publish(&ServerChange::Prompts))
    }
}

/// The noun for a prompt file in error messages.
const ITEM_KIND: &str = "a prompt";

/// Returns the path of the prompt `name` in the folder `path`.
fn file_path(path: &str, name: &str) -> String {
    format!("{path}/{name}.md")
}

/// Reads the prompts in the folder `path`, and logs the skipped files. Returns the prompts sorted
/// by name. Fails if the call is canceled.
fn refresh(
    root: &Root,
    path: &str,
    memory: &mut WorkspaceScanState<PromptFileResult>,
    watch: &DiskWorkMonitor,
) -> Result<PromptFiles, ToolError> {
    let mut left_out = Vec::new();
    let prompts = read_folder(root, path, &mut memory.files, &mut left_out, watch)?;
    memory.files.evict_unused();
    memory.log_left_out(left_out);
    Ok(prompts)
}

/// Returns the prompts in the folder `path`, and adds the skipped files to `left_out`. Rereads only
/// files that changed since they were stored in `files`. Fails if the call is canceled.
pub(super) fn read_folder(
    root: &Root,
    path: &str,
    files: &mut FileValueCache<PromptFileResult>,
    left_out: &mut Vec<SkippedFile>,
    watch: &DiskWorkMonitor,
) -> Result<PromptFiles, ToolError> {
    let page = match root.list_page(path, None, ENTRIES_MAX, watch) {
        Ok(page) => page,
        Err(err) if err.fault == ToolErrorKind::Canceled => return Err(err),
        // Most workspaces have no such folder, so this is not reported.
        Err(err) if err.fault == ToolErrorKind::NotFound => return Ok(Vec::new()),
        Err(err) => {
            left_out.push(SkippedFile::whole(ITEM_KIND, path, err.message));
            return Ok(Vec::new());
        }
    };
    if page.remaining > 0 {
        let message = format!("only the first {ENTRIES_MAX} of its entries are read");
        left_out.push(SkippedFile::whole(ITEM_KIND, path, message));
    }
    let mut prompts = Vec::new();
    for (name, meta) in &page.entries {
        let name = name.to_string_lossy();
        let is_file = matches!(meta.kind(), EntryKind::File | EntryKind::Symlink);
        let Some(stem) = name.strip_suffix(".md").filter(|_| is_file) else { continue };
        let file = file_path(path, stem);
        match read_file(root, &file, stem, files, watch) {
            Ok(Ok(prompt)) => prompts.push(prompt),
            Ok(Err(problem)) => left_out.push(problem.into_skipped(ITEM_KIND, &file)),
            Err(err) if err.fault == ToolErrorKind::Canceled => return Err(err),
            Err(err) => left_out.push(SkippedFile::whole(ITEM_KIND, &file, err.message)),
        }
    }
    prompts.sort_by(|a, b| a.spec.name.cmp(&b.spec.name));
    Ok(prompts)
}

/// Reads the prompt `name` from the file `path`. Returns an inner error if the file is no valid
/// prompt.
fn read_file(
    root: &Root,
    path: &str,
    name: &str,
    files: &mut FileValueCache<PromptFileResult>,
    watch: &DiskWorkMonitor,
) -> Result<PromptFileResult, ToolError> {
    let file = root.open_file(path)?;
    files.get_or_make(Path::new(path), &file, || {
        let size = file.meta().size();
        if size > FILE_BYTES_MAX {
            let message =
                format!("the file has {size} bytes; a prompt can have at most {FILE_BYTES_MAX}");
            return Ok(Err(FileErrorWithLine::whole(message)));
        }
        Ok(match String::from_utf8(file.read(0, size, watch)?) {
            Ok(text) => PromptFile::parse(name, &text).map(Arc::new),
            Err(_) => Err(FileErrorWithLine::whole("it is not UTF-8")),
        })
    })
}
