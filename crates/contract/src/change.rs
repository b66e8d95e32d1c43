//! What changes while it is served, told to whoever listens.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Something that is not as it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Which tools there are.
    Tools,
    /// Which prompts there are.
    Prompts,
    /// Which resources there are.
    Resources,
    /// What the resource read by this holds.
    Resource(Arc<str>),
}

/// Where changes are told. Clones are one.
#[derive(Clone, Default)]
pub struct Changes(Arc<Mutex<Vec<Hearer>>>);

type Hearer = Arc<dyn Fn(&Change) + Send + Sync>;

impl Changes {
    /// Tells whoever hears.
    pub fn tell(&self, change: &Change) {
        let hearers = self.hearers().clone();
        for hear in hearers {
            hear(change);
        }
    }

    /// Has `hear`, which must not block, hear what is told from now on.
    pub fn heard_by(&self, hear: impl Fn(&Change) + Send + Sync + 'static) {
        self.hearers().push(Arc::new(hear));
    }

    /// Whether `other` is a clone of this.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    fn hearers(&self) -> MutexGuard<'_, Vec<Hearer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a client wants to be told of.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Interest {
    /// Which tools there are.
    pub tools: bool,
    /// Which prompts there are.
    pub prompts: bool,
    /// Which resources there are.
    pub resources: bool,
    /// What these resources hold.
    pub uris: BTreeSet<String>,
    /// How these jobs are.
    pub jobs: BTreeSet<String>,
}

impl Interest {
    /// Whether it is in `change`.
    pub fn is_in(&self, change: &Change) -> bool {
        match change {
            Change::Tools => self.tools,
            Change::Prompts => self.prompts,
            Change::Resources => self.resources,
            Change::Resource(uri) => self.uris.contains(&**uri),
        }
    }
}
