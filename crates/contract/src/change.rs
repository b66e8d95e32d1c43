//! Changes of lists and resources, and their delivery to listeners.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use crate::sync::lock_mutex;

/// Change of a list of tools, prompts or resources, or of one resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerChange {
    /// The list of tools changed.
    Tools,
    /// The list of prompts changed.
    Prompts,
    /// The list of resources changed.
    Resources,
    /// The content of the resource with this URI changed.
    Resource(Arc<str>),
}

/// The channel on which the server publishes changes. Clones share their listeners.
#[derive(Clone, Default)]
pub struct ChangeFeed(Arc<Mutex<Vec<ChangeListener>>>);

/// Function that is called with each published change.
type ChangeListener = Arc<dyn Fn(&ServerChange) + Send + Sync>;

impl ChangeFeed {
    /// Publishes `change` to all listeners of the feed.
    pub fn publish(&self, change: &ServerChange) {
        let hearers = lock_mutex(&self.0).clone();
        for hear in hearers {
            hear(change);
        }
    }

    /// Adds the listener `hear`, which must not block. It receives changes that are published from
    /// now on.
    pub fn subscribe(&self, hear: impl Fn(&ServerChange) + Send + Sync + 'static) {
        lock_mutex(&self.0).push(Arc::new(hear));
    }

    /// Returns true if `other` is a clone of this feed, with the same listeners.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// The changes of lists, resources and jobs that a client subscribed to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ChangeFilter {
    /// True if changes of the tool list are included.
    pub tools: bool,
    /// True if changes of the prompt list are included.
    pub prompts: bool,
    /// True if changes of the resource list are included.
    pub resources: bool,
    /// URIs of the resources that the client watches.
    pub uris: BTreeSet<String>,
    /// Ids of the jobs that the client watches.
    pub jobs: BTreeSet<String>,
}

impl ChangeFilter {
    /// Returns true if the client subscribed to `change`.
    pub fn includes(&self, change: &ServerChange) -> bool {
        match change {
            ServerChange::Tools => self.tools,
            ServerChange::Prompts => self.prompts,
            ServerChange::Resources => self.resources,
            ServerChange::Resource(uri) => self.uris.contains(&**uri),
        }
    }
}
