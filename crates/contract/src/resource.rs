//! What can be read by its URI: files, what jobs left, whatever else there is to read.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::content::Blob;
use crate::{BoxFuture, Changes, Ctx, Icon, Meant, MetaFields, ToolError, ToolSpec};

/// What is known of a resource without reading it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ResourceSpec {
    /// What it is read by.
    pub uri: String,
    /// A name for programs, often the last part of the URI.
    pub name: String,
    /// A name for people.
    pub title: Option<String>,
    /// What it holds.
    pub about: Option<String>,
    /// What it is, e.g. `text/plain`.
    pub media_type: Option<String>,
    /// How long it is.
    pub bytes: Option<u64>,
    /// For whom it is and how much it matters.
    #[serde(default)]
    pub meant: Meant,
    /// What stands for it.
    #[serde(default)]
    pub icons: Vec<Icon>,
    /// What else is said of it, for whoever shows it.
    #[serde(default, skip_serializing_if = "MetaFields::is_empty")]
    pub meta: MetaFields,
}

impl ResourceSpec {
    /// A resource read by `uri` and called `name`.
    pub fn new(uri: impl Into<String>, name: impl Into<String>) -> Self {
        Self { uri: uri.into(), name: name.into(), ..Self::default() }
    }

    /// The same, holding `about`.
    pub fn about(self, about: impl Into<String>) -> Self {
        Self { about: Some(about.into()), ..self }
    }

    /// The same, of type `media_type`, e.g. `text/plain`.
    pub fn media_type(self, media_type: impl Into<String>) -> Self {
        Self { media_type: Some(media_type.into()), ..self }
    }
}

/// Many resources by one pattern.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ResourceTemplate {
    /// The URIs, as RFC 6570 writes them, e.g. `file:///src/{+path}`.
    pub uri: String,
    /// A name for programs.
    pub name: String,
    /// A name for people.
    pub title: Option<String>,
    /// What they hold.
    pub about: Option<String>,
    /// What they all are, where they are all the same.
    pub media_type: Option<String>,
    /// What stands for them.
    pub icons: Vec<Icon>,
    /// What else is said of them, for whoever shows them.
    pub meta: MetaFields,
}

impl ResourceTemplate {
    /// The resources whose URIs are written `uri`, called `name`.
    pub fn new(uri: impl Into<String>, name: impl Into<String>) -> Self {
        Self { uri: uri.into(), name: name.into(), ..Self::default() }
    }

    /// The same, holding `about`.
    pub fn about(self, about: impl Into<String>) -> Self {
        Self { about: Some(about.into()), ..self }
    }

    /// The same, all of type `media_type`, e.g. `text/plain`.
    pub fn media_type(self, media_type: impl Into<String>) -> Self {
        Self { media_type: Some(media_type.into()), ..self }
    }
}

/// What a resource, or a part of it, holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Contents {
    /// What it is read by.
    pub uri: String,
    /// What it is, e.g. `text/plain`.
    pub media_type: Option<String>,
    /// What it holds.
    pub held: Held,
    /// What is no part of it, for whoever shows it.
    #[serde(default, skip_serializing_if = "MetaFields::is_empty")]
    pub meta: MetaFields,
}

/// What is held: text where it is text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Held {
    /// Text.
    Text(String),
    /// Anything else.
    Bytes(Blob),
}

impl Contents {
    /// Text of type `media_type`.
    pub fn text(
        uri: impl Into<String>,
        media_type: impl Into<String>,
        text: impl Into<String>,
    ) -> Self {
        let (uri, media_type) = (uri.into(), Some(media_type.into()));
        Self { uri, media_type, held: Held::Text(text.into()), meta: MetaFields::new() }
    }

    /// Bytes of type `media_type`.
    pub fn bytes(
        uri: impl Into<String>,
        media_type: impl Into<String>,
        bytes: impl Into<bytes::Bytes>,
    ) -> Self {
        let (uri, media_type) = (uri.into(), Some(media_type.into()));
        Self { uri, media_type, held: Held::Bytes(Blob(bytes.into())), meta: MetaFields::new() }
    }
}

/// How surely a URI belongs to a source, the surest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Claim {
    /// It is one that it has.
    Listed,
    /// It is in a folder that is its own.
    Inside,
    /// It is written as one of its templates says.
    Template,
    /// Others of its scheme are its own.
    Scheme,
    /// It has none such, and says so to whoever asks, unless another has.
    Absent,
}

/// A source of resources. Each is a file, and a line where the sources are listed.
pub trait Resources: Send + Sync + 'static {
    /// What policy, limits and the record know reading from it by: often the tool that reads the
    /// same. Its id is also the source's name.
    fn guard(&self) -> &ToolSpec;
    /// Whether `uri` is one of its own, there or not.
    fn owns(&self, uri: &str) -> bool;
    /// How surely `uri` is one of its own, if it is: of several sources that say so the surest
    /// has it, and of those the first.
    fn claims(&self, uri: &str) -> Option<Claim> {
        self.owns(uri).then_some(Claim::Listed)
    }
    /// Looks at what it has now, where `claims` depends on it; asked before, where several claim
    /// the same.
    fn look<'a>(&'a self, _ctx: &'a Ctx) -> BoxFuture<'a, Result<(), ToolError>> {
        Box::pin(async { Ok(()) })
    }
    /// What policy sees of reading `uri`, as arguments of a call: those of the tool that reads the
    /// same too, as far as they say which.
    fn asked(&self, uri: &str) -> Value {
        json!({ "uri": uri })
    }
    /// Up to `at_most` resources after the one read by `after`, in a fixed order.
    fn list<'a>(
        &'a self,
        ctx: &'a Ctx,
        after: Option<&'a str>,
        at_most: usize,
    ) -> BoxFuture<'a, Result<Vec<ResourceSpec>, ToolError>>;
    /// Patterns of resources that are not, or not all, in the list.
    fn templates(&self) -> Vec<ResourceTemplate> {
        Vec::new()
    }
    /// What `uri` holds; [`crate::Fault::NotFound`] if it is not there.
    fn read<'a>(
        &'a self,
        ctx: &'a Ctx,
        uri: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Contents>, ToolError>>;
    /// Whether what it says that an argument may be is all of that, the best first, and needs no
    /// ranking.
    fn completes_in_order(&self) -> bool {
        false
    }

    /// What the variable of a template of its may be, given what is typed of it so far.
    fn complete<'a>(
        &'a self,
        _ctx: &'a Ctx,
        _asked: &'a Completing,
    ) -> BoxFuture<'a, Result<Vec<String>, ToolError>> {
        Box::pin(async { Ok(Vec::new()) })
    }
    /// Tells `changes` when what `uri` holds has changed, for as long as the result is held.
    ///
    /// Called once a subscription; several may watch the same.
    fn watch<'a>(
        &'a self,
        _ctx: &'a Ctx,
        _uri: &'a str,
        _changes: &'a Changes,
    ) -> BoxFuture<'a, Result<Hold, ToolError>> {
        Box::pin(async { Ok(Hold::nothing()) })
    }
    /// Tells `changes` when the list has changed, for as long as the result is held.
    fn watch_list(&self, _changes: &Changes) -> Hold {
        Hold::nothing()
    }
    /// The direct children of the folder `uri`, where it is one: up to `at_most` after `after`.
    fn folder<'a>(
        &'a self,
        _ctx: &'a Ctx,
        uri: &'a str,
        _after: Option<&'a str>,
        _at_most: usize,
    ) -> BoxFuture<'a, Result<Vec<ResourceSpec>, ToolError>> {
        Box::pin(async move { Err(ToolError::not_found(format!("`{uri}` is no folder"))) })
    }
}

/// Something that goes on for as long as this is held.
#[derive(Clone)]
pub struct Hold(#[allow(dead_code, reason = "ends on drop")] Option<Arc<dyn Any + Send + Sync>>);

impl Hold {
    /// Nothing goes on.
    pub fn nothing() -> Self {
        Self(None)
    }

    /// What `held` does until it is dropped.
    pub fn of(held: impl Any + Send + Sync) -> Self {
        Self(Some(Arc::new(held)))
    }
}

/// A value that somebody types.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completing {
    /// What it is a value for.
    pub of: CompletingOf,
    /// The argument's or the variable's name.
    pub argument: String,
    /// What is typed so far.
    pub so_far: String,
    /// The other arguments, as far as they are known.
    pub others: BTreeMap<String, String>,
}

/// What a value is typed for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CompletingOf {
    /// The prompt of that name.
    Prompt(String),
    /// The resource template that is written so.
    Template(String),
}

/// What a value may be, best first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completion {
    /// At most a hundred.
    pub values: Vec<String>,
    /// How many there are.
    pub total: usize,
}

/// The most values told of a completion.
pub const COMPLETIONS_MAX: usize = 100;
