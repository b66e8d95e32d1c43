//! Tests of reading git checkouts for the index, with repositories that git creates.

#![allow(clippy::disallowed_methods, reason = "the tests change the repositories from outside")]

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use tempfile::TempDir;

use super::*;

fn git(folder: &Path, args: &[&str]) -> String {
    let no_config = ["GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"].map(|name| (name, "/dev/null"));
    let config = ["-c", "user.name=A", "-c", "user.email=a@b.c", "-c", "init.defaultBranch=main"];
    let mut command = Command::new("git");
    let command = command.envs(no_config).args(config).args(args).current_dir(folder);
    let output = command.output().unwrap();
    assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn put(folder: &Path, path: &str, text: &str) {
    let path = folder.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn repository(init: &[&str]) -> (TempDir, String) {
    let folder = TempDir::new().unwrap();
    git(folder.path(), &[&["init", "-q"], init].concat());
    for path in ["a.rs", "src/deep/b.rs", "src/deep/bc.rs", "z.rs"] {
        put(folder.path(), path, "fn a() {}\n");
    }
    git(folder.path(), &["add", "."]);
    git(folder.path(), &["commit", "-q", "-m", "one"]);
    let commit = git(folder.path(), &["rev-parse", "HEAD"]);
    (folder, commit)
}

#[track_caller]
fn check(checkout: &GitCheckoutReader, path: &str, expected: Option<&str>) {
    let file = checkout.root.open_file(path).unwrap();
    let state = checkout.current(&DiskWorkMonitor::default());
    let content = fs::read(checkout.root.path().join(path)).unwrap();
    let commit = state.and_then(|state| state.commit_of(path, file.meta(), &content));
    assert_eq!(commit.as_deref(), expected, "{path}");
}

#[test]
fn an_unchanged_file_has_the_checked_out_commit_and_a_changed_one_none() {
    for init in [&[][..], &["--object-format=sha256"]] {
        let (folder, first) = repository(init);
        let checkout = GitCheckoutReader::new(&Root::open(folder.path()).unwrap());
        let folder = folder.path();
        put(folder, "new.rs", "fn new() {}\n");
        put(folder, "z.rs", "fn b() {}\n");
        for path in ["a.rs", "src/deep/b.rs", "src/deep/bc.rs"] {
            check(&checkout, path, Some(&first));
        }
        for path in ["new.rs", "z.rs"] {
            check(&checkout, path, None);
        }
        git(folder, &["commit", "-q", "-a", "-m", "two"]);
        let second = git(folder, &["rev-parse", "HEAD"]);
        check(&checkout, "z.rs", Some(&second));
        check(&checkout, "a.rs", Some(&second));
        check(&checkout, "new.rs", None);
        // Other versions of git's index, packed refs, and a detached `HEAD`.
        for version in ["4", "3", "2"] {
            git(folder, &["update-index", "--index-version", version]);
            for path in ["a.rs", "src/deep/b.rs", "src/deep/bc.rs", "z.rs"] {
                check(&checkout, path, Some(&second));
            }
        }
        git(folder, &["pack-refs", "--all"]);
        assert!(!folder.join(".git/refs/heads/main").exists());
        check(&checkout, "a.rs", Some(&second));
        git(folder, &["checkout", "-q", &first]);
        check(&checkout, "a.rs", Some(&first));
    }
}

#[test]
fn a_file_with_a_new_time_but_the_same_content_has_the_commit() {
    let (folder, commit) = repository(&[]);
    let checkout = GitCheckoutReader::new(&Root::open(folder.path()).unwrap());
    let folder = folder.path();
    // The size stays the same, and the time may be in the clock tick in which git wrote its index.
    for _ in 0..20 {
        put(folder, "a.rs", "fn b() {}\n");
        check(&checkout, "a.rs", None);
        put(folder, "a.rs", "fn a() {}\n");
        check(&checkout, "a.rs", Some(&commit));
        git(folder, &["checkout", "-q", "-f", "HEAD"]);
    }
}

#[test]
fn a_file_changed_in_the_clock_tick_of_gits_index_has_no_commit() {
    let (folder, commit) = repository(&[]);
    let checkout = GitCheckoutReader::new(&Root::open(folder.path()).unwrap());
    let folder = folder.path();
    let modified = fs::metadata(folder.join("a.rs")).unwrap().modified().unwrap();
    let stamp = |path: &str| {
        let file = fs::OpenOptions::new().write(true).open(folder.join(path)).unwrap();
        file.set_modified(modified).unwrap();
    };
    stamp(".git/index");
    put(folder, "a.rs", "fn b() {}\n");
    stamp("a.rs");
    check(&checkout, "a.rs", None);
    put(folder, "a.rs", "fn a() {}\n");
    stamp("a.rs");
    check(&checkout, "a.rs", Some(&commit));
}

#[test]
fn during_a_checkout_no_file_has_a_wrong_commit() {
    let (folder, first) = repository(&[]);
    let checkout = GitCheckoutReader::new(&Root::open(folder.path()).unwrap());
    let folder = folder.path();
    git(folder, &["branch", "one"]);
    git(folder, &["checkout", "-q", "-b", "two"]);
    put(folder, "a.rs", "fn b() {}\n");
    git(folder, &["commit", "-q", "-a", "-m", "two"]);
    let second = git(folder, &["rev-parse", "HEAD"]);
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(700) {
                git(folder, &["checkout", "-q", "one"]);
                git(folder, &["checkout", "-q", "two"]);
            }
            is_done.store(true, Ordering::Relaxed);
        });
        while !is_done.load(Ordering::Relaxed) {
            let state = checkout.current(&DiskWorkMonitor::default());
            let Ok(file) = checkout.root.open_file("a.rs") else { continue };
            let content = file.read(0, file.meta().size(), &DiskWorkMonitor::default()).unwrap();
            let commit = state.and_then(|state| state.commit_of("a.rs", file.meta(), &content));
            let expected = if content == b"fn a() {}\n" { &first } else { &second };
            assert!(commit.as_ref().is_none_or(|it| it == expected), "{commit:?}, not {expected}");
        }
    });
    check(&checkout, "a.rs", Some(&second));
    for lock in ["index.lock", "HEAD.lock"] {
        put(folder, &format!(".git/{lock}"), "");
        check(&checkout, "a.rs", None);
        fs::remove_file(folder.join(".git").join(lock)).unwrap();
        check(&checkout, "a.rs", Some(&second));
    }
}

#[test]
fn unreadable_git_files_give_no_commit() {
    let (folder, commit) = repository(&[]);
    let checkout = GitCheckoutReader::new(&Root::open(folder.path()).unwrap());
    let folder = folder.path();
    check(&checkout, "a.rs", Some(&commit));
    let index = folder.join(".git/index");
    let whole = fs::read(&index).unwrap();
    for cut in [0, 3, 11, 12, 40, 73, 80, whole.len() / 3] {
        fs::write(&index, &whole[..cut]).unwrap();
        check(&checkout, "a.rs", None);
    }
    let mut endless = whole.clone();
    endless[8..12].copy_from_slice(&u32::MAX.to_be_bytes());
    fs::write(&index, &endless).unwrap();
    check(&checkout, "a.rs", None);
    fs::remove_file(&index).unwrap();
    check(&checkout, "a.rs", None);
    fs::write(&index, &whole).unwrap();
    for head in ["", "ref: ../../x", "ref: refs/heads/../../HEAD", "ref: refs/heads/none", "x"] {
        fs::write(folder.join(".git/HEAD"), head).unwrap();
        check(&checkout, "a.rs", None);
    }
    fs::remove_dir_all(folder.join(".git")).unwrap();
    check(&checkout, "a.rs", None);
}
