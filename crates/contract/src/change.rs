//! Changes of lists and resources, and their delivery to listeners.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A change of a list or of a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The list of tools changed.
    Tools,
    /// The list of prompts changed.
    Prompts,
    /// The list of resources changed.
    Resources,
    /// The content of the resource with this URI changed.
    Resource(Arc<str>),
}

/// The channel on which changes are published. Clones share their listeners.
#[derive(Clone, Default)]
pub struct Changes(Arc<Mutex<Vec<Hearer>>>);

type Hearer = Arc<dyn Fn(&Change) + Send + Sync>;

impl Changes {
    /// Publishes `change` to all listeners.
    pub fn tell(&self, change: &Change) {
        let hearers = self.hearers().clone();
        for hear in hearers {
            hear(change);
        }
    }

    /// Adds the listener `hear`, which must not block. It receives changes from now on.
    pub fn heard_by(&self, hear: impl Fn(&Change) + Send + Sync + 'static) {
        self.hearers().push(Arc::new(hear));
    }

    /// Returns true if `other` is a clone of this channel.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    fn hearers(&self) -> MutexGuard<'_, Vec<Hearer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The changes that a client subscribed to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Interest {
    /// Changes of the tool list.
    pub tools: bool,
    /// Changes of the prompt list.
    pub prompts: bool,
    /// Changes of the resource list.
    pub resources: bool,
    /// URIs of the resources whose content is watched.
    pub uris: BTreeSet<String>,
    /// Ids of the jobs that are watched.
    pub jobs: BTreeSet<String>,
}

impl Interest {
    /// Returns true if `change` is subscribed to.
    pub fn is_in(&self, change: &Change) -> bool {
        match change {
            Change::Tools => self.tools,
            Change::Prompts => self.prompts,
            Change::Resources => self.resources,
            Change::Resource(uri) => self.uris.contains(&**uri),
        }
    }
}
