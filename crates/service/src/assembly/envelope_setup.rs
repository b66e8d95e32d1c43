//! Creates envelopes for requests, and loads the schemas that validate them.
#![allow(
    clippy::disallowed_methods,
    reason = "the user's own files, read before anything is served"
)]

use std::fs;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use toolgate_contract::{ToolErrorKind, exact_json, strip_byte_order_mark_bytes};
use toolgate_dialects::envelope::catalog_name;
use toolgate_host::{
    EnvelopeBuilder, EnvelopeLog, EnvelopeSettings, SchemaFile, SchemaFiles, SchemaRegistry,
    SharedSchemaId, ToolSchemaDirection,
};
use toolgate_world::Root;

use crate::config::{self, Config, trust};

/// Largest schema file that is read, in bytes.
const SCHEMA_BYTES_MAX: u64 = 1 << 20;
/// Maximum number of schema files that are listed in one folder.
const FILES_MAX: usize = 10_000;
/// Maximum total size of the schemas in one folder, in bytes.
const FOLDER_BYTES_MAX: u64 = 16 << 20;

/// Creates the builder of envelopes for `config`. The builder validates each envelope against
/// `schemas`. Fails if the envelope log cannot be opened.
pub(crate) fn new_envelopes(
    config: &config::EnvelopeSection,
    schemas: Arc<SchemaRegistry>,
) -> anyhow::Result<EnvelopeBuilder> {
    let deterministic = config.deterministic_ids;
    let log = log_folder(config)?.map(|folder| {
        EnvelopeLog::open(&folder, deterministic)
            .with_context(|| format!("cannot write the envelope log in {}", folder.display()))
    });
    let settings = EnvelopeSettings { validation: config.validation, deterministic };
    Ok(EnvelopeBuilder::new(settings, schemas, log.transpose()?))
}

/// Returns the folder of the envelope log, or `None` if envelopes are not logged. Creates the
/// folder if it is missing, and fails if that is not possible.
pub(crate) fn log_folder(config: &config::EnvelopeSection) -> anyhow::Result<Option<PathBuf>> {
    let Some(folder) = &config.log_dir else { return Ok(None) };
    fs::create_dir_all(folder)
        .with_context(|| format!("cannot create the folder {} of --log-dir", folder.display()))?;
    Ok(Some(folder.clone()))
}

/// Loads the built-in schemas, and the schemas in the folders that `config` names under `root`.
///
/// In a default folder, a file applies only if the user has trusted its exact content, because
/// schemas decide which calls are valid. An unusable file in a default folder only causes a
/// warning. Otherwise a stranger who can write to the folder could keep the server from starting.
pub(crate) fn load_schemas(root: &Path, config: &Config) -> anyhow::Result<Arc<SchemaRegistry>> {
    let folders = &config.envelope.schemas;
    let is_default = *folders == config::EnvelopeSection::default().schemas;
    let root =
        Root::open(root).with_context(|| format!("cannot serve the folder {}", root.display()))?;
    let mut files = SchemaFiles::default();
    for folder in folders {
        match read_folder(&root, folder, is_default, &mut files) {
            Err(why) if is_default => {
                tracing::warn!("the schemas in {folder} are ignored: {why:#}");
            }
            read => read?,
        }
    }
    let registry = SchemaRegistry::new(files)?;
    Ok(Arc::new(registry))
}

/// Returns the schema folders as paths relative to the workspace. Tools must not write these
/// folders, because the schemas decide which tool calls are valid.
pub(crate) fn schema_folders(config: &config::EnvelopeSection) -> impl Iterator<Item = String> {
    config.schemas.iter().map(|folder| {
        let mut names = Vec::new();
        for part in Path::new(folder).components() {
            match part {
                Component::Normal(name) => names.push(name.to_string_lossy()),
                Component::ParentDir => drop(names.pop()),
                Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
            }
        }
        names.join("/")
    })
}

/// Returns the schema files in the default folders under `root`, with their text. These files apply
/// only if they are trusted.
///
/// # Errors
/// The folder `root` cannot be opened.
pub fn schemas_to_trust(root: &Path, config: &Config) -> anyhow::Result<Vec<(PathBuf, String)>> {
    if config.envelope.schemas != config::EnvelopeSection::default().schemas {
        return Ok(Vec::new());
    }
    let root =
        Root::open(root).with_context(|| format!("cannot serve the folder {}", root.display()))?;
    let mut found = Vec::new();
    for folder in &config.envelope.schemas {
        let files = list_folder(&root, folder).unwrap_or_default();
        let mut room = FOLDER_BYTES_MAX;
        let read = |(_, path): (SchemaFileKind, String)| {
            let (_, text) = read_schema(&root, &path, &mut room).ok()?;
            Some((root.path().join(path), text))
        };
        found.extend(files.into_iter().filter_map(read));
    }
    Ok(found)
}

/// Returns the paths of the schema files in the workspace folder `folder`, sorted by name, each
/// with its kind. Returns an empty list if the folder does not exist, and fails if it cannot be
/// read.
fn list_folder(root: &Root, folder: &str) -> anyhow::Result<Vec<(SchemaFileKind, String)>> {
    let at = || format!("the schemas in {folder}");
    let dir = match root.open_dir(folder) {
        Ok(dir) => dir,
        Err(why) if why.fault == ToolErrorKind::NotFound => return Ok(Vec::new()),
        Err(why) => bail!("{}: {}", at(), why.message),
    };
    // Listed through the open descriptor, in case the path is replaced meanwhile.
    let listed = format!("/proc/self/fd/{}", dir.as_fd().as_raw_fd());
    let mut names = Vec::new();
    for entry in fs::read_dir(listed).with_context(at)?.take(FILES_MAX) {
        names.extend(entry.with_context(at)?.file_name().into_string());
    }
    names.sort();
    let files = names.into_iter().filter_map(|name| {
        let target = name.strip_suffix(".schema.json").and_then(SchemaFileKind::from_stem)?;
        Some((target, format!("{}/{name}", folder.trim_end_matches('/'))))
    });
    Ok(files.collect())
}

/// Reads the schema files in `folder` and adds them to `files`. If `is_default` is true, skips
/// untrusted files, and only logs a warning about an unusable file. Otherwise fails if a file is
/// unusable.
fn read_folder(
    root: &Root,
    folder: &str,
    is_default: bool,
    files: &mut SchemaFiles,
) -> anyhow::Result<()> {
    let mut room = FOLDER_BYTES_MAX;
    let mut untrusted = 0_u32;
    for (target, path) in list_folder(root, folder)? {
        let read = read_schema(root, &path, &mut room)
            .and_then(|(file, text)| Ok((target.into_files(file)?, text)));
        match read {
            Ok((_, text)) if is_default && !trust::is_trusted(&root.path().join(&path), &text) => {
                untrusted += 1;
            }
            Ok((found, _)) if is_default => match SchemaRegistry::new(found.clone()) {
                Ok(_) => add_files(files, found),
                Err(why) => tracing::warn!("{why}; the schema is ignored"),
            },
            Ok((found, _)) => add_files(files, found),
            Err(why) if is_default => tracing::warn!("{why:#}; the schema is ignored"),
            Err(why) => return Err(why),
        }
    }
    if untrusted > 0 {
        tracing::warn!(
            "schemas in {folder} are ignored, because they are not trusted: {untrusted}; read the \
             schemas, then run `toolgate trust {}`",
            root.path().display()
        );
    }
    Ok(())
}

/// Data that a schema file describes: one tool's input or output, the common part of all tool
/// calls, or an envelope. The name of the file determines this value.
enum SchemaFileKind {
    Tool(String, ToolSchemaDirection),
    Shared(SharedSchemaId),
    /// An envelope of requests or of answers. Both schemas have the same file name, so toolgate
    /// tells them apart by their content.
    Envelope,
}

impl SchemaFileKind {
    fn from_stem(stem: &str) -> Option<Self> {
        let side = [ToolSchemaDirection::Input, ToolSchemaDirection::Output].into_iter().find_map(
            |side| {
                let tool = stem.strip_suffix(side.word())?.strip_suffix('.')?;
                Some((tool, side))
            },
        );
        match (stem, side) {
            // Older tool names are accepted, in both spellings.
            (_, Some((tool, side))) => {
                Some(Self::Tool(catalog_name(&tool.replace('_', ".")).to_owned(), side))
            }
            ("tool_io", None) => Some(Self::Shared(SharedSchemaId::ToolIo)),
            ("request_envelope", None) => Some(Self::Shared(SharedSchemaId::RequestEnvelope)),
            ("envelope", None) => Some(Self::Envelope),
            (_, None) => None,
        }
    }

    fn into_files(self, file: SchemaFile) -> anyhow::Result<SchemaFiles> {
        let mut files = SchemaFiles::default();
        match self {
            Self::Tool(tool, side) => files.tools.push((tool, side, file)),
            Self::Shared(which) => files.shared.push((which, file)),
            Self::Envelope => files.shared.push((envelope_kind(&file)?, file)),
        }
        Ok(files)
    }
}

fn add_files(files: &mut SchemaFiles, found: SchemaFiles) {
    files.shared.extend(found.shared);
    files.tools.extend(found.tools);
}

/// Reads the schema at `path`, a regular file under `root`, and returns the schema with its text.
/// Subtracts the size of the file from `room`, the number of bytes that may still be read. Fails if
/// the file is too large, or is not valid JSON.
fn read_schema(root: &Root, path: &str, room: &mut u64) -> anyhow::Result<(SchemaFile, String)> {
    let mut bytes = Vec::new();
    let mut fill = || -> anyhow::Result<()> {
        let file = root.open_file(path).map_err(|why| anyhow!(why.message))?;
        let file = fs::File::from(file.as_fd().try_clone_to_owned()?);
        let limit = SCHEMA_BYTES_MAX.min(*room);
        let size = file.take(limit + 1).read_to_end(&mut bytes)? as u64;
        if size > SCHEMA_BYTES_MAX {
            bail!("it is larger than {SCHEMA_BYTES_MAX} bytes");
        }
        if size > limit {
            bail!("the schemas of its folder are larger than {FOLDER_BYTES_MAX} bytes in total");
        }
        *room -= size;
        Ok(())
    };
    fill().with_context(|| format!("cannot read the schema {path}"))?;
    let schema = exact_json::parse_bytes(strip_byte_order_mark_bytes(&bytes));
    let schema = schema.with_context(|| format!("the schema {path} is not JSON"))?;
    let text =
        String::from_utf8(bytes).with_context(|| format!("the schema {path} is not UTF-8"))?;
    Ok((SchemaFile { path: path.to_owned(), schema }, text))
}

/// Returns whether the schema `file`, named `envelope.schema.json`, describes the envelope of a
/// request or of an answer: a request requires `method`, an answer requires `ok`.
///
/// # Errors
/// The schema describes neither.
fn envelope_kind(file: &SchemaFile) -> anyhow::Result<SharedSchemaId> {
    let needs = |name: &str| {
        let required = file.schema["required"].as_array();
        required.is_some_and(|required| required.iter().any(|field| field == name))
    };
    match (needs("method"), needs("ok")) {
        (true, false) => Ok(SharedSchemaId::RequestEnvelope),
        (false, true) => Ok(SharedSchemaId::Envelope),
        (true, true) | (false, false) => bail!(
            "the schema {} describes no envelope: the schema of answers requires `ok`, and the \
             schema of requests requires `method`",
            file.path
        ),
    }
}
