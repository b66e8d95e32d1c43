//! Assets listed and read.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;

use toolgate_contract::{
    BoxFuture, Completing, CompletingOf, Contents, Ctx, Effects, Fault, ResourceSpec,
    ResourceTemplate, Resources, ToolError, ToolId, ToolSpec,
};

use super::Settings;
use crate::places;
use crate::world::Root;
use crate::world::root::{Kind, Sight, Start, Watch};

/// What the URI of every asset begins with.
const SCHEME: &str = "asset://";
/// How many entries of a folder are looked at.
const ENTRIES_MAX: usize = 10_000;
/// How large an asset may be.
const BYTES_MAX: u64 = 16 << 20;
/// Everything but what is hidden.
const SIGHT: Sight = Sight { ignored: true, hidden: false };

/// The assets of a workspace, as they are whenever somebody asks.
pub struct Assets {
    root: Root,
    shelves: Vec<Shelf>,
    guard: ToolSpec,
}

/// A folder of assets of one kind.
#[derive(Debug, Clone)]
struct Shelf {
    kind: What,
    folder: String,
}

/// What an asset is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Schema,
    Example,
}

impl What {
    /// What the URIs of its kind begin with.
    fn prefix(self) -> &'static str {
        match self {
            Self::Schema => "asset://schemas/",
            Self::Example => "asset://examples/",
        }
    }

    fn media_type(self) -> &'static str {
        match self {
            Self::Schema => "application/schema+json",
            Self::Example => "application/json",
        }
    }

    /// What an asset in a file called `file` is called, if it is one.
    fn name(self, file: &str) -> Option<&str> {
        let name = file.strip_suffix(".json")?;
        let name = match self {
            Self::Schema => name.strip_suffix(".schema").unwrap_or(name),
            Self::Example => name,
        };
        (!name.is_empty() && !name.ends_with('/')).then_some(name)
    }

    fn template(self) -> ResourceTemplate {
        let (name, title, about) = match self {
            Self::Schema => ("schema", "Schema", "A JSON Schema by its name."),
            Self::Example => ("example", "Example", "An example of an asset by its name."),
        };
        ResourceTemplate {
            uri: format!("{}{{+name}}", self.prefix()),
            name: name.to_owned(),
            title: Some(title.to_owned()),
            about: Some(about.to_owned()),
            media_type: Some(self.media_type().to_owned()),
            icons: Vec::new(),
        }
    }
}

/// An asset that was found: what is known of it, and where it is.
struct Found {
    spec: ResourceSpec,
    at: PathBuf,
}

impl Assets {
    /// The assets in the folders that `settings` name, beneath the workspace `root`; `None` where
    /// they name none. The log is told of a folder that is not there, or is none.
    pub fn new(root: &Root, settings: &Settings) -> Option<Arc<Self>> {
        let Settings { schemas, examples } = settings.clone();
        let schemas = schemas.map(|folder| Shelf { kind: What::Schema, folder });
        let examples = examples.map(|folder| Shelf { kind: What::Example, folder });
        let shelves: Vec<Shelf> = examples.into_iter().chain(schemas).collect();
        if shelves.is_empty() {
            return None;
        }
        for Shelf { folder, .. } in &shelves {
            if let Some(why) = missing(root, folder) {
                tracing::warn!("there are no assets in `{folder}`: {why}");
            }
        }
        Some(Arc::new(Self { root: root.clone(), shelves, guard: guard() }))
    }

    /// The assets of `kind`, or of all kinds, by URI.
    async fn found(
        &self,
        ctx: &Ctx,
        kind: Option<What>,
    ) -> Result<BTreeMap<String, Found>, ToolError> {
        let wanted = |shelf: &&Shelf| kind.is_none_or(|kind| shelf.kind == kind);
        let shelves: Vec<Shelf> = self.shelves.iter().filter(wanted).cloned().collect();
        let look = move |root: &Root, watch: &Watch| {
            let mut found = BTreeMap::new();
            for shelf in &shelves {
                shelf.look(root, &mut found, watch)?;
            }
            Ok(found)
        };
        self.root.work(ctx, look).await
    }

    fn kind(&self, is: impl Fn(What) -> bool) -> Option<What> {
        self.shelves.iter().map(|shelf| shelf.kind).find(|kind| is(*kind))
    }

    async fn contents(&self, ctx: &Ctx, uri: &str) -> Result<Vec<Contents>, ToolError> {
        let absent = || ToolError::not_found(format!("no asset is at `{uri}`"));
        let kind = self.kind(|kind| uri.starts_with(kind.prefix())).ok_or_else(absent)?;
        let Found { spec, at } =
            self.found(ctx, Some(kind)).await?.remove(uri).ok_or_else(absent)?;
        let read = move |root: &Root, watch: &Watch| {
            let file = root.open_walked(&at)?;
            let size = file.meta().size();
            if size > BYTES_MAX {
                let message = format!("`{}` has {size} bytes; at most {BYTES_MAX}", spec.uri);
                return Err(ToolError::new(Fault::TooLarge, message));
            }
            let text = String::from_utf8(file.read(0, size, watch)?)
                .map_err(|_| ToolError::failed(format!("`{}` is not UTF-8", spec.uri)))?;
            Ok(vec![Contents::text(spec.uri, kind.media_type(), text)])
        };
        self.root.work(ctx, read).await
    }
}

/// Why no asset is found in `folder`, whatever comes to be in it.
pub(super) fn missing(root: &Root, folder: &str) -> Option<String> {
    match root.start(folder) {
        Ok(Start::Folder(_)) => None,
        Ok(Start::File(_)) => Some("it is no folder".to_owned()),
        Err(err) => Some(err.message),
    }
}

impl Shelf {
    /// Adds its assets to `found`. Of two with one name the first counts.
    fn look(
        &self,
        root: &Root,
        found: &mut BTreeMap<String, Found>,
        watch: &Watch,
    ) -> Result<(), ToolError> {
        let Self { kind, folder } = self;
        let top = match root.start(folder) {
            Ok(Start::Folder(top)) => top,
            Ok(Start::File(_)) => return Ok(()),
            Err(err) if err.fault == Fault::NotFound => return Ok(()),
            Err(err) => return Err(err.at("")),
        };
        let above = top.path.clone();
        let mut waiting = VecDeque::from([top]);
        let mut seen = 0;
        while let Some(mut folder) = waiting.pop_front() {
            let entries = match folder.look(root, SIGHT, watch) {
                Ok(entries) => entries,
                Err(err) if err.fault == Fault::Canceled => return Err(err),
                Err(_) => continue,
            };
            for (name, entry) in entries {
                seen += 1;
                if seen > ENTRIES_MAX {
                    return Ok(());
                }
                let at = folder.path.join(&name);
                match entry {
                    Kind::Dir => waiting.push_back(folder.enter(&name)),
                    Kind::File => {
                        let inner = at.strip_prefix(&above).ok().and_then(|path| path.to_str());
                        let Some(name) = inner.and_then(|inner| kind.name(inner)) else { continue };
                        let uri = format!("{}{}", kind.prefix(), places::in_uri(name));
                        let mut spec = ResourceSpec::new(&uri, name);
                        spec.media_type = Some(kind.media_type().to_owned());
                        found.entry(uri).or_insert(Found { spec, at });
                    }
                    Kind::Symlink | Kind::Other => {}
                }
            }
        }
        Ok(())
    }
}

impl Resources for Assets {
    fn guard(&self) -> &ToolSpec {
        &self.guard
    }

    fn owns(&self, uri: &str) -> bool {
        uri.starts_with(SCHEME)
    }

    fn list<'a>(
        &'a self,
        ctx: &'a Ctx,
        after: Option<&'a str>,
        at_most: usize,
    ) -> BoxFuture<'a, Result<Vec<ResourceSpec>, ToolError>> {
        Box::pin(async move {
            let found = self.found(ctx, None).await?;
            Ok(places::page(found.into_values().map(|found| found.spec), after, at_most))
        })
    }

    fn templates(&self) -> Vec<ResourceTemplate> {
        self.shelves.iter().map(|shelf| shelf.kind.template()).collect()
    }

    fn read<'a>(
        &'a self,
        ctx: &'a Ctx,
        uri: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Contents>, ToolError>> {
        Box::pin(self.contents(ctx, uri))
    }

    fn complete<'a>(
        &'a self,
        ctx: &'a Ctx,
        asked: &'a Completing,
    ) -> BoxFuture<'a, Result<Vec<String>, ToolError>> {
        Box::pin(async move {
            let kind = match &asked.of {
                CompletingOf::Template(uri) => self.kind(|kind| kind.template().uri == *uri),
                CompletingOf::Prompt(_) => None,
            };
            let Some(kind) = kind.filter(|_| asked.argument == "name") else {
                return Ok(Vec::new());
            };
            let found = self.found(ctx, Some(kind)).await?;
            Ok(found.into_keys().map(|uri| uri[kind.prefix().len()..].to_owned()).collect())
        })
    }
}

fn guard() -> ToolSpec {
    let id = ToolId::new("assets.get_schema").unwrap_or_else(|| unreachable!("it is an id"));
    let about = "Reads a JSON asset of the workspace: a schema or an example.";
    let mut guard = ToolSpec::new(id, "Read asset", about, Effects::Reads);
    guard.idempotent = true;
    guard
}
