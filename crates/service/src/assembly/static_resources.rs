//! In-memory resources: fixed texts and bytes, and URI templates.

mod pattern;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use toolgate_contract::{
    Effects, MetaFields, ResourceContents, ResourceData, ResourceSource, ResourceSpec,
    ResourceTemplate, ToolContext, ToolError, ToolFuture, ToolId, ToolSpec,
};

use pattern::UriPattern;

/// Values of the variables of a URI template that a URI contains, by the variable's name.
pub type UriTemplateVariables = BTreeMap<String, String>;

/// Function that creates the content for a URI of a resource template. The function returns `None`
/// if no such resource exists.
type TemplateContentProvider =
    Box<dyn Fn(&UriTemplateVariables) -> Option<ResourceData> + Send + Sync>;

/// Media type of a resource that contains other resources.
const FOLDER_MEDIA_TYPE: &str = "inode/directory";

/// Source of resources that are held in memory, sorted by URI.
///
/// A URI that is a prefix of others is also a folder: `a://b` contains `a://b/c`.
pub struct StaticResourceSource {
    guard: ToolSpec,
    fixed: BTreeMap<String, (ResourceSpec, ResourceData)>,
    templates: Vec<(ResourceTemplate, UriPattern, TemplateContentProvider)>,
}

impl StaticResourceSource {
    /// Creates an empty source of resources. Policy rules and the audit log use `name` for the
    /// source.
    ///
    /// # Panics
    /// Panics if `name` is not a valid tool id.
    pub fn new(name: &str) -> Self {
        let id = ToolId::new(name).unwrap_or_else(|| panic!("`{name}` is not a tool id"));
        let guard = ToolSpec::new(id, name, "Reads resources.", Effects::Reads);
        Self { guard, fixed: BTreeMap::new(), templates: Vec::new() }
    }

    /// Adds a text resource with the description `spec`.
    pub fn text(self, spec: ResourceSpec, text: impl Into<String>) -> Self {
        self.insert(spec, ResourceData::Text(text.into()))
    }

    /// Adds a binary resource with the description `spec`.
    pub fn bytes(self, spec: ResourceSpec, bytes: impl Into<Bytes>) -> Self {
        self.insert(spec, ResourceData::Bytes(toolgate_contract::Base64Bytes(bytes.into())))
    }

    fn insert(mut self, mut spec: ResourceSpec, held: ResourceData) -> Self {
        spec.bytes = Some(match &held {
            ResourceData::Text(text) => text.len() as u64,
            ResourceData::Bytes(data) => data.0.len() as u64,
        });
        self.fixed.insert(spec.uri.clone(), (spec, held));
        self
    }

    /// Adds all resources whose URI matches `template`. `fill` creates the content of one resource
    /// from the variables in the URI, or returns `None` if the resource does not exist.
    ///
    /// Two expressions of RFC 6570 are supported: `{name}` stops at a `/`, and `{+name}` does not.
    ///
    /// # Panics
    /// Panics if the template uses any other expression.
    pub fn template(
        mut self,
        template: ResourceTemplate,
        fill: impl Fn(&UriTemplateVariables) -> Option<ResourceData> + Send + Sync + 'static,
    ) -> Self {
        let pattern = UriPattern::new(&template.uri).unwrap_or_else(|why| panic!("{why}"));
        self.templates.push((template, pattern, Box::new(fill)));
        self
    }

    /// Returns the resources whose URIs are below the URI `uri`, each with the rest of its URI.
    fn resources_in(&self, uri: &str) -> impl Iterator<Item = (&str, &ResourceSpec)> {
        let folder = format!("{}/", uri.trim_end_matches('/'));
        let from = self.fixed.range(folder.clone()..);
        from.map_while(move |(uri, (spec, _))| Some((uri.strip_prefix(&folder)?, spec)))
    }
}

impl ResourceSource for StaticResourceSource {
    fn guard(&self) -> &ToolSpec {
        &self.guard
    }

    fn owns(&self, uri: &str) -> bool {
        self.fixed.contains_key(uri)
            || self.templates.iter().any(|(_, pattern, _)| pattern.match_uri(uri).is_some())
            || self.resources_in(uri).next().is_some()
    }

    fn list<'a>(
        &'a self,
        _ctx: &'a ToolContext,
        after: Option<&'a str>,
        at_most: usize,
    ) -> ToolFuture<'a, Vec<ResourceSpec>> {
        let all = self.fixed.iter().filter(move |(uri, _)| after.is_none_or(|a| a < uri.as_str()));
        let page = all.map(|(_, (spec, _))| spec.clone()).take(at_most).collect();
        Box::pin(async { Ok(page) })
    }

    fn templates(&self) -> Vec<ResourceTemplate> {
        self.templates.iter().map(|(template, ..)| template.clone()).collect()
    }

    fn read<'a>(
        &'a self,
        _ctx: &'a ToolContext,
        uri: &'a str,
    ) -> ToolFuture<'a, Vec<ResourceContents>> {
        let fixed = self.fixed.get(uri);
        let found = fixed.map(|(spec, held)| (spec.media_type.clone(), held.clone()));
        let found = found.or_else(|| {
            self.templates.iter().find_map(|(template, pattern, fill)| {
                Some((template.media_type.clone(), fill(&pattern.match_uri(uri)?)?))
            })
        });
        let meta = MetaFields::new();
        let contents = found.map(|(media_type, held)| ResourceContents {
            uri: uri.into(),
            media_type,
            held,
            meta,
        });
        Box::pin(async move {
            let missing = || ToolError::not_found(format!("no resource is at `{uri}`"));
            contents.map(|contents| vec![contents]).ok_or_else(missing)
        })
    }

    fn list_folder<'a>(
        &'a self,
        _ctx: &'a ToolContext,
        uri: &'a str,
        after: Option<&'a str>,
        at_most: usize,
    ) -> ToolFuture<'a, Vec<ResourceSpec>> {
        let at = uri.trim_end_matches('/');
        let mut names = BTreeSet::new();
        let children =
            self.resources_in(uri).filter_map(|(path, spec)| match path.split_once('/') {
                None => Some(spec.clone()),
                Some((name, _)) => names.insert(name).then(|| ResourceSpec {
                    media_type: Some(FOLDER_MEDIA_TYPE.to_owned()),
                    ..ResourceSpec::new(format!("{at}/{name}"), name)
                }),
            });
        let mut children: Vec<_> = children.collect();
        let found = if children.is_empty() {
            Err(ToolError::not_found(format!("`{uri}` is not a folder")))
        } else {
            children.sort_by(|a, b| a.uri.cmp(&b.uri));
            children.retain(|child| after.is_none_or(|after| child.uri.as_str() > after));
            children.truncate(at_most);
            Ok(children)
        };
        Box::pin(async { found })
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use toolgate_contract::Caller;

    use super::*;

    fn source() -> StaticResourceSource {
        let template = ResourceTemplate { uri: "a://t/{id}".into(), ..ResourceTemplate::default() };
        StaticResourceSource::new("source")
            .text(ResourceSpec::new("a://b/c/d", "d"), "deep")
            .bytes(ResourceSpec::new("a://b/c.png", "c.png"), vec![1, 2])
            .template(template, |variables| {
                (variables["id"] != "none").then(|| ResourceData::Text(variables["id"].clone()))
            })
    }

    fn ctx() -> ToolContext {
        ToolContext::detached(Caller::local(), Instant::now() + Duration::from_secs(5))
    }

    #[tokio::test]
    async fn fixed_resources_and_those_of_templates_are_read() {
        let source = source();
        let ctx = ctx();
        let read = async |uri| source.read(&ctx, uri).await.map(|mut all| all.remove(0).held);
        assert_eq!(read("a://b/c/d").await.ok(), Some(ResourceData::Text("deep".into())));
        assert_eq!(read("a://t/x%20y").await.ok(), Some(ResourceData::Text("x y".into())));
        for missing in ["a://t/none", "a://t/x/y", "a://b"] {
            assert!(read(missing).await.is_err(), "{missing}");
        }
        assert!(source.owns("a://b") && source.owns("a://t/none") && !source.owns("a://other"));
    }

    #[tokio::test]
    async fn a_folder_lists_its_direct_children_after_any_of_them() {
        let source = source();
        let ctx = ctx();
        let folder = async |after| {
            let children = source.list_folder(&ctx, "a://b", after, 9).await.expect("a folder");
            children.into_iter().map(|child| child.uri).collect::<Vec<_>>()
        };
        assert_eq!(folder(None).await, ["a://b/c", "a://b/c.png"]);
        assert_eq!(folder(Some("a://b/c")).await, ["a://b/c.png"]);
        assert!(source.list_folder(&ctx, "a://b/c/d", None, 9).await.is_err());
    }
}
