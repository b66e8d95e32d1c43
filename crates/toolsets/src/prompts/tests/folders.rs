//! Tests of the folder of prompt files, and of changes in it.

use std::fs;
use std::os::unix::fs::symlink;
use std::time::Duration;

use toolgate_contract::{ChangeFeed, PromptSource, ServerChange};

use super::super::folder;
use super::{PromptTestBench, text};
use crate::workspace_scan::FileValueCache;
use toolgate_world::root::DiskWorkMonitor;

/// Returns the log lines about skipped files.
fn left_out(bench: &PromptTestBench) -> Vec<String> {
    let mut left_out = Vec::new();
    let mut files = FileValueCache::<folder::PromptFileResult>::default();
    let watch = DiskWorkMonitor::default();
    folder::read_folder(&bench.root, ".toolgate/prompts", &mut files, &mut left_out, &watch)
        .unwrap();
    left_out.iter().map(ToString::to_string).collect()
}

#[tokio::test]
async fn a_missing_folder_has_no_prompts_and_no_errors() {
    let bench = PromptTestBench::new();
    assert!(bench.names().await.is_empty());
    assert!(left_out(&bench).is_empty());
}

#[tokio::test]
async fn an_invalid_file_is_left_out_with_its_line_and_valid_files_are_kept() {
    let bench = PromptTestBench::new();
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
    let lines = left_out(&bench);
    let begins = |start: &str| lines.iter().any(|line| line.starts_with(start));
    assert_eq!(lines.len(), 6, "{lines:#?}");
    assert!(
        begins("a prompt is left out: .toolgate/prompts/bad.md:5: unknown argument `{{nobody}}`"),
        "{lines:#?}"
    );
    assert!(
        begins("a prompt is left out: .toolgate/prompts/README.md:1: the front matter has no end"),
        "{lines:#?}"
    );
    assert!(
        begins("a prompt is left out: .toolgate/prompts/bytes.md: it is not UTF-8"),
        "{lines:#?}"
    );
    assert!(begins("a prompt is left out: .toolgate/prompts/large.md: the file has"), "{lines:#?}");
    assert!(
        begins("a prompt is left out: .toolgate/prompts/a b.md: a prompt's name"),
        "{lines:#?}"
    );
    assert!(begins("a prompt is left out: .toolgate/prompts/out.md: "), "{lines:#?}");
}

#[tokio::test]
async fn a_request_for_an_invalid_prompt_gets_the_reason() {
    let bench = PromptTestBench::new();
    let reason = |name: &str| bench.folder.unusable_reason(name);
    bench.prompt("good", "", "text");
    bench.prompt("bad", "titel: T\n", "text");
    bench.put(".toolgate/prompts/bytes.md", b"---\n---\n\xff");
    assert_eq!(bench.names().await, ["good"]);
    let why = "`.toolgate/prompts/bad.md:2` cannot be used: unknown key `titel`; \
               did you mean `title`?";
    assert_eq!(reason("bad").as_deref(), Some(why));
    let why = "`.toolgate/prompts/bytes.md` cannot be used: it is not UTF-8";
    assert_eq!(reason("bytes").as_deref(), Some(why));
    for name in ["good", "nobody", "bad.md", "", "../prompts/bad"] {
        assert_eq!(reason(name), None, "{name}");
    }
    bench.prompt("bad", "title: T\n", "text");
    assert_eq!(bench.names().await, ["bad", "good"]);
    assert_eq!(reason("bad"), None);
}

#[tokio::test]
async fn the_list_follows_the_folder() {
    let bench = PromptTestBench::new();
    bench.prompt("b", "", "one");
    assert_eq!(bench.names().await, ["b"]);
    bench.prompt("a", "", "x");
    assert_eq!(bench.names().await, ["a", "b"]);
    // The new text has the same length, and the file perhaps the same time.
    bench.prompt("b", "", "two");
    assert_eq!(text(&bench.render("b", &[]).await.unwrap()[0]), "two");
    fs::remove_file(bench.path().join(".toolgate/prompts/b.md")).unwrap();
    assert_eq!(bench.names().await, ["a"]);
    bench.prompt("a", "title: [\n", "x");
    assert!(bench.names().await.is_empty());
    fs::remove_dir_all(bench.path().join(".toolgate")).unwrap();
    assert!(bench.names().await.is_empty());
}

#[tokio::test]
async fn rapid_changes_are_all_seen() {
    let bench = PromptTestBench::new();
    for n in 100..200 {
        bench.prompt("a", "", &n.to_string());
        assert_eq!(text(&bench.render("a", &[]).await.unwrap()[0]), n.to_string());
    }
}

#[tokio::test]
async fn a_subscriber_is_notified_of_changed_prompts() {
    let bench = PromptTestBench::new();
    bench.prompt("a", "", "one");
    assert_eq!(bench.names().await, ["a"]);
    let changes = ChangeFeed::default();
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    changes.subscribe(move |change| drop(sender.send(change.clone())));
    let guard = bench.folder.watch_list(&changes);
    let other = bench.folder.watch_list(&changes);
    bench.prompt("b", "", "two");
    let limit = Duration::from_secs(20);
    let change = tokio::time::timeout(limit, receiver.recv()).await.expect("notified in time");
    assert_eq!(change.unwrap(), ServerChange::Prompts);
    drop(guard);
    bench.prompt("b", "", "three");
    let change = tokio::time::timeout(limit, receiver.recv()).await.expect("notified in time");
    assert_eq!(change.unwrap(), ServerChange::Prompts);
    drop(other);
    drop(changes);
    let ended = tokio::time::timeout(limit, receiver.recv()).await.expect("the channel closes");
    assert!(ended.is_none(), "a notification arrived without a subscriber");
}
