//! Serves assets as resources: `asset://schemas/NAME` and `asset://examples/NAME`.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use toolgate_contract::{
    CompletionRequest, CompletionTarget, Effects, ResourceContents, ResourceSource, ResourceSpec,
    ResourceTemplate, ToolContext, ToolError, ToolFuture, ToolId, ToolSpec,
};

use super::snapshot::{AssetSnapshot, schema_name};
use crate::uri_paths;

/// The prefix of the URI of every asset resource.
const SCHEME: &str = "asset://";

/// Source of the resources that serve a workspace's schemas and examples.
pub struct AssetResourceSource {
    assets: Arc<AssetSnapshot>,
    kinds: Vec<AssetKind>,
    /// Asset resources by URI. The map is built once, after the assets were loaded.
    entries: OnceLock<BTreeMap<String, AssetEntry>>,
    guard: ToolSpec,
}

/// The kind of an asset: a schema or an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AssetKind {
    Schema,
    Example,
}

/// An asset with its text and the entry that resource lists show for it.
struct AssetEntry {
    kind: AssetKind,
    spec: ResourceSpec,
    text: Arc<str>,
}

impl AssetKind {
    /// Returns the URI prefix of all schemas or of all examples.
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

    /// Returns the name of the asset in the file `inner`, a path relative to the folder of schemas
    /// or of examples.
    fn name(self, inner: &str) -> &str {
        match self {
            Self::Schema => schema_name(inner),
            Self::Example => inner.strip_suffix(".json").unwrap_or(inner),
        }
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
            description: Some(about.to_owned()),
            media_type: Some(self.media_type().to_owned()),
            ..ResourceTemplate::default()
        }
    }
}

impl AssetResourceSource {
    /// Creates the resource source of `assets`. Returns `None` if neither schemas nor examples have
    /// a folder.
    pub fn new(assets: &Arc<AssetSnapshot>) -> Option<Arc<Self>> {
        let kinds = [
            (AssetKind::Example, assets.offers_examples()),
            (AssetKind::Schema, assets.offers_schemas()),
        ];
        let kinds: Vec<_> =
            kinds.into_iter().filter_map(|(kind, offered)| offered.then_some(kind)).collect();
        let assets = assets.clone();
        let source = Self { assets, kinds, entries: OnceLock::new(), guard: guard() };
        (!source.kinds.is_empty()).then(|| Arc::new(source))
    }

    /// Returns the asset resources by URI, and builds the map at the first call. The assets must
    /// have been loaded before.
    fn entries(&self) -> &BTreeMap<String, AssetEntry> {
        self.entries.get_or_init(|| {
            let files = self.assets.files();
            let mut entries = BTreeMap::new();
            for kind in &self.kinds {
                let kind = *kind;
                let files = match kind {
                    AssetKind::Schema => &files.schemas,
                    AssetKind::Example => &files.examples,
                };
                for (inner, text) in files {
                    let name = kind.name(inner);
                    let uri = format!("{}{}", kind.prefix(), uri_paths::percent_encode_path(name));
                    let mut spec = ResourceSpec::new(&uri, name);
                    spec.media_type = Some(kind.media_type().to_owned());
                    let found = AssetEntry { kind, spec, text: text.clone() };
                    // If two files have the same name, `.schema.json` wins, as it does for the
                    // tools.
                    if inner.ends_with(".schema.json") || !entries.contains_key(&uri) {
                        entries.insert(uri, found);
                    }
                }
            }
            entries
        })
    }

    fn contents(&self, uri: &str) -> Result<Vec<ResourceContents>, ToolError> {
        let found = self.entries().get(uri);
        let AssetEntry { kind, text, .. } =
            found.ok_or_else(|| ToolError::not_found(format!("there is no asset at `{uri}`")))?;
        Ok(vec![ResourceContents::text(uri, kind.media_type(), &**text)])
    }

    fn completions(&self, request: &CompletionRequest) -> Vec<String> {
        let mut kinds = self.kinds.iter();
        let kind = match &request.target {
            CompletionTarget::Template(uri) => kinds.find(|kind| kind.template().uri == *uri),
            CompletionTarget::Prompt(_) => None,
        };
        let Some(kind) = kind.filter(|_| request.argument == "name") else { return Vec::new() };
        let named = self.entries().iter().filter(|(_, found)| found.kind == *kind);
        named.map(|(uri, _)| uri[kind.prefix().len()..].to_owned()).collect()
    }
}

impl ResourceSource for AssetResourceSource {
    fn guard(&self) -> &ToolSpec {
        &self.guard
    }

    fn owns(&self, uri: &str) -> bool {
        uri.starts_with(SCHEME)
    }

    fn list<'a>(
        &'a self,
        ctx: &'a ToolContext,
        after: Option<&'a str>,
        at_most: usize,
    ) -> ToolFuture<'a, Vec<ResourceSpec>> {
        Box::pin(async move {
            self.assets.load(ctx).await?;
            let specs = self.entries().values().map(|found| found.spec.clone());
            Ok(uri_paths::page_after(specs, after, at_most))
        })
    }

    fn templates(&self) -> Vec<ResourceTemplate> {
        self.kinds.iter().map(|kind| kind.template()).collect()
    }

    fn read<'a>(
        &'a self,
        ctx: &'a ToolContext,
        uri: &'a str,
    ) -> ToolFuture<'a, Vec<ResourceContents>> {
        Box::pin(async move {
            self.assets.load(ctx).await?;
            self.contents(uri)
        })
    }

    fn complete<'a>(
        &'a self,
        ctx: &'a ToolContext,
        request: &'a CompletionRequest,
    ) -> ToolFuture<'a, Vec<String>> {
        Box::pin(async move {
            self.assets.load(ctx).await?;
            Ok(self.completions(request))
        })
    }
}

fn guard() -> ToolSpec {
    let id = ToolId::new("assets.get_schema").unwrap_or_else(|| unreachable!("it is a valid id"));
    let about = "Read a JSON asset of the workspace: a schema or an example.";
    let mut guard = ToolSpec::new(id, "Read asset", about, Effects::Reads);
    guard.idempotent = true;
    guard
}
