//! The folder as it is now.

use std::fs;
use std::os::unix::fs::symlink;
use std::time::Duration;

use toolgate_contract::{ChangeFeed, PromptSource, ServerChange};

use super::super::folder;
use super::{Bench, text};
use crate::workspace_scan::FileCache;
use toolgate_world::root::WorkMonitor;

/// What is left out of the folder, as the log tells it.
fn left_out(bench: &Bench) -> Vec<String> {
    let mut left_out = Vec::new();
    let mut files = FileCache::<folder::PromptFileResult>::default();
    let watch = WorkMonitor::default();
    folder::read_folder(&bench.root, ".toolgate/prompts", &mut files, &mut left_out, &watch)
        .unwrap();
    left_out.iter().map(ToString::to_string).collect()
}

#[tokio::test]
async fn without_a_folder_there_are_none_and_nothing_is_wrong() {
    let bench = Bench::new();
    assert!(bench.names().await.is_empty());
    assert!(left_out(&bench).is_empty());
}

#[tokio::test]
async fn a_file_that_cannot_be_used_is_left_out_with_its_line_and_the_others_are_not() {
    let bench = Bench::new();
    bench.prompt("good", "title: T\n", "text");
    bench.prompt("bad", "title: T\n", "text\n{{nobody}}");
    bench.prompt("a b", "", "text");
    bench.put(".toolgate/prompts/README.md", "---\n# no end");
    bench.put(".toolgate/prompts/bytes.md", b"---\n---\n\xff");
    bench.put(".toolgate/prompts/large.md", format!("---\n---\n{}", "x".repeat(300 << 10)));
    bench.put(".toolgate/prompts/note.txt", "not a prompt");
    fs::create_dir(bench.path().join(".toolgate/prompts/folder.md")).unwrap();
    symlink("/etc/hostname", bench.path().join(".toolgate/prompts/out.md")).unwrap();
    assert_eq!(bench.names().await, ["good"]);
    let told = left_out(&bench);
    let begins = |start: &str| told.iter().any(|line| line.starts_with(start));
    assert_eq!(told.len(), 6, "{told:#?}");
    assert!(
        begins("a prompt is left out: .toolgate/prompts/bad.md:5: `{{nobody}}` is no argument"),
        "{told:#?}"
    );
    assert!(
        begins("a prompt is left out: .toolgate/prompts/README.md:1: the front matter has no end"),
        "{told:#?}"
    );
    assert!(
        begins("a prompt is left out: .toolgate/prompts/bytes.md: it is not UTF-8"),
        "{told:#?}"
    );
    assert!(begins("a prompt is left out: .toolgate/prompts/large.md: it has"), "{told:#?}");
    assert!(begins("a prompt is left out: .toolgate/prompts/a b.md: a prompt's name"), "{told:#?}");
    assert!(begins("a prompt is left out: .toolgate/prompts/out.md: "), "{told:#?}");
}

#[tokio::test]
async fn why_a_file_cannot_be_used_is_told_to_whoever_asks_for_its_prompt() {
    let bench = Bench::new();
    let trouble = |name: &str| bench.folder.unusable_reason(name);
    bench.prompt("good", "", "text");
    bench.prompt("bad", "titel: T\n", "text");
    bench.put(".toolgate/prompts/bytes.md", b"---\n---\n\xff");
    assert_eq!(bench.names().await, ["good"]);
    let why = "`.toolgate/prompts/bad.md:2` cannot be used: `titel` is no key here; \
               did you mean `title`?";
    assert_eq!(trouble("bad").as_deref(), Some(why));
    let why = "`.toolgate/prompts/bytes.md` cannot be used: it is not UTF-8";
    assert_eq!(trouble("bytes").as_deref(), Some(why));
    for name in ["good", "nobody", "bad.md", "", "../prompts/bad"] {
        assert_eq!(trouble(name), None, "{name}");
    }
    bench.prompt("bad", "title: T\n", "text");
    assert_eq!(bench.names().await, ["bad", "good"]);
    assert_eq!(trouble("bad"), None);
}

#[tokio::test]
async fn the_list_follows_the_folder() {
    let bench = Bench::new();
    bench.prompt("b", "", "one");
    assert_eq!(bench.names().await, ["b"]);
    bench.prompt("a", "", "x");
    assert_eq!(bench.names().await, ["a", "b"]);
    // As long as before and within the same tick of the clock, perhaps.
    bench.prompt("b", "", "two");
    assert_eq!(text(&bench.made("b", &[]).await.unwrap()[0]), "two");
    fs::remove_file(bench.path().join(".toolgate/prompts/b.md")).unwrap();
    assert_eq!(bench.names().await, ["a"]);
    bench.prompt("a", "title: [\n", "x");
    assert!(bench.names().await.is_empty());
    fs::remove_dir_all(bench.path().join(".toolgate")).unwrap();
    assert!(bench.names().await.is_empty());
}

#[tokio::test]
async fn no_change_is_missed_however_fast_they_come() {
    let bench = Bench::new();
    for n in 100..200 {
        bench.prompt("a", "", &n.to_string());
        assert_eq!(text(&bench.made("a", &[]).await.unwrap()[0]), n.to_string());
    }
}

#[tokio::test]
async fn whoever_watches_is_told_of_other_prompts_and_not_of_the_same() {
    let bench = Bench::new();
    bench.prompt("a", "", "one");
    assert_eq!(bench.names().await, ["a"]);
    let changes = ChangeFeed::default();
    let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
    changes.subscribe(move |change| drop(told.send(change.clone())));
    let hold = bench.folder.watch_list(&changes);
    let other = bench.folder.watch_list(&changes);
    bench.prompt("b", "", "two");
    let patience = Duration::from_secs(20);
    let change = tokio::time::timeout(patience, heard.recv()).await.expect("told in time");
    assert_eq!(change.unwrap(), ServerChange::Prompts);
    drop(hold);
    bench.prompt("b", "", "three");
    let change = tokio::time::timeout(patience, heard.recv()).await.expect("told in time");
    assert_eq!(change.unwrap(), ServerChange::Prompts);
    drop(other);
    drop(changes);
    let ended = tokio::time::timeout(patience, heard.recv()).await.expect("it ends");
    assert!(ended.is_none(), "nobody watches, so nobody tells");
}
