//! Workspace files as resources: lists, reads, completes and watches them by `file:` URI.

mod uri;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use toolgate_contract::{
    BoxFuture, Changes, Completing, CompletingOf, Contents, Ctx, Fault, Hold, Meant, ResourceSpec,
    ResourceTemplate, Resources, Tool, ToolError, ToolId, ToolSpec,
};

use super::{Read, Settings};
use crate::media;
use crate::places::in_uri;
use crate::world::root::{File, Folder, Kind, Meta, Sight, Start, Walk, Watch, shown};
use crate::world::{Root, Watcher};
use uri::Uris;
#[cfg(any(fuzzing, test))]
pub(crate) use uri::check as fuzz_uris;

/// Media type of a folder.
const FOLDER: &str = "inode/directory";
/// Largest file that is read on the async thread, in bytes. Larger files go to a blocking thread.
const INLINE_BYTES_MAX: u64 = 64 << 10;
/// Most entries examined to complete a path.
const COMPLETED_FROM_MAX: usize = 50_000;
/// Visibility of listed files: hidden ones are listed, ignored ones are not.
const SIGHT: Sight = Sight { ignored: false, hidden: true };

/// Resource source for the files beneath one root.
pub struct Files {
    root: Root,
    guard: ToolSpec,
    uris: Arc<Uris>,
    read_bytes_max: u64,
    watcher: Watcher,
    /// Set if small files may be read on the async thread, because the disk is local.
    is_local: bool,
}

impl Files {
    /// Creates the source for files beneath `root`. A caller may read them if it may call
    /// `files.read`.
    pub fn new(root: &Root, settings: &Settings) -> Self {
        Self {
            root: root.clone(),
            guard: reading(),
            uris: Arc::new(Uris::beneath(root.path())),
            read_bytes_max: settings.answer_bytes_max,
            watcher: Watcher::new(root),
            is_local: root.is_local(),
        }
    }

    async fn content(&self, ctx: &Ctx, uri: &str) -> Result<Vec<Contents>, ToolError> {
        let path = self.uris.path(uri)?;
        let max = self.read_bytes_max;
        let bytes = if self.is_local {
            let file = self.root.open_file(&rooted(&path)).map_err(no_resource)?;
            if file.meta().size() <= INLINE_BYTES_MAX {
                whole(&file, &path, max, &Watch::default())?
            } else {
                let path = path.clone();
                self.root.work(ctx, move |_, watch| whole(&file, &path, max, watch)).await?
            }
        } else {
            let path = path.clone();
            let read = move |root: &Root, watch: &Watch| {
                let file = root.open_file(&rooted(&path)).map_err(no_resource)?;
                whole(&file, &path, max, watch)
            };
            self.root.work(ctx, read).await?
        };
        Ok(vec![media::contents(uri, name(&path), bytes)])
    }

    async fn page(
        &self,
        ctx: &Ctx,
        after: Option<&str>,
        at_most: usize,
    ) -> Result<Vec<ResourceSpec>, ToolError> {
        let after = after.map(|uri| self.uris.path(uri)).transpose()?.map(PathBuf::from);
        let uris = self.uris.clone();
        let list = move |root: &Root, watch: &Watch| {
            let top = top(root)?;
            let mut listed = Vec::new();
            let mut walk = Walk::new(root, top, SIGHT, after.clone(), watch)?;
            while listed.len() < at_most
                && let Some(found) = walk.next()?
            {
                let is_next = found.kind == Kind::File && Some(&found.path) != after.as_ref();
                // A path that is not UTF-8 has no URI. A file that vanished is skipped.
                if is_next
                    && let Some(path) = found.path.to_str()
                    && let Ok(look) = root.look(&rooted(path))
                {
                    listed.push(spec(&uris, path, &look.meta));
                }
            }
            Ok(listed)
        };
        self.root.work(ctx, list).await
    }

    async fn children(
        &self,
        ctx: &Ctx,
        uri: &str,
        after: Option<&str>,
        at_most: usize,
    ) -> Result<Vec<ResourceSpec>, ToolError> {
        let folder = self.uris.path(uri)?;
        let after = after.map(|uri| self.uris.path(uri)).transpose()?;
        let mut after = after.map(|path| OsString::from(name(&path)));
        let uris = self.uris.clone();
        let list = move |root: &Root, watch: &Watch| {
            let mut listed = Vec::new();
            loop {
                let room = at_most - listed.len();
                let page = root.page(&rooted(&folder), after.as_deref(), room, watch);
                let page = page.map_err(no_resource)?;
                let children =
                    page.entries.iter().filter_map(|(name, meta)| child(root, &folder, name, meta));
                listed.extend(children.map(|(path, meta)| spec(&uris, &path, &meta)));
                after = page.entries.last().map(|(name, _)| name.clone());
                if page.left == 0 || listed.len() >= at_most {
                    return Ok(listed);
                }
            }
        };
        self.root.work(ctx, list).await
    }

    async fn paths(&self, ctx: &Ctx, asked: &Completing) -> Result<Vec<String>, ToolError> {
        let is_ours = asked.of == CompletingOf::Template(self.uris.template());
        if !is_ours || asked.argument != "path" {
            return Ok(Vec::new());
        }
        // Suggested values are percent-encoded, so the typed text may be encoded, too.
        let typed = percent_decode_str(&asked.so_far).decode_utf8_lossy().into_owned();
        let complete = move |root: &Root, watch: &Watch| {
            let mut paths = beside(root, &typed, watch);
            let mut walk = Walk::new(root, top(root)?, SIGHT, None, watch)?;
            for _ in 0..COMPLETED_FROM_MAX {
                let Some(found) = walk.next()? else { break };
                if has_letters(&found.path, &typed) {
                    paths.extend(value(&found.path, found.kind));
                }
            }
            Ok(paths.into_iter().collect())
        };
        self.root.work(ctx, complete).await
    }

    async fn watched(&self, ctx: &Ctx, uri: &str, changes: &Changes) -> Result<Hold, ToolError> {
        let path = rooted(&self.uris.path(uri)?);
        let look = {
            let path = path.clone();
            move |root: &Root, _: &Watch| root.open_file(&path).map(drop).map_err(no_resource)
        };
        match self.root.work(ctx, look).await {
            // A file that does not exist yet can be watched until it is created.
            Err(err) if err.fault == Fault::NotFound && !is_there(&self.root, &path) => {}
            looked => looked?,
        }
        self.watcher.file(&path, uri, changes).await
    }
}

impl Resources for Files {
    fn guard(&self) -> &ToolSpec {
        &self.guard
    }

    fn owns(&self, uri: &str) -> bool {
        Uris::owns(uri)
    }

    fn asked(&self, uri: &str) -> Value {
        match self.uris.path(uri) {
            Ok(path) => json!({ "uri": uri, "path": path }),
            // An invalid URI is refused when it is read.
            Err(_) => json!({ "uri": uri }),
        }
    }

    fn list<'a>(
        &'a self,
        ctx: &'a Ctx,
        after: Option<&'a str>,
        at_most: usize,
    ) -> BoxFuture<'a, Result<Vec<ResourceSpec>, ToolError>> {
        Box::pin(self.page(ctx, after, at_most))
    }

    fn templates(&self) -> Vec<ResourceTemplate> {
        vec![ResourceTemplate {
            uri: self.uris.template(),
            name: "file".to_owned(),
            title: Some("File in the workspace".to_owned()),
            about: Some(
                "Any file in the workspace by its path, relative to the workspace's root and \
                 percent-encoded; also one that the list leaves out because it is ignored."
                    .to_owned(),
            ),
            media_type: None,
            ..ResourceTemplate::default()
        }]
    }

    fn read<'a>(
        &'a self,
        ctx: &'a Ctx,
        uri: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Contents>, ToolError>> {
        Box::pin(self.content(ctx, uri))
    }

    fn complete<'a>(
        &'a self,
        ctx: &'a Ctx,
        asked: &'a Completing,
    ) -> BoxFuture<'a, Result<Vec<String>, ToolError>> {
        Box::pin(self.paths(ctx, asked))
    }

    fn watch<'a>(
        &'a self,
        ctx: &'a Ctx,
        uri: &'a str,
        changes: &'a Changes,
    ) -> BoxFuture<'a, Result<Hold, ToolError>> {
        Box::pin(self.watched(ctx, uri, changes))
    }

    fn watch_list(&self, changes: &Changes) -> Hold {
        self.watcher.list(changes)
    }

    fn folder<'a>(
        &'a self,
        ctx: &'a Ctx,
        uri: &'a str,
        after: Option<&'a str>,
        at_most: usize,
    ) -> BoxFuture<'a, Result<Vec<ResourceSpec>, ToolError>> {
        Box::pin(self.children(ctx, uri, after, at_most))
    }
}

/// Returns the spec of `files.read`, the tool whose permission also covers resources.
pub(crate) fn reading() -> ToolSpec {
    let id = ToolId::new(Read::NAME).expect("a tool's name is an id");
    let spec = ToolSpec::new(id, Read::TITLE, Read::ABOUT, Read::EFFECTS);
    let paths = Read::PATHS.iter().copied().map(str::to_owned).collect();
    ToolSpec { idempotent: Read::IDEMPOTENT, paths, ..spec }
}

/// Reads all of `file`. Fails if it is larger than `max` bytes.
fn whole(file: &File, path: &str, max: u64, watch: &Watch) -> Result<Vec<u8>, ToolError> {
    let size = file.meta().size();
    if size > max {
        let path = shown(path);
        return Err(ToolError::new(
            Fault::TooLarge,
            format!(
                "{path} has {size} bytes; a resource of at most {max} is read whole. Read it in \
                 parts with files_read, by `offset` and `length` or by lines"
            ),
        ));
    }
    file.read(0, size, watch)
}

/// Returns the workspace root as a folder to walk.
fn top(root: &Root) -> Result<Folder, ToolError> {
    match root.start(".")? {
        Start::Folder(folder) => Ok(folder),
        Start::File(_) => Err(ToolError::failed("the workspace is no directory any more")),
    }
}

/// Builds the resource listing for the entry at `path`.
fn spec(uris: &Uris, path: &str, meta: &Meta) -> ResourceSpec {
    let modified = Meant { modified: Some(meta.mtime()), ..Meant::default() };
    let is_folder = meta.kind() == Kind::Dir;
    ResourceSpec {
        title: path.contains('/').then(|| path.to_owned()),
        media_type: if is_folder { Some(FOLDER.to_owned()) } else { media::by_name(name(path)) },
        bytes: (!is_folder).then(|| meta.size()),
        meant: modified,
        ..ResourceSpec::new(uris.of(path), name(path))
    }
}

/// Returns the entry `name` of `folder` if it is a file or folder, or a symlink to one in the
/// workspace.
fn child(root: &Root, folder: &str, name: &OsStr, meta: &Meta) -> Option<(String, Meta)> {
    let name = name.to_str()?;
    let path = if folder == "." { name.to_owned() } else { format!("{folder}/{name}") };
    match meta.kind() {
        Kind::File | Kind::Dir => Some((path, *meta)),
        Kind::Other => None,
        Kind::Symlink => {
            let meta = match root.open_file(&rooted(&path)) {
                Ok(file) => *file.meta(),
                Err(_) => rustix::fs::fstat(root.open_dir(&rooted(&path)).ok()?).ok()?.into(),
            };
            Some((path, meta))
        }
    }
}

/// Returns completions from the typed folder whose names begin with the typed part, ignored entries
/// included.
fn beside(root: &Root, typed: &str, watch: &Watch) -> BTreeSet<String> {
    let (folder, begun) = typed.rsplit_once('/').unwrap_or((".", typed));
    let Ok(Start::Folder(mut folder)) = root.start(&rooted(folder)) else {
        return BTreeSet::new();
    };
    let everything = Sight { ignored: true, hidden: true };
    let entries = folder.look(root, everything, watch).unwrap_or_default();
    let begun = begun.to_lowercase();
    let begin = entries.into_iter().filter(|(name, _)| {
        name.to_str().is_some_and(|name| name.to_lowercase().starts_with(&begun))
    });
    let paths = begin.filter_map(|(name, kind)| value(&folder.path.join(name), kind));
    paths.take(COMPLETED_FROM_MAX).collect()
}

/// Returns the template's variable for the entry at `path`.
fn value(path: &Path, kind: Kind) -> Option<String> {
    let path = in_uri(path.to_str()?);
    match kind {
        Kind::File | Kind::Symlink => Some(path),
        Kind::Dir => Some(path + "/"),
        Kind::Other => None,
    }
}

/// Returns true if `path` contains the letters of `typed`, in their order and in any case.
fn has_letters(path: &Path, typed: &str) -> bool {
    let Some(path) = path.to_str() else { return false };
    let mut letters = path.chars().flat_map(char::to_lowercase);
    typed.chars().flat_map(char::to_lowercase).all(|wanted| letters.any(|letter| letter == wanted))
}

/// Returns `path` in a form that stays a path even if it consists of spaces alone.
fn rooted(path: &str) -> String {
    if path.trim().is_empty() { format!("./{path}") } else { path.to_owned() }
}

/// Returns the last name of `path`; `.` for the workspace root.
fn name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn is_there(root: &Root, path: &str) -> bool {
    root.look(path).is_ok()
}

/// Turns an invalid path into "not found", because a URI with such a path names no resource.
fn no_resource(err: ToolError) -> ToolError {
    if matches!(err.fault, Fault::Invalid { .. }) {
        ToolError { fault: Fault::NotFound, ..err }
    } else {
        err
    }
}
