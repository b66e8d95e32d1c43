//! Tests of races, such as a directory that is swapped for a symlink while it is used.

use std::fs;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, RenameFlags, open, renameat_with};
use serde_json::json;

use super::space::TestWorkspace;

const TRIES: u32 = 1000;

/// Swaps the directory `x` and the symlink `xl`, which leads outside, again and again until this
/// value is dropped.
struct DirectorySwapper {
    stop: Arc<AtomicBool>,
    swaps: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl DirectorySwapper {
    fn start(space: &TestWorkspace) -> Self {
        space.put("x/secret", "inside");
        space.symlink(&space.evil, "xl");
        let stop = Arc::new(AtomicBool::new(false));
        let swaps = Arc::new(AtomicU64::new(0));
        let thread_stop = stop.clone();
        let thread_swaps = swaps.clone();
        let ws = open(&space.ws, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let thread = thread::spawn(move || {
            while !thread_stop.load(Ordering::Relaxed) {
                renameat_with(ws.as_fd(), "x", ws.as_fd(), "xl", RenameFlags::EXCHANGE).unwrap();
                thread_swaps.fetch_add(1, Ordering::Relaxed);
                thread::yield_now();
            }
        });
        Self { stop, swaps, thread: Some(thread) }
    }
}

impl DirectorySwapper {
    fn assert_raced(&self) {
        assert!(self.swaps.load(Ordering::Relaxed) > 100, "the race did not happen");
    }
}

impl Drop for DirectorySwapper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_swapped_for_a_symlink_never_leaks_outside_content() {
    let space = TestWorkspace::new();
    let swapper = DirectorySwapper::start(&space);
    let mut read = 0;
    for _ in 0..TRIES {
        if let Ok(output) = space.run("files.read", json!({ "path": "x/secret" })).await {
            assert_eq!(output.value["content"], "inside");
            read += 1;
        }
        if let Ok(output) = space.run("files.search", json!({ "path": "x", "query": "a|i" })).await
        {
            assert!(!output.text.body.contains("canary"), "{}", output.text.body);
        }
    }
    assert!(read > 0);
    swapper.assert_raced();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_swapped_for_a_symlink_never_allows_changes_outside() {
    let space = TestWorkspace::new();
    let swapper = DirectorySwapper::start(&space);
    let mut written = 0;
    for at in 0..TRIES {
        let new = json!({ "path": format!("x/new_{at}"), "content": "w" });
        written += u32::from(space.run("files.write", new).await.is_ok());
        match at % 4 {
            0 => {
                let input = json!({ "path": format!("x/dir_{at}/deep") });
                drop(space.run("files.mkdir", input).await);
            }
            1 => {
                let edits = json!([{ "old": "canary", "new": "x" }]);
                drop(space.run("files.edit", json!({ "path": "x/secret", "edits": edits })).await);
            }
            2 => drop(space.run("files.delete", json!({ "path": "x/secret" })).await),
            _ => {
                let input = json!({ "source": format!("x/new_{at}"), "destination": format!("x/moved_{at}") });
                drop(space.run("files.move", input).await);
            }
        }
    }
    swapper.assert_raced();
    drop(swapper);
    assert!(written > 0);
    space.assert_outside_unchanged();
}

/// Checks that a program that checks a path and then opens it can read outside content. This shows
/// that the tests above can fail.
#[test]
fn a_path_checked_and_then_opened_leaks_outside_content() {
    let space = TestWorkspace::new();
    let _swapper = DirectorySwapper::start(&space);
    let path = space.ws.join("x/secret");
    let leaked = (0..200_000).any(|_| {
        let inside =
            fs::canonicalize(&path).is_ok_and(|real| real.starts_with(Path::new(&space.ws)));
        inside && fs::read(&path).is_ok_and(|content| content == b"canary")
    });
    assert!(leaked, "the race no longer happens on this machine; the tests above prove less");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_one_of_several_writers_with_the_same_etag_succeeds() {
    let space = Arc::new(TestWorkspace::new());
    space.put("counter", "0");
    let mut writers = Vec::new();
    for _ in 0..4 {
        let space = space.clone();
        writers.push(tokio::spawn(async move {
            for _ in 0..50 {
                loop {
                    let read = space.ok("files.read", json!({ "path": "counter" })).await;
                    let count: u32 = read["content"].as_str().unwrap().parse().unwrap();
                    let input = json!({
                        "path": "counter",
                        "content": (count + 1).to_string(),
                        "if_match": read["etag"],
                    });
                    match space.run("files.write", input).await {
                        Ok(_) => break,
                        Err(failed) => assert_eq!(failed.reason, "conflict"),
                    }
                }
            }
        }));
    }
    for writer in writers {
        writer.await.unwrap();
    }
    assert_eq!(space.get("counter"), b"200");
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_edits_are_all_applied() {
    let space = Arc::new(TestWorkspace::new());
    space.put("f", (0..16).map(|at| format!("line {at:02} old\n")).collect::<String>());
    let editors = (0..16).map(|at| {
        let space = space.clone();
        tokio::spawn(async move {
            let edits =
                json!([{ "old": format!("line {at:02} old"), "new": format!("line {at:02} new") }]);
            space.ok("files.edit", json!({ "path": "f", "edits": edits })).await
        })
    });
    for editor in editors.collect::<Vec<_>>() {
        editor.await.unwrap();
    }
    let expected: String = (0..16).map(|at| format!("line {at:02} new\n")).collect();
    assert_eq!(String::from_utf8(space.get("f")).unwrap(), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_waits_a_limited_time_for_a_lock_of_another_process() {
    let space = TestWorkspace::new();
    space.put("f", "old");
    let dir = open(&space.ws, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    rustix::fs::flock(&dir, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let write = json!({ "path": "f", "content": "new", "overwrite": true });
    let failed = space.fails("files.write", write.clone()).await;
    assert_eq!(failed.reason, "unavailable");
    assert_eq!(space.get("f"), b"old");
    drop(dir);
    space.ok("files.write", write).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn writers_waiting_for_a_lock_do_not_wait_for_each_other() {
    let space = Arc::new(TestWorkspace::new());
    let dir = open(&space.ws, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    rustix::fs::flock(&dir, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let started = Instant::now();
    let writers = (0..4).map(|at| {
        let space = space.clone();
        let write = json!({ "path": format!("f{at}"), "content": "new" });
        tokio::spawn(async move { space.fails("files.write", write).await.reason })
    });
    for writer in writers.collect::<Vec<_>>() {
        assert_eq!(writer.await.unwrap(), "unavailable");
    }
    assert!(started.elapsed() < Duration::from_millis(3500), "{:?}", started.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_and_a_delete_wait_for_the_folder_lock() {
    let space = TestWorkspace::new();
    space.put("a/f", "old");
    space.put("b/f", "old");
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let dir = open(space.ws.join("a"), flags, Mode::empty()).unwrap();
    rustix::fs::flock(&dir, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let (gone, from, to) = tokio::join!(
        space.fails("files.delete", json!({ "path": "a/f" })),
        space.fails("files.move", json!({ "source": "a/f", "destination": "c/from" })),
        space.fails("files.move", json!({ "source": "b/f", "destination": "a/to" })),
    );
    for failed in [gone, from, to] {
        assert_eq!(failed.reason, "unavailable");
    }
    drop(dir);
    space.ok("files.move", json!({ "source": "a/f", "destination": "b/g" })).await;
    space.ok("files.move", json!({ "source": "b/f", "destination": "b/h" })).await;
    space.ok("files.delete", json!({ "path": "b/g" })).await;
    assert_eq!(space.get("b/h"), b"old");
}

#[tokio::test(flavor = "multi_thread")]
async fn moves_in_opposite_directions_do_not_deadlock() {
    let space = Arc::new(TestWorkspace::new());
    let movers = (0..8).map(|at| {
        let space = space.clone();
        let (here, there) = if at % 2 == 0 { ("a", "b") } else { ("b", "a") };
        space.put(&format!("{here}/{at}"), "x");
        tokio::spawn(async move {
            let here = format!("{here}/{at}");
            let there = format!("{there}/{at}");
            for _ in 0..50 {
                let on = json!({ "source": here, "destination": there });
                space.ok("files.move", on).await;
                let back = json!({ "source": there, "destination": here });
                space.ok("files.move", back).await;
            }
        })
    });
    for mover in movers.collect::<Vec<_>>() {
        mover.await.unwrap();
    }
}
