//! Matches file system events with subscriptions and notifies the subscribers.

use std::collections::BTreeMap;

use toolgate_contract::{Change, Fault, ToolError};

use super::content::{Content, tell};
use super::listing::Listing;
use super::places::{Happening, Places, Unwatched};
use super::{Shared, WantedList};
use crate::world::Root;

/// Everything that is watched below one root. Its methods read files, so they block.
pub(super) struct Lookout {
    root: Root,
    places: Places,
    content: Content,
    listing: Option<Listing>,
    lists: BTreeMap<u64, WantedList>,
}

impl Lookout {
    pub(super) fn new(root: &Root, places: Places) -> Self {
        Self {
            root: root.clone(),
            places,
            content: Content::default(),
            listing: None,
            lists: BTreeMap::new(),
        }
    }

    /// Applies the current subscriptions.
    pub(super) fn arrange(&mut self, shared: &Shared) {
        let mut new = Vec::new();
        let mut gone = self.content.listeners();
        let lists = {
            let mut wanted = shared.wanted();
            for (&number, file) in &mut wanted.files {
                gone.remove(&number);
                if let Some(ready) = file.ready.take() {
                    let listener = (number, file.changes.clone());
                    new.push((listener, file.path.clone(), file.uri.clone(), ready));
                }
            }
            wanted.lists.clone()
        };
        for number in &gone {
            self.content.remove(*number);
        }
        for (listener, path, uri, ready) in new {
            let added = self.content.add(&self.root, &mut self.places, listener, (&path, &uri));
            // The subscriber may have gone.
            let _ = ready.send(added.map_err(full));
        }
        self.list_for(lists);
        self.leave_rest();
    }

    /// Watches the file list for the subscribers `lists`.
    fn list_for(&mut self, lists: BTreeMap<u64, WantedList>) {
        self.lists = lists;
        let Some(since) = self.lists.values().map(|list| list.since).min() else {
            self.listing = None;
            return;
        };
        if self.listing.is_none() {
            let (listing, changed) = Listing::of(&self.root, &mut self.places, since);
            self.listing = Some(listing);
            if changed {
                self.tell_list();
            }
        }
    }

    /// Processes all pending events and notifies the subscribers of changed files.
    pub(super) fn look(&mut self) {
        let news = self.places.news();
        let mut files = if news.lost { self.content.all() } else { Default::default() };
        for path in &news.gone {
            files.extend(self.content.at(path));
        }
        for (folder, name, _) in &news.entries {
            files.extend(self.content.at(&folder.join(name)));
        }
        for uri in &files {
            let looked = self.content.look(&self.root, &mut self.places, uri);
            if looked.is_err() {
                tracing::warn!("`{uri}` is not watched as a whole: there are too many watches");
            }
            if news.lost || looked != Ok(false) {
                self.content.tell(uri);
            }
        }
        let Some(listing) = &mut self.listing else { return };
        for path in &news.gone {
            listing.gone(path);
        }
        for (folder, name, happening) in &news.entries {
            match happening {
                Happening::Name => listing.named(folder, name),
                Happening::Content => listing.written(folder, name),
            }
        }
        if news.lost {
            listing.lost();
            self.tell_list();
        }
    }

    /// Returns `true` if the file list must be refreshed.
    pub(super) fn is_list_due(&self) -> bool {
        self.listing.as_ref().is_some_and(Listing::is_stale)
    }

    /// Refreshes the file list, and notifies its subscribers if it changed.
    pub(super) fn list(&mut self) {
        let Some(listing) = &mut self.listing else { return };
        if listing.look(&self.root, &mut self.places) {
            self.tell_list();
        }
        self.leave_rest();
    }

    /// Removes watches that nobody needs.
    fn leave_rest(&mut self) {
        let Self { places, content, listing, .. } = self;
        places.keep(|path| {
            content.needs(path) || listing.as_ref().is_some_and(|listing| listing.has(path))
        });
    }

    fn tell_list(&self) {
        tell(self.lists.values().map(|list| &list.changes), &Change::Resources);
    }
}

fn full(unwatched: Unwatched) -> ToolError {
    let message = match unwatched {
        Unwatched::Full => "files cannot be watched now: there are too many watches; end others",
        Unwatched::Absent => "the workspace cannot be watched",
    };
    ToolError::new(Fault::Unavailable, message)
}
