//! Assets as resources: `asset://schemas/NAME` and `asset://examples/NAME`.

use std::collections::BTreeMap;
use std::sync::Arc;

use toolgate_contract::{
    BoxFuture, Completing, CompletingOf, Contents, Ctx, Effects, ResourceSpec, ResourceTemplate,
    Resources, ToolError, ToolId, ToolSpec,
};

use super::snapshot::{Assets, schema_name};
use crate::places;

/// The prefix of every asset's URI.
const SCHEME: &str = "asset://";

/// The source of asset resources of a workspace.
pub struct Source {
    kinds: Vec<What>,
    found: BTreeMap<String, Found>,
    guard: ToolSpec,
}

/// The kind of an asset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Schema,
    Example,
}

/// An asset with its text and its entry in resource lists.
struct Found {
    kind: What,
    spec: ResourceSpec,
    text: Arc<str>,
}

impl What {
    /// Returns the prefix of the URIs of this kind.
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

    /// Returns the name of an asset in the file `inner`.
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
            about: Some(about.to_owned()),
            media_type: Some(self.media_type().to_owned()),
            ..ResourceTemplate::default()
        }
    }
}

impl Source {
    /// Creates the source of `assets`. Returns `None` if neither kind has a folder.
    pub fn new(assets: &Assets) -> Option<Arc<Self>> {
        let shelves = &assets.shelves;
        let shelves = [(What::Example, &shelves.examples), (What::Schema, &shelves.schemas)];
        let mut source = Self { kinds: Vec::new(), found: BTreeMap::new(), guard: guard() };
        for (kind, files) in shelves {
            let Some(files) = files else { continue };
            source.kinds.push(kind);
            for (inner, text) in files {
                let name = kind.name(inner);
                let uri = format!("{}{}", kind.prefix(), places::in_uri(name));
                let mut spec = ResourceSpec::new(&uri, name);
                spec.media_type = Some(kind.media_type().to_owned());
                let found = Found { kind, spec, text: text.clone() };
                // If two files have the same name, `.schema.json` wins, as it does for the tools.
                if inner.ends_with(".schema.json") || !source.found.contains_key(&uri) {
                    source.found.insert(uri, found);
                }
            }
        }
        (!source.kinds.is_empty()).then(|| Arc::new(source))
    }

    fn contents(&self, uri: &str) -> Result<Vec<Contents>, ToolError> {
        let found = self.found.get(uri);
        let Found { kind, text, .. } =
            found.ok_or_else(|| ToolError::not_found(format!("no asset is at `{uri}`")))?;
        Ok(vec![Contents::text(uri, kind.media_type(), &**text)])
    }

    fn completions(&self, asked: &Completing) -> Vec<String> {
        let mut kinds = self.kinds.iter();
        let kind = match &asked.of {
            CompletingOf::Template(uri) => kinds.find(|kind| kind.template().uri == *uri),
            CompletingOf::Prompt(_) => None,
        };
        let Some(kind) = kind.filter(|_| asked.argument == "name") else { return Vec::new() };
        let named = self.found.iter().filter(|(_, found)| found.kind == *kind);
        named.map(|(uri, _)| uri[kind.prefix().len()..].to_owned()).collect()
    }
}

impl Resources for Source {
    fn guard(&self) -> &ToolSpec {
        &self.guard
    }

    fn owns(&self, uri: &str) -> bool {
        uri.starts_with(SCHEME)
    }

    fn list<'a>(
        &'a self,
        _ctx: &'a Ctx,
        after: Option<&'a str>,
        at_most: usize,
    ) -> BoxFuture<'a, Result<Vec<ResourceSpec>, ToolError>> {
        let specs = self.found.values().map(|found| found.spec.clone());
        let page = places::page(specs, after, at_most);
        Box::pin(async { Ok(page) })
    }

    fn templates(&self) -> Vec<ResourceTemplate> {
        self.kinds.iter().map(|kind| kind.template()).collect()
    }

    fn read<'a>(
        &'a self,
        _ctx: &'a Ctx,
        uri: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Contents>, ToolError>> {
        Box::pin(async { self.contents(uri) })
    }

    fn complete<'a>(
        &'a self,
        _ctx: &'a Ctx,
        asked: &'a Completing,
    ) -> BoxFuture<'a, Result<Vec<String>, ToolError>> {
        Box::pin(async { Ok(self.completions(asked)) })
    }
}

fn guard() -> ToolSpec {
    let id = ToolId::new("assets.get_schema").unwrap_or_else(|| unreachable!("it is an id"));
    let about = "Reads a JSON asset of the workspace: a schema or an example.";
    let mut guard = ToolSpec::new(id, "Read asset", about, Effects::Reads);
    guard.idempotent = true;
    guard
}
