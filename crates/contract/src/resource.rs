//! Resources: files, job files and other data that clients read by URI.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};

use crate::{
    BoxFuture, Caller, ChangeFeed, ResourceContents, ResourceSpec, ResourceTemplate, ToolContext,
    ToolError, ToolFuture, ToolSpec,
};

/// The strength of a resource source's claim on a URI, strongest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum UriClaimStrength {
    /// The source of resources has a resource with this URI.
    Listed,
    /// The URI is inside a folder of the source of resources.
    Inside,
    /// The URI matches a resource template of the source of resources.
    Template,
    /// The source of resources uses the scheme of the URI.
    Scheme,
    /// The source of resources does not have the resource. It reports that the resource does not
    /// exist, unless another source has it.
    Absent,
}

/// Source of resources, which lists and reads them by URI.
pub trait ResourceSource: Send + Sync + 'static {
    /// Returns the tool that policy, limits and audit records name for reads from this source. Its
    /// id is also the source's name.
    fn guard(&self) -> &ToolSpec;
    /// Returns true if `uri` belongs to this source of resources, even if no such resource exists.
    fn owns(&self, uri: &str) -> bool;
    /// Returns the strength of the source's claim on `uri`. `None` if it has no claim. The source
    /// with the strongest claim reads the resource. Among equal claims, the first source does.
    fn claim(&self, uri: &str) -> Option<UriClaimStrength> {
        self.owns(uri).then_some(UriClaimStrength::Listed)
    }
    /// Refreshes the data from which the source computes its claims. The host calls this first if
    /// several sources claim a URI.
    fn refresh<'a>(&'a self, _ctx: &'a ToolContext) -> ToolFuture<'a, ()> {
        Box::pin(async { Ok(()) })
    }
    /// Returns the arguments that policy rules see for a read of `uri`. They match the arguments of
    /// the tool that reads the same data.
    fn policy_input(&self, uri: &str) -> Value {
        json!({ "uri": uri })
    }
    /// Returns up to `at_most` resources of the source that follow the URI `after`, in a fixed
    /// order.
    fn list<'a>(
        &'a self,
        ctx: &'a ToolContext,
        after: Option<&'a str>,
        at_most: usize,
    ) -> ToolFuture<'a, Vec<ResourceSpec>>;
    /// Returns URI templates for those resources of the source that [`ResourceSource::list`] does
    /// not list one by one.
    fn templates(&self) -> Vec<ResourceTemplate> {
        Vec::new()
    }
    /// Reads the resource `uri`.
    ///
    /// # Errors
    /// [`crate::ToolErrorKind::NotFound`] if the resource does not exist.
    fn read<'a>(
        &'a self,
        ctx: &'a ToolContext,
        uri: &'a str,
    ) -> ToolFuture<'a, Vec<ResourceContents>>;
    /// Returns true if `complete` returns complete lists in order, which the host must not rank
    /// again.
    fn completes_in_order(&self) -> bool {
        false
    }

    /// Returns candidate values for a variable of one of the source's URI templates.
    fn complete<'a>(
        &'a self,
        _ctx: &'a ToolContext,
        _asked: &'a CompletionRequest,
    ) -> ToolFuture<'a, Vec<String>> {
        Box::pin(async { Ok(Vec::new()) })
    }
    /// Publishes to `changes` when the content of the resource `uri` changes, until the returned
    /// guard is dropped.
    ///
    /// The host calls this once per subscription. Several subscriptions may watch one URI.
    fn watch<'a>(
        &'a self,
        _ctx: &'a ToolContext,
        _uri: &'a str,
        _changes: &'a ChangeFeed,
    ) -> ToolFuture<'a, KeepActiveGuard> {
        Box::pin(async { Ok(KeepActiveGuard::none()) })
    }
    /// Publishes to `changes` when the source's list of resources changes, until the returned guard
    /// is dropped.
    fn watch_list(&self, _changes: &ChangeFeed) -> KeepActiveGuard {
        KeepActiveGuard::none()
    }
    /// Returns up to `at_most` resources that are direct children of the folder `uri` and follow
    /// `after`.
    ///
    /// # Errors
    /// [`crate::ToolErrorKind::NotFound`] if `uri` is not a folder.
    fn list_folder<'a>(
        &'a self,
        _ctx: &'a ToolContext,
        uri: &'a str,
        _after: Option<&'a str>,
        _at_most: usize,
    ) -> ToolFuture<'a, Vec<ResourceSpec>> {
        Box::pin(async move { Err(ToolError::not_found(format!("`{uri}` is not a folder"))) })
    }
}

/// A store of long results that several servers share, so that a caller can read each result at any
/// of them.
pub trait SharedResultStore: Send + Sync + 'static {
    /// Passes the result of `caller` to the other servers. If that fails, the store logs it, and
    /// only this server can return the result.
    fn share<'a>(&'a self, caller: &'a Caller, result: SharedLongResult) -> BoxFuture<'a, ()>;
    /// Returns the result of `caller` with the URI `uri`, or `None` if no server has shared it.
    ///
    /// # Errors
    /// The store is unavailable. The error is a message for the caller.
    fn find<'a>(
        &'a self,
        caller: &'a Caller,
        uri: &'a str,
    ) -> BoxFuture<'a, Result<Option<SharedLongResult>, String>>;
    /// Returns the results of `caller`, without their contents. Returns none if the store is
    /// unavailable.
    fn list<'a>(&'a self, caller: &'a Caller) -> BoxFuture<'a, Vec<ResourceSpec>>;
}

/// A long result that several servers share.
#[derive(Debug, Clone)]
pub struct SharedLongResult {
    /// The entry of the result in lists, with its URI.
    pub spec: ResourceSpec,
    /// The complete content of the result.
    pub content: Bytes,
    /// True if the content of the result is text.
    pub is_text: bool,
    /// The remaining time for which the result is stored.
    pub keep: Duration,
}

/// A guard that keeps an activity running until it is dropped, such as the watch of a resource.
#[derive(Clone)]
pub struct KeepActiveGuard(
    #[allow(dead_code, reason = "ends on drop")] Option<Arc<dyn Any + Send + Sync>>,
);

impl KeepActiveGuard {
    /// Creates a guard that keeps no activity running.
    pub fn none() -> Self {
        Self(None)
    }

    /// Creates a guard that owns `held`. Dropping the last clone of the guard drops `held`, which
    /// must end the activity.
    pub fn new(held: impl Any + Send + Sync) -> Self {
        Self(Some(Arc::new(held)))
    }
}

/// A request to complete a value that a person is typing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompletionRequest {
    /// The prompt or template that the value is for.
    pub target: CompletionTarget,
    /// The name of the prompt's argument or the template's variable.
    pub argument: String,
    /// The text that the person has typed so far.
    pub prefix: String,
    /// The values of other arguments that are already known.
    pub other_arguments: BTreeMap<String, String>,
}

/// The prompt or template that a completed value is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CompletionTarget {
    /// An argument of the prompt with this name.
    Prompt(String),
    /// A variable of the resource template with this URI pattern.
    Template(String),
}

/// Candidates for a value that a person is typing, best first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompletionCandidates {
    /// At most 100 candidates for the value.
    pub values: Vec<String>,
    /// The number of all candidates for the value.
    pub total: usize,
}

/// The maximum number of candidates in the answer to a completion request.
pub const COMPLETIONS_MAX: usize = 100;
