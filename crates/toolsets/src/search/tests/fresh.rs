//! How fresh an index is, what stays out of it, and what bounds it.

use std::fs;

use tempfile::TempDir;

use super::*;

#[allow(clippy::disallowed_methods, reason = "a test sets up the world itself")]
fn put(folder: &TempDir, path: &str, content: impl AsRef<[u8]>) {
    let path = folder.path().join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

async fn found(service: &Service, query: &str) -> Vec<String> {
    let found = search(service, Wanted { top_k: 50, ..wanted(query) }).await;
    found.hits.into_iter().map(|hit| hit.path).collect()
}

#[tokio::test]
#[allow(clippy::disallowed_methods, reason = "a test sets up the world itself")]
async fn what_was_written_changed_or_removed_just_now_is_found_as_it_is() {
    let folder = TempDir::new().unwrap();
    let service = service(folder.path(), &Settings::default());
    assert!(found(&service, "zebra").await.is_empty());
    for round in 0..20 {
        // As long as before, and within one tick of the clock.
        put(&folder, "a.rs", format!("fn zebra_{round:02}() {{}}\n"));
        assert_eq!(found(&service, &format!("zebra {round:02}")).await, ["a.rs"]);
        let first = &search(&service, wanted("zebra")).await.hits[0].snippet;
        assert_eq!(*first, format!("fn zebra_{round:02}() {{}}"));
    }
    put(&folder, "b/c.py", "def zebra():\n    pass\n");
    assert_eq!(found(&service, "zebra").await.len(), 2);
    fs::rename(folder.path().join("b"), folder.path().join("d")).unwrap();
    fs::remove_file(folder.path().join("a.rs")).unwrap();
    assert_eq!(found(&service, "zebra").await, ["d/c.py"]);
    fs::remove_dir_all(folder.path().join("d")).unwrap();
    let none = search(&service, wanted("zebra")).await;
    assert_eq!((none.total, none.index.files, none.index.chunks), (0, 0, 0));
}

#[tokio::test]
async fn what_is_no_text_to_be_read_stays_out() {
    let folder = TempDir::new().unwrap();
    put(&folder, "in.rs", "fn zebra() {}\n");
    put(&folder, "crlf.md", "# Zebra\r\n\r\nstripes\r\n");
    put(&folder, ".github/in.yml", "zebra: 1\n");
    put(&folder, "binary.bin", b"zebra\0zebra");
    put(&folder, "latin.txt", b"zebra \xe9");
    put(&folder, "huge.txt", "zebra\n".repeat(1 << 18));
    put(&folder, "long.txt", format!("zebra {}\n", "x".repeat(5000)));
    put(&folder, "Cargo.lock", "zebra\n");
    put(&folder, ".gitignore", "ignored\n");
    put(&folder, "ignored/a.rs", "fn zebra() {}\n");
    put(&folder, ".git/config", "zebra\n");
    let service = service(folder.path(), &Settings::default());
    let mut paths = found(&service, "zebra").await;
    paths.sort();
    assert_eq!(paths, [".github/in.yml", "crlf.md", "in.rs"]);
    let crlf = search(&service, Wanted { tags: vec!["docs".into()], ..wanted("zebra") }).await;
    assert_eq!(crlf.hits[0].snippet, "# Zebra\r\n\r\nstripes");
}

#[tokio::test]
async fn an_index_that_is_full_says_so_and_answers() {
    let folder = TempDir::new().unwrap();
    for at in 0..10 {
        put(&folder, &format!("{at}.rs"), "fn zebra() {}\n");
    }
    for settings in [
        Settings { files_max: 4, ..Settings::default() },
        Settings { text_bytes_max: 4 * 14, ..Settings::default() },
    ] {
        let service = service(folder.path(), &settings);
        let found = search(&service, wanted("zebra")).await;
        assert_eq!((found.index.files, found.index.complete), (4, false));
        assert_eq!(found.total, 4);
    }
}

#[tokio::test]
#[allow(clippy::disallowed_methods, reason = "a test sets up the world itself")]
async fn a_folder_that_is_gone_makes_the_search_unavailable() {
    let folder = TempDir::new().unwrap();
    put(&folder, "a.rs", "fn zebra() {}\n");
    let service = service(folder.path(), &Settings::default());
    assert_eq!(found(&service, "zebra").await, ["a.rs"]);
    fs::remove_dir_all(folder.path()).unwrap();
    let (fault, message) = refusal(&service, wanted("zebra")).await;
    assert_eq!(fault, Fault::Unavailable, "{message}");
    assert!(message.starts_with("the index of `workspace` cannot be brought up to date"));
}

#[tokio::test]
async fn a_search_that_nobody_wants_any_more_ends() {
    let folder = TempDir::new().unwrap();
    put(&folder, "a.rs", "fn zebra() {}\n");
    let service = service(folder.path(), &Settings::default());
    let ctx = ctx();
    ctx.cancel.cancel();
    let err = service.search(&ctx, wanted("zebra")).await.err().unwrap();
    assert_eq!(err.fault, Fault::Canceled);
    assert_eq!(found(&service, "zebra").await, ["a.rs"]);
}

#[tokio::test]
async fn searches_at_once_find_the_same() {
    let folder = TempDir::new().unwrap();
    for at in 0..50 {
        put(&folder, &format!("{at}.rs"), format!("fn zebra_{at}() {{ run(); }}\n"));
    }
    let service = service(folder.path(), &Settings::default());
    let searches = (0..8).map(|_| {
        let service = service.clone();
        tokio::spawn(async move { found(&service, "zebra run").await })
    });
    let mut all = Vec::new();
    for search in searches.collect::<Vec<_>>() {
        all.push(search.await.unwrap());
    }
    assert!(all[0].len() == 50 && all.windows(2).all(|pair| pair[0] == pair[1]));
}
