//! Workspace files as MCP resources: lists, reads, completes and watches files by `file:` URI.

mod uri;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use toolgate_contract::{
    ChangeFeed, CompletionRequest, CompletionTarget, ContentAnnotations, KeepActiveGuard,
    ResourceContents, ResourceSource, ResourceSpec, ResourceTemplate, Tool, ToolContext, ToolError,
    ToolErrorKind, ToolFuture, ToolId, ToolSpec,
};

use super::{FileSettings, ReadFile};
use crate::media;
use crate::uri_paths::percent_encode_path;
use toolgate_world::root::{
    DiskWorkMonitor, EntryKind, EntryMeta, TreeWalk, WalkFilter, WalkFolder, WalkStartPoint,
    WorkspaceFile, quoted_path,
};
use toolgate_world::{FileWatcher, Root};
use uri::FileUriConverter;
#[cfg(any(fuzzing, test))]
pub(crate) use uri::check_uri as fuzz_uris;

/// The media type of a folder in resource lists.
const FOLDER_MEDIA_TYPE: &str = "inode/directory";
/// The maximum size of a file that is read on the async thread, in bytes. Larger files are read on
/// a blocking thread.
const INLINE_BYTES_MAX: u64 = 64 << 10;
/// The maximum number of entries that are examined to complete a path that a user types.
const EXAMINED_ENTRIES_MAX: usize = 50_000;
/// The filter of the files in resource lists. Hidden files are listed, ignored files are not.
const LISTED_SIGHT: WalkFilter = WalkFilter { include_ignored: false, include_hidden: true };

/// The source of the resources for files below the workspace root.
pub struct FileResourceSource {
    root: Root,
    guard: ToolSpec,
    uris: Arc<FileUriConverter>,
    read_bytes_max: u64,
    watcher: FileWatcher,
    /// True if the workspace is on a local disk, so that small files may be read on the async
    /// thread.
    is_local: bool,
}

impl FileResourceSource {
    /// Creates the resource source for files below `root`. A caller may read these files if its
    /// permissions allow the tool `files.read`.
    pub fn new(root: &Root, settings: &FileSettings) -> Self {
        Self {
            root: root.clone(),
            guard: read_file_spec(),
            uris: Arc::new(FileUriConverter::for_root(root.path())),
            read_bytes_max: settings.limits.answer_bytes_max,
            watcher: FileWatcher::new(root),
            is_local: root.is_local(),
        }
    }

    async fn read_content(
        &self,
        ctx: &ToolContext,
        uri: &str,
    ) -> Result<Vec<ResourceContents>, ToolError> {
        let path = self.uris.parse_path(uri)?;
        let max = self.read_bytes_max;
        let bytes = if self.is_local {
            let file = self.root.open_file(&explicit_path(&path)).map_err(invalid_to_not_found)?;
            if file.meta().size() <= INLINE_BYTES_MAX {
                read_whole(&file, &path, max, &DiskWorkMonitor::default())?
            } else {
                let path = path.clone();
                self.root
                    .run_blocking(ctx, move |_, watch| read_whole(&file, &path, max, watch))
                    .await?
            }
        } else {
            let path = path.clone();
            let read = move |root: &Root, watch: &DiskWorkMonitor| {
                let file = root.open_file(&explicit_path(&path)).map_err(invalid_to_not_found)?;
                read_whole(&file, &path, max, watch)
            };
            self.root.run_blocking(ctx, read).await?
        };
        Ok(vec![media::contents(uri, last_name(&path), bytes)])
    }

    async fn list_page(
        &self,
        ctx: &ToolContext,
        after: Option<&str>,
        at_most: usize,
    ) -> Result<Vec<ResourceSpec>, ToolError> {
        let after = after.map(|uri| self.uris.parse_path(uri)).transpose()?.map(PathBuf::from);
        let uris = self.uris.clone();
        let list = move |root: &Root, watch: &DiskWorkMonitor| {
            let top = workspace_folder(root)?;
            let mut listed = Vec::new();
            let mut walk = TreeWalk::new(root, top, LISTED_SIGHT, after.clone(), watch)?;
            while listed.len() < at_most
                && let Some(found) = walk.next_entry()?
            {
                let is_next = found.kind == EntryKind::File && Some(&found.path) != after.as_ref();
                // A path that is not UTF-8 has no URI. A file that vanished is skipped.
                if is_next
                    && let Some(path) = found.path.to_str()
                    && let Ok(look) = root.entry_details(&explicit_path(path))
                {
                    listed.push(resource_spec(&uris, path, &look.meta));
                }
            }
            Ok(listed)
        };
        self.root.run_blocking(ctx, list).await
    }

    async fn list_children(
        &self,
        ctx: &ToolContext,
        uri: &str,
        after: Option<&str>,
        at_most: usize,
    ) -> Result<Vec<ResourceSpec>, ToolError> {
        let folder = self.uris.parse_path(uri)?;
        let after = after.map(|uri| self.uris.parse_path(uri)).transpose()?;
        let mut after = after.map(|path| OsString::from(last_name(&path)));
        let uris = self.uris.clone();
        let list = move |root: &Root, watch: &DiskWorkMonitor| {
            let mut listed = Vec::new();
            loop {
                let room = at_most - listed.len();
                let page = root.list_page(&explicit_path(&folder), after.as_deref(), room, watch);
                let page = page.map_err(invalid_to_not_found)?;
                let children = page
                    .entries
                    .iter()
                    .filter_map(|(name, meta)| child_entry(root, &folder, name, meta));
                listed.extend(children.map(|(path, meta)| resource_spec(&uris, &path, &meta)));
                after = page.entries.last().map(|(name, _)| name.clone());
                if page.remaining == 0 || listed.len() >= at_most {
                    return Ok(listed);
                }
            }
        };
        self.root.run_blocking(ctx, list).await
    }

    async fn complete_path(
        &self,
        ctx: &ToolContext,
        request: &CompletionRequest,
    ) -> Result<Vec<String>, ToolError> {
        let is_ours = request.target == CompletionTarget::Template(self.uris.template());
        if !is_ours || request.argument != "path" {
            return Ok(Vec::new());
        }
        // Suggested values are percent-encoded, so the typed text may be encoded, too.
        let typed = percent_decode_str(&request.prefix).decode_utf8_lossy().into_owned();
        let complete = move |root: &Root, watch: &DiskWorkMonitor| {
            let mut paths = complete_in_folder(root, &typed, watch);
            let mut walk = TreeWalk::new(root, workspace_folder(root)?, LISTED_SIGHT, None, watch)?;
            for _ in 0..EXAMINED_ENTRIES_MAX {
                let Some(found) = walk.next_entry()? else { break };
                if contains_letters(&found.path, &typed) {
                    paths.extend(template_value(&found.path, found.kind));
                }
            }
            Ok(paths.into_iter().collect())
        };
        self.root.run_blocking(ctx, complete).await
    }

    async fn start_watching(
        &self,
        ctx: &ToolContext,
        uri: &str,
        changes: &ChangeFeed,
    ) -> Result<KeepActiveGuard, ToolError> {
        let path = explicit_path(&self.uris.parse_path(uri)?);
        let look = {
            let path = path.clone();
            move |root: &Root, _: &DiskWorkMonitor| {
                root.open_file(&path).map(drop).map_err(invalid_to_not_found)
            }
        };
        match self.root.run_blocking(ctx, look).await {
            // A file that does not exist yet can be watched until it is created.
            Err(err) if err.fault == ToolErrorKind::NotFound && !is_there(&self.root, &path) => {}
            looked => looked?,
        }
        self.watcher.watch_file(&path, uri, changes).await
    }
}

impl ResourceSource for FileResourceSource {
    fn guard(&self) -> &ToolSpec {
        &self.guard
    }

    fn owns(&self, uri: &str) -> bool {
        FileUriConverter::is_file_uri(uri)
    }

    fn policy_input(&self, uri: &str) -> Value {
        match self.uris.parse_path(uri) {
            Ok(path) => json!({ "uri": uri, "path": path }),
            // An invalid URI is refused when it is read.
            Err(_) => json!({ "uri": uri }),
        }
    }

    fn list<'a>(
        &'a self,
        ctx: &'a ToolContext,
        after: Option<&'a str>,
        at_most: usize,
    ) -> ToolFuture<'a, Vec<ResourceSpec>> {
        Box::pin(self.list_page(ctx, after, at_most))
    }

    fn templates(&self) -> Vec<ResourceTemplate> {
        vec![ResourceTemplate {
            uri: self.uris.template(),
            name: "file".to_owned(),
            title: Some("File in the workspace".to_owned()),
            description: Some(
                "Any file in the workspace by its percent-encoded path, relative to the workspace \
                 root. Includes ignored files, which the list omits."
                    .to_owned(),
            ),
            media_type: None,
            ..ResourceTemplate::default()
        }]
    }

    fn read<'a>(
        &'a self,
        ctx: &'a ToolContext,
        uri: &'a str,
    ) -> ToolFuture<'a, Vec<ResourceContents>> {
        Box::pin(self.read_content(ctx, uri))
    }

    fn complete<'a>(
        &'a self,
        ctx: &'a ToolContext,
        request: &'a CompletionRequest,
    ) -> ToolFuture<'a, Vec<String>> {
        Box::pin(self.complete_path(ctx, request))
    }

    fn watch<'a>(
        &'a self,
        ctx: &'a ToolContext,
        uri: &'a str,
        changes: &'a ChangeFeed,
    ) -> ToolFuture<'a, KeepActiveGuard> {
        Box::pin(self.start_watching(ctx, uri, changes))
    }

    fn watch_list(&self, changes: &ChangeFeed) -> KeepActiveGuard {
        self.watcher.watch_list(changes)
    }

    fn list_folder<'a>(
        &'a self,
        ctx: &'a ToolContext,
        uri: &'a str,
        after: Option<&'a str>,
        at_most: usize,
    ) -> ToolFuture<'a, Vec<ResourceSpec>> {
        Box::pin(self.list_children(ctx, uri, after, at_most))
    }
}

/// Returns the specification of the tool `files.read`, whose permissions also apply to file
/// resources.
pub(crate) fn read_file_spec() -> ToolSpec {
    let id = ToolId::new(ReadFile::NAME).expect("a tool's name is a valid id");
    let spec = ToolSpec::new(id, ReadFile::TITLE, ReadFile::DESCRIPTION, ReadFile::EFFECTS);
    let paths = ReadFile::PATHS.iter().copied().map(str::to_owned).collect();
    ToolSpec { idempotent: ReadFile::IDEMPOTENT, paths, ..spec }
}

/// Reads the complete content of `file`. Fails if it is larger than `max` bytes.
fn read_whole(
    file: &WorkspaceFile,
    path: &str,
    max: u64,
    watch: &DiskWorkMonitor,
) -> Result<Vec<u8>, ToolError> {
    let size = file.meta().size();
    if size > max {
        let path = quoted_path(path);
        return Err(ToolError::new(
            ToolErrorKind::TooLarge,
            format!(
                "{path} has {size} bytes, and a resource can have at most {max}; read it in parts \
                 with files_read, by `offset` and `length` or by lines"
            ),
        ));
    }
    file.read(0, size, watch)
}

/// Returns the workspace root as a folder to walk.
fn workspace_folder(root: &Root) -> Result<WalkFolder, ToolError> {
    match root.walk_start(".")? {
        WalkStartPoint::Folder(folder) => Ok(folder),
        WalkStartPoint::File(_) => Err(ToolError::failed("the workspace is no longer a directory")),
    }
}

/// Returns the entry for the file or folder at `path` in a resource list.
fn resource_spec(uris: &FileUriConverter, path: &str, meta: &EntryMeta) -> ResourceSpec {
    let modified =
        ContentAnnotations { modified: Some(meta.mtime()), ..ContentAnnotations::default() };
    let is_folder = meta.kind() == EntryKind::Dir;
    ResourceSpec {
        title: path.contains('/').then(|| path.to_owned()),
        media_type: if is_folder {
            Some(FOLDER_MEDIA_TYPE.to_owned())
        } else {
            media::media_type_by_name(last_name(path))
        },
        bytes: (!is_folder).then(|| meta.size()),
        meant: modified,
        ..ResourceSpec::new(uris.uri_for(path), last_name(path))
    }
}

/// Returns the path and metadata of the entry `name` in `folder`, if it is a file or folder, or a
/// symlink to a file or folder in the workspace.
fn child_entry(
    root: &Root,
    folder: &str,
    name: &OsStr,
    meta: &EntryMeta,
) -> Option<(String, EntryMeta)> {
    let name = name.to_str()?;
    let path = if folder == "." { name.to_owned() } else { format!("{folder}/{name}") };
    match meta.kind() {
        EntryKind::File | EntryKind::Dir => Some((path, *meta)),
        EntryKind::Other => None,
        EntryKind::Symlink => {
            let meta = match root.open_file(&explicit_path(&path)) {
                Ok(file) => *file.meta(),
                Err(_) => {
                    rustix::fs::fstat(root.open_dir(&explicit_path(&path)).ok()?).ok()?.into()
                }
            };
            Some((path, meta))
        }
    }
}

/// Returns the paths in the folder of `typed`, an incomplete path, whose last name begins with the
/// last name of `typed`. Includes entries that git ignores.
fn complete_in_folder(root: &Root, typed: &str, watch: &DiskWorkMonitor) -> BTreeSet<String> {
    let (folder, prefix) = typed.rsplit_once('/').unwrap_or((".", typed));
    let Ok(WalkStartPoint::Folder(mut folder)) = root.walk_start(&explicit_path(folder)) else {
        return BTreeSet::new();
    };
    let everything = WalkFilter { include_ignored: true, include_hidden: true };
    let entries = folder.list(root, everything, watch).unwrap_or_default();
    let prefix = prefix.to_lowercase();
    let matching = entries.into_iter().filter(|(name, _)| {
        name.to_str().is_some_and(|name| name.to_lowercase().starts_with(&prefix))
    });
    let paths = matching.filter_map(|(name, kind)| template_value(&folder.path.join(name), kind));
    paths.take(EXAMINED_ENTRIES_MAX).collect()
}

/// Returns the value of the URI template's variable for the entry at `path`, with a trailing `/`
/// for a folder. Returns `None` if the path is not UTF-8.
fn template_value(path: &Path, kind: EntryKind) -> Option<String> {
    let path = percent_encode_path(path.to_str()?);
    match kind {
        EntryKind::File | EntryKind::Symlink => Some(path),
        EntryKind::Dir => Some(path + "/"),
        EntryKind::Other => None,
    }
}

/// Returns true if `path` contains all characters of `typed` in this order, ignoring case.
fn contains_letters(path: &Path, typed: &str) -> bool {
    let Some(path) = path.to_str() else { return false };
    let mut letters = path.chars().flat_map(char::to_lowercase);
    typed.chars().flat_map(char::to_lowercase).all(|wanted| letters.any(|letter| letter == wanted))
}

/// Returns `path`, with `./` in front if it is blank, because the workspace root refuses blank
/// paths.
fn explicit_path(path: &str) -> String {
    if path.trim().is_empty() { format!("./{path}") } else { path.to_owned() }
}

/// Returns the last component of `path`, or `.` for the workspace root.
fn last_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn is_there(root: &Root, path: &str) -> bool {
    root.entry_details(path).is_ok()
}

/// Converts the error for an invalid path to "not found", because a URI with an invalid path names
/// no resource.
fn invalid_to_not_found(err: ToolError) -> ToolError {
    if matches!(err.fault, ToolErrorKind::Invalid { .. }) {
        ToolError { fault: ToolErrorKind::NotFound, ..err }
    } else {
        err
    }
}
