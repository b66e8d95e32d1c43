//! Tests of change notifications for files and for the list of files.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tokio::sync::broadcast::Receiver;
use tokio::time::timeout;
use toolgate_contract::{
    Caller, ChangeFeed, KeepActiveGuard, ResourceSource, ServerChange, ToolContext,
};
use toolgate_world::Root;

use super::space::TestWorkspace;
use crate::files::{self, FileSettings};

/// The longest wait for a notification that must arrive.
const NOTIFICATION_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after which no more notifications can arrive. It is longer than the time for which the
/// server gathers notifications.
const QUIET: Duration = Duration::from_millis(400);

/// Workspace that records the change notifications of its files.
struct WatchedWorkspace {
    space: TestWorkspace,
    source: Arc<dyn ResourceSource>,
    changes: ChangeFeed,
    receiver: Receiver<ServerChange>,
}

impl WatchedWorkspace {
    fn new() -> Self {
        Self::with(TestWorkspace::new())
    }

    fn with(space: TestWorkspace) -> Self {
        let source = files::resources(&Root::open(&space.ws).unwrap(), &FileSettings::default());
        let changes = ChangeFeed::default();
        let (sender, receiver) = tokio::sync::broadcast::channel(1024);
        changes.subscribe(move |change| drop(sender.send(change.clone())));
        Self { space, source, changes, receiver }
    }

    fn uri(&self, path: &str) -> String {
        format!("file://{}/{path}", self.space.ws.display())
    }

    async fn watch(&self, path: &str) -> KeepActiveGuard {
        let ctx = ToolContext::detached(Caller::local(), Instant::now() + Duration::from_secs(60));
        self.source
            .watch(&ctx, &self.uri(path), &self.changes)
            .await
            .expect("the file can be watched")
    }

    /// Watches the list of files. Then creates a file, and waits for its notification.
    async fn watch_list(&mut self) -> KeepActiveGuard {
        let guard = self.source.watch_list(&self.changes);
        // Changes after the subscription are notified even if not all folders are watched yet.
        self.space.put("first", "");
        self.expect_list_change().await;
        self.drain().await;
        guard
    }

    /// Checks that the next notification is about the file at `path`.
    async fn expect_change(&mut self, path: &str) {
        let expected = ServerChange::Resource(self.uri(path).into());
        let change = timeout(NOTIFICATION_TIMEOUT, self.receiver.recv()).await;
        assert_eq!(change.expect("a notification arrives in time").unwrap(), expected);
    }

    /// Checks that the next notification is about the list of files.
    async fn expect_list_change(&mut self) {
        let change = timeout(NOTIFICATION_TIMEOUT, self.receiver.recv()).await;
        let change = change.expect("a notification arrives in time").unwrap();
        assert_eq!(change, ServerChange::Resources);
    }

    /// Returns all notifications until none arrives for a while.
    async fn drain(&mut self) -> Vec<ServerChange> {
        let mut rest = Vec::new();
        while let Ok(change) = timeout(QUIET, self.receiver.recv()).await {
            rest.push(change.unwrap());
        }
        rest
    }

    fn rename(&self, from: &str, to: &str) {
        fs::rename(self.space.ws.join(from), self.space.ws.join(to)).unwrap();
    }
}

/// Returns the number of inotify queues that this process has open.
fn open_queues() -> usize {
    let open = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let links = open.filter_map(|entry| fs::read_link(entry.path()).ok());
    links.filter(|link| link == Path::new("anon_inode:inotify")).count()
}

async fn wait_until(event: &str, mut has_happened: impl FnMut() -> bool) {
    let deadline = Instant::now() + NOTIFICATION_TIMEOUT;
    while !has_happened() {
        assert!(Instant::now() < deadline, "{event} did not happen");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn every_kind_of_file_change_is_notified() {
    let mut it = WatchedWorkspace::new();
    it.space.put("src/a b", "one");
    let _guard = it.watch("src/a%20b").await;
    it.space.put("src/a b", "two!");
    it.expect_change("src/a%20b").await;
    it.space.put("src/new", "three");
    it.rename("src/new", "src/a b");
    it.expect_change("src/a%20b").await;
    fs::remove_file(it.space.ws.join("src/a b")).unwrap();
    it.expect_change("src/a%20b").await;
    it.space.put("src/a b", "four");
    it.expect_change("src/a%20b").await;
    let mut open = File::options().append(true).open(it.space.ws.join("src/a b")).unwrap();
    open.write_all(b"five").unwrap();
    it.expect_change("src/a%20b").await;
    assert_eq!(it.drain().await, []);
}

#[tokio::test]
async fn a_change_is_notified_within_200_ms() {
    let mut it = WatchedWorkspace::new();
    it.space.put("f", "");
    let _guard = it.watch("f").await;
    let mut took = Vec::new();
    for at in 0..5 {
        let started = Instant::now();
        it.space.put("f", "x".repeat(at + 1));
        it.expect_change("f").await;
        took.push(started.elapsed());
    }
    // Only the fastest counts, because the machine may be busy.
    assert!(took.iter().min().unwrap() < &Duration::from_millis(200), "{took:?}");
}

#[tokio::test]
async fn events_that_do_not_change_the_file_are_not_notified() {
    let mut it = WatchedWorkspace::new();
    it.space.put("d/f", "one");
    it.space.put("d/other", "one");
    // A later write in the same clock tick would not be distinguishable.
    let written = fs::metadata(it.space.ws.join("d/f")).unwrap();
    let written = (written.ctime(), written.ctime_nsec());
    wait_until("the next tick", || {
        let now = clock_gettime(ClockId::RealtimeCoarse);
        (now.tv_sec, now.tv_nsec) > written
    })
    .await;
    let _guard = it.watch("d/f").await;
    it.space.put("d/other", "two");
    it.space.put("d/third", "");
    it.space.put("e/f", "");
    fs::read(it.space.ws.join("d/f")).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs::set_permissions(it.space.ws.join("d/f"), mode).unwrap();
    // The file is moved away and back before the watcher looks.
    it.rename("d/f", "d/g");
    it.rename("d/g", "d/f");
    assert_eq!(it.drain().await, []);
}

#[tokio::test]
async fn many_quick_saves_give_few_notifications_including_the_last() {
    let mut it = WatchedWorkspace::new();
    it.space.put("f", "");
    let _guard = it.watch("f").await;
    let started = Instant::now();
    for at in 0..2000 {
        it.space.put("f", at.to_string());
        if at % 50 == 0 {
            tokio::task::yield_now().await;
        }
    }
    let rest = it.drain().await;
    let most = started.elapsed().as_millis() / 50 + 2;
    assert!(!rest.is_empty() && (rest.len() as u128) < most.min(100), "{} changes", rest.len());
}

#[tokio::test]
async fn a_file_is_watched_even_if_parent_folders_are_replaced() {
    let mut it = WatchedWorkspace::new();
    it.space.put("a/b/c/f", "one");
    it.space.put("x/b/c/f", "other");
    let _guard = it.watch("a/b/c/f").await;
    it.rename("a", "old");
    it.expect_change("a/b/c/f").await;
    it.rename("x", "a");
    it.expect_change("a/b/c/f").await;
    it.space.put("a/b/c/f", "changed");
    it.expect_change("a/b/c/f").await;
    fs::remove_dir_all(it.space.ws.join("a")).unwrap();
    it.expect_change("a/b/c/f").await;
    it.space.put("old/b/c/f", "nobody's business");
    assert_eq!(it.drain().await, []);
    it.space.put("a/b/c/f", "back");
    it.expect_change("a/b/c/f").await;
}

#[tokio::test]
async fn a_missing_file_is_notified_when_it_is_created() {
    let mut it = WatchedWorkspace::new();
    let _guard = it.watch("not/yet/here").await;
    it.space.put("not/yet/other", "");
    assert_eq!(it.drain().await, []);
    it.space.put("not/yet/here", "");
    it.expect_change("not/yet/here").await;
}

#[tokio::test]
async fn a_change_through_a_symlink_is_notified_and_one_outside_is_not() {
    let mut it = WatchedWorkspace::new();
    it.space.put("real/f", "one");
    it.space.symlink("real/f", "link");
    it.space.symlink("real", "dir");
    let _link = it.watch("link").await;
    it.space.put("real/f", "more");
    it.expect_change("link").await;
    let _dir = it.watch("dir/f").await;
    drop(_link);
    it.space.put("real/f", "and more");
    it.expect_change("dir/f").await;
    assert_eq!(it.drain().await, []);
    fs::remove_file(it.space.ws.join("dir")).unwrap();
    it.space.symlink(&it.space.evil, "dir");
    it.expect_change("dir/f").await;
    fs::write(it.space.evil.join("f"), "outside").unwrap();
    assert_eq!(it.drain().await, []);
    fs::remove_file(it.space.evil.join("f")).unwrap();
}

#[tokio::test]
async fn a_change_is_notified_once_for_each_watched_uri() {
    let mut it = WatchedWorkspace::new();
    it.space.put("a b", "");
    let _guards = [it.watch("a%20b").await, it.watch("a%20b").await, it.watch("%61%20b").await];
    it.space.put("a b", "1");
    it.expect_change("%61%20b").await;
    it.expect_change("a%20b").await;
    assert_eq!(it.drain().await, []);
}

#[tokio::test]
async fn no_watch_is_open_without_subscriptions() {
    let mut it = WatchedWorkspace::new();
    it.space.put("f", "");
    // Each test runs in its own process.
    assert_eq!(open_queues(), 0);
    let one = it.watch("f").await;
    let two = it.source.watch_list(&it.changes);
    let copy = one.clone();
    assert_eq!(open_queues(), 1);
    drop(one);
    it.drain().await;
    it.space.put("f", "1");
    it.expect_change("f").await;
    drop(copy);
    drop(two);
    wait_until("the end of the watch", || open_queues() == 0).await;
    it.drain().await;
    it.space.put("f", "2");
    it.space.put("g", "");
    assert_eq!(it.drain().await, []);
    let _again = it.watch("f").await;
    it.space.put("f", "333");
    it.expect_change("f").await;
}

#[tokio::test]
async fn the_list_is_notified_only_if_files_appear_or_disappear() {
    let mut it = WatchedWorkspace::new();
    it.space.put("src/a", "");
    it.space.put(".gitignore", "/target\n*.log\n");
    it.space.put("target/x", "");
    let _guard = it.watch_list().await;
    it.space.put("src/a", "written");
    it.space.put("src/a.log", "");
    it.space.put("target/y", "");
    it.space.put("target/deep/z", "");
    fs::create_dir(it.space.ws.join("empty")).unwrap();
    it.space.put("src/.new", "saved by rename");
    it.rename("src/.new", "src/a");
    assert_eq!(it.drain().await, []);
    it.space.put("src/b", "");
    it.expect_list_change().await;
    it.space.put("deep/er/est/f", "");
    it.expect_list_change().await;
    it.space.put("deep/er/est/g", "");
    it.expect_list_change().await;
    fs::remove_file(it.space.ws.join("src/b")).unwrap();
    it.expect_list_change().await;
    it.rename("deep", "shallow");
    it.expect_list_change().await;
    it.space.put("shallow/er/est/h", "");
    it.expect_list_change().await;
    fs::remove_dir_all(it.space.ws.join("shallow")).unwrap();
    it.expect_list_change().await;
    assert_eq!(it.drain().await, []);
    it.space.put(".gitignore", "*.log\n");
    it.expect_list_change().await;
    it.space.put("target/deep/zz", "");
    it.expect_list_change().await;
    assert_eq!(it.drain().await, []);
}

#[tokio::test]
async fn the_list_is_notified_when_the_ignore_rules_of_git_select_other_files() {
    let mut it = WatchedWorkspace::new();
    it.space.put("z/deep.rs", "");
    fs::create_dir(it.space.ws.join(".git")).unwrap();
    let _watch = it.watch_list().await;
    let info = it.space.ws.join(".git/info");
    it.space.put(".git/info/exclude", "z/\n");
    it.expect_list_change().await;
    it.space.put(".git/info/exclude", "y/\n");
    it.expect_list_change().await;
    it.space.put(".git/info/exclude", "z/\n");
    it.expect_list_change().await;
    fs::rename(&info, it.space.ws.join(".git/other")).unwrap();
    it.expect_list_change().await;
}

#[tokio::test]
async fn a_file_stays_watched_after_the_list_watch_ends() {
    let mut it = WatchedWorkspace::new();
    it.space.put("d/f", "");
    let list = it.watch_list().await;
    let _guard = it.watch("d/f").await;
    drop(list);
    it.space.put("d/g", "");
    it.space.put("d/f", "1");
    it.expect_change("d/f").await;
    assert_eq!(it.drain().await, []);
}

#[tokio::test]
async fn a_kernel_queue_overflow_notifies_everything() {
    let mut it = WatchedWorkspace::with(TestWorkspace::in_memory());
    it.space.put("f", "");
    let _guard = (it.watch("f").await, it.watch_list().await);
    let most: usize = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events")
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    if most > 100_000 {
        return;
    }
    // The single thread makes all changes before the watcher can look.
    for at in 0..=most {
        let path = it.space.ws.join(format!("n{}", at % 2));
        if File::create(&path).is_ok() && at % 2 == 1 {
            fs::remove_file(&path).unwrap();
        }
    }
    let rest = it.drain().await;
    assert!(rest.contains(&ServerChange::Resources), "{rest:?}");
    assert!(rest.contains(&ServerChange::Resource(it.uri("f").into())), "{rest:?}");
}
