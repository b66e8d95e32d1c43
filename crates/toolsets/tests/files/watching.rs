//! Who is told of what changes, and how soon.

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
    Caller, ChangeFeed, ResourceSource, ServerChange, ToolContext, WatchGuard,
};
use toolgate_toolsets::files::{self, FileSettings};
use toolgate_world::Root;

use crate::space::Space;

/// Longer than anything takes that comes at all.
const SOON: Duration = Duration::from_secs(10);
/// Longer than what is told is gathered.
const QUIET: Duration = Duration::from_millis(400);

/// A workspace that is listened to.
struct Watched {
    space: Space,
    source: Arc<dyn ResourceSource>,
    changes: ChangeFeed,
    heard: Receiver<ServerChange>,
}

impl Watched {
    fn new() -> Self {
        let space = Space::new();
        let source = files::resources(&Root::open(&space.ws).unwrap(), &FileSettings::default());
        let changes = ChangeFeed::default();
        let (told, heard) = tokio::sync::broadcast::channel(1024);
        changes.subscribe(move |change| drop(told.send(change.clone())));
        Self { space, source, changes, heard }
    }

    fn uri(&self, path: &str) -> String {
        format!("file://{}/{path}", self.space.ws.display())
    }

    async fn watch(&self, path: &str) -> WatchGuard {
        let ctx = ToolContext::detached(Caller::local(), Instant::now() + Duration::from_secs(60));
        self.source.watch(&ctx, &self.uri(path), &self.changes).await.expect("it is watched")
    }

    /// Watches the list, and waits until files that come are told of.
    async fn watch_list(&mut self) -> WatchGuard {
        let hold = self.source.watch_list(&self.changes);
        // From the moment of the subscription on, whether all is watched by now or not.
        self.space.put("first", "");
        self.hears_list().await;
        self.rest().await;
        hold
    }

    /// The next thing told is that the file at `path` has changed.
    async fn hears(&mut self, path: &str) {
        let expected = ServerChange::Resource(self.uri(path).into());
        let heard = timeout(SOON, self.heard.recv()).await;
        assert_eq!(heard.expect("nothing was told").unwrap(), expected);
    }

    async fn hears_list(&mut self) {
        let heard = timeout(SOON, self.heard.recv()).await;
        assert_eq!(heard.expect("nothing was told").unwrap(), ServerChange::Resources);
    }

    /// Everything that is told until it is quiet.
    async fn rest(&mut self) -> Vec<ServerChange> {
        let mut rest = Vec::new();
        while let Ok(heard) = timeout(QUIET, self.heard.recv()).await {
            rest.push(heard.unwrap());
        }
        rest
    }

    fn rename(&self, from: &str, to: &str) {
        fs::rename(self.space.ws.join(from), self.space.ws.join(to)).unwrap();
    }
}

/// How many of the kernel's queues this process has open.
fn queues() -> usize {
    let open = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let links = open.filter_map(|entry| fs::read_link(entry.path()).ok());
    links.filter(|link| link == Path::new("anon_inode:inotify")).count()
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let give_up = Instant::now() + SOON;
    while !is_so() {
        assert!(Instant::now() < give_up, "{what} did not happen");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn every_way_to_change_a_file_is_told() {
    let mut it = Watched::new();
    it.space.put("src/a b", "one");
    let _hold = it.watch("src/a%20b").await;
    it.space.put("src/a b", "two!");
    it.hears("src/a%20b").await;
    it.space.put("src/new", "three");
    it.rename("src/new", "src/a b");
    it.hears("src/a%20b").await;
    fs::remove_file(it.space.ws.join("src/a b")).unwrap();
    it.hears("src/a%20b").await;
    it.space.put("src/a b", "four");
    it.hears("src/a%20b").await;
    let mut open = File::options().append(true).open(it.space.ws.join("src/a b")).unwrap();
    open.write_all(b"five").unwrap();
    it.hears("src/a%20b").await;
    assert_eq!(it.rest().await, []);
}

#[tokio::test]
async fn a_change_is_told_within_a_fifth_of_a_second() {
    let mut it = Watched::new();
    it.space.put("f", "");
    let _hold = it.watch("f").await;
    let mut took = Vec::new();
    for at in 0..5 {
        let since = Instant::now();
        it.space.put("f", "x".repeat(at + 1));
        it.hears("f").await;
        took.push(since.elapsed());
    }
    // The best of them: the machine may be busy.
    assert!(took.iter().min().unwrap() < &Duration::from_millis(200), "{took:?}");
}

#[tokio::test]
async fn what_does_not_change_the_file_is_not_told() {
    let mut it = Watched::new();
    it.space.put("d/f", "one");
    it.space.put("d/other", "one");
    // What was written in this tick of the clock cannot be told from what is written next.
    let written = fs::metadata(it.space.ws.join("d/f")).unwrap();
    let written = (written.ctime(), written.ctime_nsec());
    until("the next tick", || {
        let now = clock_gettime(ClockId::RealtimeCoarse);
        (now.tv_sec, now.tv_nsec) > written
    })
    .await;
    let _hold = it.watch("d/f").await;
    it.space.put("d/other", "two");
    it.space.put("d/third", "");
    it.space.put("e/f", "");
    fs::read(it.space.ws.join("d/f")).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs::set_permissions(it.space.ws.join("d/f"), mode).unwrap();
    // There and back again before anybody looks.
    it.rename("d/f", "d/g");
    it.rename("d/g", "d/f");
    assert_eq!(it.rest().await, []);
}

#[tokio::test]
async fn many_quick_saves_are_few_changes_and_the_last_is_told() {
    let mut it = Watched::new();
    it.space.put("f", "");
    let _hold = it.watch("f").await;
    let since = Instant::now();
    for at in 0..2000 {
        it.space.put("f", at.to_string());
        if at % 50 == 0 {
            tokio::task::yield_now().await;
        }
    }
    let rest = it.rest().await;
    let most = since.elapsed().as_millis() / 50 + 2;
    assert!(!rest.is_empty() && (rest.len() as u128) < most.min(100), "{} changes", rest.len());
}

#[tokio::test]
async fn a_file_is_followed_where_the_folders_above_it_are_replaced() {
    let mut it = Watched::new();
    it.space.put("a/b/c/f", "one");
    it.space.put("x/b/c/f", "other");
    let _hold = it.watch("a/b/c/f").await;
    it.rename("a", "old");
    it.hears("a/b/c/f").await;
    it.rename("x", "a");
    it.hears("a/b/c/f").await;
    it.space.put("a/b/c/f", "changed");
    it.hears("a/b/c/f").await;
    fs::remove_dir_all(it.space.ws.join("a")).unwrap();
    it.hears("a/b/c/f").await;
    it.space.put("old/b/c/f", "nobody's business");
    assert_eq!(it.rest().await, []);
    it.space.put("a/b/c/f", "back");
    it.hears("a/b/c/f").await;
}

#[tokio::test]
async fn a_file_that_is_not_there_yet_is_told_of_when_it_comes() {
    let mut it = Watched::new();
    let _hold = it.watch("not/yet/here").await;
    it.space.put("not/yet/other", "");
    assert_eq!(it.rest().await, []);
    it.space.put("not/yet/here", "");
    it.hears("not/yet/here").await;
}

#[tokio::test]
async fn a_change_through_a_symlink_is_told_and_one_outside_is_not() {
    let mut it = Watched::new();
    it.space.put("real/f", "one");
    it.space.symlink("real/f", "link");
    it.space.symlink("real", "dir");
    let _link = it.watch("link").await;
    it.space.put("real/f", "more");
    it.hears("link").await;
    let _dir = it.watch("dir/f").await;
    drop(_link);
    it.space.put("real/f", "and more");
    it.hears("dir/f").await;
    assert_eq!(it.rest().await, []);
    fs::remove_file(it.space.ws.join("dir")).unwrap();
    it.space.symlink(&it.space.evil, "dir");
    it.hears("dir/f").await;
    fs::write(it.space.evil.join("f"), "outside").unwrap();
    assert_eq!(it.rest().await, []);
    fs::remove_file(it.space.evil.join("f")).unwrap();
}

#[tokio::test]
async fn one_file_is_told_by_each_name_it_is_watched_by_and_once_for_all_who_watch() {
    let mut it = Watched::new();
    it.space.put("a b", "");
    let _holds = [it.watch("a%20b").await, it.watch("a%20b").await, it.watch("%61%20b").await];
    it.space.put("a b", "1");
    it.hears("%61%20b").await;
    it.hears("a%20b").await;
    assert_eq!(it.rest().await, []);
}

#[tokio::test]
async fn nothing_is_open_before_the_first_subscription_and_after_the_last() {
    let mut it = Watched::new();
    it.space.put("f", "");
    // Tests run in processes of their own.
    assert_eq!(queues(), 0);
    let one = it.watch("f").await;
    let two = it.source.watch_list(&it.changes);
    let copy = one.clone();
    assert_eq!(queues(), 1);
    drop(one);
    it.rest().await;
    it.space.put("f", "1");
    it.hears("f").await;
    drop(copy);
    drop(two);
    until("the end of the watch", || queues() == 0).await;
    it.rest().await;
    it.space.put("f", "2");
    it.space.put("g", "");
    assert_eq!(it.rest().await, []);
    let _again = it.watch("f").await;
    it.space.put("f", "333");
    it.hears("f").await;
}

#[tokio::test]
async fn the_list_is_told_of_when_files_come_and_go_and_only_then() {
    let mut it = Watched::new();
    it.space.put("src/a", "");
    it.space.put(".gitignore", "/target\n*.log\n");
    it.space.put("target/x", "");
    let _hold = it.watch_list().await;
    it.space.put("src/a", "written");
    it.space.put("src/a.log", "");
    it.space.put("target/y", "");
    it.space.put("target/deep/z", "");
    fs::create_dir(it.space.ws.join("empty")).unwrap();
    it.space.put("src/.new", "saved by rename");
    it.rename("src/.new", "src/a");
    assert_eq!(it.rest().await, []);
    it.space.put("src/b", "");
    it.hears_list().await;
    it.space.put("deep/er/est/f", "");
    it.hears_list().await;
    it.space.put("deep/er/est/g", "");
    it.hears_list().await;
    fs::remove_file(it.space.ws.join("src/b")).unwrap();
    it.hears_list().await;
    it.rename("deep", "shallow");
    it.hears_list().await;
    it.space.put("shallow/er/est/h", "");
    it.hears_list().await;
    fs::remove_dir_all(it.space.ws.join("shallow")).unwrap();
    it.hears_list().await;
    assert_eq!(it.rest().await, []);
    it.space.put(".gitignore", "*.log\n");
    it.hears_list().await;
    it.space.put("target/deep/zz", "");
    it.hears_list().await;
    assert_eq!(it.rest().await, []);
}

#[tokio::test]
async fn a_file_goes_on_being_watched_when_the_list_is_not_any_more() {
    let mut it = Watched::new();
    it.space.put("d/f", "");
    let list = it.watch_list().await;
    let _hold = it.watch("d/f").await;
    drop(list);
    it.space.put("d/g", "");
    it.space.put("d/f", "1");
    it.hears("d/f").await;
    assert_eq!(it.rest().await, []);
}

#[tokio::test]
async fn so_much_that_the_kernel_forgets_some_of_it_is_told_as_all() {
    let mut it = Watched::new();
    it.space.put("f", "");
    let _hold = (it.watch("f").await, it.watch_list().await);
    let most: usize = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events")
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    if most > 100_000 {
        return;
    }
    // All before anybody on this one thread can look.
    for at in 0..=most {
        let path = it.space.ws.join(format!("n{}", at % 2));
        if File::create(&path).is_ok() && at % 2 == 1 {
            fs::remove_file(&path).unwrap();
        }
    }
    let rest = it.rest().await;
    assert!(rest.contains(&ServerChange::Resources), "{rest:?}");
    assert!(rest.contains(&ServerChange::Resource(it.uri("f").into())), "{rest:?}");
}
