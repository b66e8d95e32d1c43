//! Matches file system events with subscriptions and notifies the subscribers.

use std::collections::BTreeMap;

use toolgate_contract::{ServerChange, ToolError, ToolErrorKind, lock_mutex};

use super::folder_watches::{FolderWatchError, FolderWatches, WatchedEntryChange};
use super::watched_files::{WatchedFiles, notify_once};
use super::workspace_listing::WorkspaceListing;
use super::{SharedWatchState, WorkspaceListWatchRequest};
use crate::Root;

/// The files and folders that are watched below one root. The methods read files, so they block.
pub(super) struct RootWatchSet {
    root: Root,
    watches: FolderWatches,
    files: WatchedFiles,
    listing: Option<WorkspaceListing>,
    lists: BTreeMap<u64, WorkspaceListWatchRequest>,
}

impl RootWatchSet {
    pub(super) fn new(root: &Root, watches: FolderWatches) -> Self {
        Self {
            root: root.clone(),
            watches,
            files: WatchedFiles::default(),
            listing: None,
            lists: BTreeMap::new(),
        }
    }

    /// Starts and stops watches according to the current subscriptions.
    pub(super) fn apply_requests(&mut self, shared: &SharedWatchState) {
        let mut new = Vec::new();
        let mut gone = self.files.listeners();
        let lists = {
            let mut wanted = lock_mutex(&shared.requests);
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
            self.files.remove(*number);
        }
        for (listener, path, uri, ready) in new {
            let added = self.files.add(&self.root, &mut self.watches, listener, (&path, &uri));
            // The subscriber may have gone.
            let _ = ready.send(added.map_err(watch_error));
        }
        self.set_lists(lists);
        self.drop_unneeded();
    }

    /// Watches the list of the workspace's files for the subscribers `lists`.
    fn set_lists(&mut self, lists: BTreeMap<u64, WorkspaceListWatchRequest>) {
        self.lists = lists;
        let Some(since) = self.lists.values().map(|list| list.since).min() else {
            self.listing = None;
            return;
        };
        if self.listing.is_none() {
            let (listing, changed) = WorkspaceListing::new(&self.root, &mut self.watches, since);
            self.listing = Some(listing);
            if changed {
                self.notify_list();
            }
        }
    }

    /// Processes all pending events and notifies the subscribers of changed files.
    pub(super) fn process_events(&mut self) {
        let news = self.watches.read_events();
        let mut files =
            if news.has_overflowed { self.files.all_uris() } else { Default::default() };
        for path in &news.gone {
            files.extend(self.files.uris_at(path));
        }
        for (folder, name, _) in &news.entries {
            files.extend(self.files.uris_at(&folder.join(name)));
        }
        for uri in &files {
            let looked = self.files.check_file(&self.root, &mut self.watches, uri);
            if looked.is_err() {
                tracing::warn!("`{uri}` is not watched completely: too many watches are active");
            }
            if news.has_overflowed || looked != Ok(false) {
                self.files.notify(uri);
            }
        }
        let Some(listing) = &mut self.listing else { return };
        for path in &news.gone {
            listing.note_folder_gone(path);
        }
        for (folder, name, happening) in &news.entries {
            match happening {
                WatchedEntryChange::Name => listing.note_name_change(folder, name),
                WatchedEntryChange::Content => listing.note_write(folder, name),
            }
        }
        if news.has_overflowed {
            listing.invalidate();
            self.notify_list();
        }
    }

    /// Returns `true` if the list of the workspace's files is outdated and must be refreshed now.
    pub(super) fn is_list_due(&self) -> bool {
        self.listing.as_ref().is_some_and(WorkspaceListing::is_stale)
    }

    /// Refreshes the file list, and notifies its subscribers if it changed.
    pub(super) fn refresh_list(&mut self) {
        let Some(listing) = &mut self.listing else { return };
        if listing.refresh(&self.root, &mut self.watches) {
            self.notify_list();
        }
        self.drop_unneeded();
    }

    /// Removes the watches that no subscriber needs.
    fn drop_unneeded(&mut self) {
        let Self { watches: places, files: content, listing, .. } = self;
        places.retain(|path| {
            content.needs_folder(path)
                || listing.as_ref().is_some_and(|listing| listing.needs_folder(path))
        });
    }

    fn notify_list(&self) {
        notify_once(self.lists.values().map(|list| &list.changes), &ServerChange::Resources);
    }
}

fn watch_error(unwatched: FolderWatchError) -> ToolError {
    let message = match unwatched {
        FolderWatchError::Full => {
            "files cannot be watched now: too many watches are active; end some of them"
        }
        FolderWatchError::Absent => "the workspace cannot be watched",
    };
    ToolError::new(ToolErrorKind::Unavailable, message)
}
