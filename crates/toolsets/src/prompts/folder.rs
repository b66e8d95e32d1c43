//! Reads prompts from a folder of the workspace and follows its changes.

use std::path::Path;
use std::sync::Arc;

use toolgate_contract::{AnyPrompt, BoxFuture, Change, Changes, Fault, Hold, Prompts, ToolError};

use super::sheet::Sheet;
use super::written::Written;
use crate::front_matter::{LeftOut, Wrong};
use crate::looked::{Looked, Memory, Remembered};
use crate::world::Root;
use crate::world::root::{Kind, Watch};

/// The most entries of the folder that are read.
const ENTRIES_MAX: usize = 500;
/// The most bytes of one prompt file.
const FILE_BYTES_MAX: u64 = 256 << 10;

/// Source of the prompts in a folder. Each request rereads the files that changed.
pub struct Folder {
    path: String,
    looked: Arc<Looked<Read, Sheets>>,
}

/// The result of reading one file: a prompt or an error.
pub(super) type Read = Result<Arc<Sheet>, Wrong>;
pub(super) type Sheets = Vec<Arc<Sheet>>;

impl Folder {
    /// Creates the source of the prompts in the folder `path` of the workspace `root`.
    pub fn new(root: &Root, path: &str) -> Self {
        let path = path.trim_end_matches('/').to_owned();
        let folder = path.clone();
        let look = move |root: &Root, memory: &mut _, watch: &_| look(root, &folder, memory, watch);
        Self { path, looked: Looked::new(root, look) }
    }
}

impl Prompts for Folder {
    fn all(&self) -> BoxFuture<'_, Vec<Arc<dyn AnyPrompt>>> {
        Box::pin(async {
            let now = self.looked.now_alone().await;
            let sheets = now.or_else(|| self.looked.last()).unwrap_or_default();
            let written = |sheet: &Arc<_>| Arc::new(Written::new(self.looked.root(), sheet)) as _;
            sheets.iter().map(written).collect()
        })
    }

    fn trouble(&self, name: &str) -> Option<String> {
        let file = file(&self.path, name);
        self.looked.trouble(|left_out| left_out.file == file)
    }

    fn watch_list(&self, changes: &Changes) -> Hold {
        let changes = changes.clone();
        self.looked.keep_looking(move |_, _| changes.tell(&Change::Prompts))
    }
}

/// The kind of file, for error messages.
const WHAT: &str = "a prompt";

/// Returns the path of the prompt `name` in the folder `path`.
fn file(path: &str, name: &str) -> String {
    format!("{path}/{name}.md")
}

/// Returns the prompts in the folder `path`, sorted by name, and logs the skipped files.
fn look(
    root: &Root,
    path: &str,
    memory: &mut Memory<Read>,
    watch: &Watch,
) -> Result<Sheets, ToolError> {
    let mut left_out = Vec::new();
    let sheets = read(root, path, &mut memory.files, &mut left_out, watch)?;
    memory.files.forget_the_rest();
    memory.tell(left_out);
    Ok(sheets)
}

/// Reads the prompts in the folder `path`, and adds the skipped files to `left_out`.
pub(super) fn read(
    root: &Root,
    path: &str,
    files: &mut Remembered<Read>,
    left_out: &mut Vec<LeftOut>,
    watch: &Watch,
) -> Result<Sheets, ToolError> {
    let page = match root.page(path, None, ENTRIES_MAX, watch) {
        Ok(page) => page,
        Err(err) if err.fault == Fault::Canceled => return Err(err),
        // Most workspaces have no such folder, so this is not reported.
        Err(err) if err.fault == Fault::NotFound => return Ok(Vec::new()),
        Err(err) => {
            left_out.push(LeftOut::whole(WHAT, path, err.message));
            return Ok(Vec::new());
        }
    };
    if page.left > 0 {
        let message = format!("only the first {ENTRIES_MAX} of its entries are read");
        left_out.push(LeftOut::whole(WHAT, path, message));
    }
    let mut sheets = Vec::new();
    for (name, meta) in &page.entries {
        let name = name.to_string_lossy();
        let is_file = matches!(meta.kind(), Kind::File | Kind::Symlink);
        let Some(stem) = name.strip_suffix(".md").filter(|_| is_file) else { continue };
        let file = file(path, stem);
        match sheet(root, &file, stem, files, watch) {
            Ok(Ok(sheet)) => sheets.push(sheet),
            Ok(Err(wrong)) => left_out.push(wrong.of(WHAT, &file)),
            Err(err) if err.fault == Fault::Canceled => return Err(err),
            Err(err) => left_out.push(LeftOut::whole(WHAT, &file, err.message)),
        }
    }
    sheets.sort_by(|a, b| a.spec.name.cmp(&b.spec.name));
    Ok(sheets)
}

/// Reads the prompt `name` from the file `path`. Returns its error if it is invalid.
fn sheet(
    root: &Root,
    path: &str,
    name: &str,
    files: &mut Remembered<Read>,
    watch: &Watch,
) -> Result<Read, ToolError> {
    let file = root.open_file(path)?;
    files.of(Path::new(path), &file, || {
        let size = file.meta().size();
        if size > FILE_BYTES_MAX {
            let message = format!("it has {size} bytes; a prompt has at most {FILE_BYTES_MAX}");
            return Ok(Err(Wrong::whole(message)));
        }
        Ok(match String::from_utf8(file.read(0, size, watch)?) {
            Ok(text) => Sheet::read(name, &text).map(Arc::new),
            Err(_) => Err(Wrong::whole("it is not UTF-8")),
        })
    })
}
