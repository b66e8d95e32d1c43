//! Tests of database files that the job store refuses, and of the permissions of its folder.

use super::*;

fn refusal(folder: &TempDir) -> String {
    SqliteStore::open(folder.path(), 1).err().expect("it is refused").to_string()
}

#[test]
fn a_file_that_is_not_a_job_database_is_refused_and_unchanged() {
    let folder = folder();
    let file = folder.path().join(FILE_NAME);
    let text = "these are not jobs ".repeat(100);
    std::fs::write(&file, &text).expect("a file");
    let refused = refusal(&folder);
    assert!(refused.contains("jobs.db` is damaged or not a job database"), "{refused}");
    assert!(refused.contains("move it away"), "{refused}");
    assert_eq!(std::fs::read_to_string(&file).expect("the file"), text);

    std::fs::remove_file(&file).expect("no file");
    let db = Connection::open(&file).expect("a database");
    db.execute_batch("CREATE TABLE cats (name TEXT)").expect("a table");
    drop(db);
    let refused = refusal(&folder);
    assert!(refused.contains("jobs.db` belongs to another program; move it away"), "{refused}");
    let servers = std::fs::read_dir(folder.path().join("servers")).expect("a folder");
    assert_eq!(servers.count(), 0, "a registration remained");
}

#[test]
fn a_file_of_a_newer_toolgate_is_refused() {
    let folder = folder();
    drop(open(&folder));
    let db = Connection::open(folder.path().join(FILE_NAME)).expect("a database");
    db.execute_batch("PRAGMA user_version = 99").expect("a version");
    drop(db);
    let refused = refusal(&folder);
    assert!(
        refused.contains("jobs.db` has version 99, and this toolgate supports up to 4"),
        "{refused}"
    );
}

#[tokio::test]
async fn a_damaged_file_is_reported_and_not_treated_as_empty() {
    let folder = folder();
    let store = open(&folder);
    for number in 1..=300 {
        store.accept(job(number)).await.expect("it is accepted");
    }
    drop(store);
    let file = std::fs::OpenOptions::new().write(true).open(folder.path().join(FILE_NAME));
    let file = file.expect("the file");
    let bytes = file.metadata().expect("its size").len();
    for page in 2..bytes / 4096 {
        file.write_all_at(&[0xff; 64], page * 4096).expect("damage");
    }
    drop(file);
    let store = open(&folder);
    let message = store.list(None, None, 300).await.expect_err("it is damaged").to_string();
    assert!(message.contains("damaged") && message.contains("jobs.db"), "{message}");
}

#[test]
fn other_users_cannot_read_the_folder() {
    use std::os::unix::fs::PermissionsExt;
    let above = folder();
    let folder = above.path().join("some/where");
    let _store = SqliteStore::open(&folder, 1).expect("a store");
    let mode = |name: &str| {
        let path = folder.join(name);
        std::fs::metadata(path).expect("it is there").permissions().mode() & 0o777
    };
    assert_eq!(["", "..", "servers"].map(mode), [0o700; 3]);
    assert_eq!(["jobs.db", "jobs.db-wal", "jobs.db-shm"].map(mode), [0o600; 3]);
}

#[test]
fn several_servers_that_create_one_folder_at_once_share_one_store() {
    for _ in 0..8 {
        let folder = folder();
        let opened: Vec<SqliteStore> = std::thread::scope(|scope| {
            let opened: Vec<_> = (0..8).map(|_| scope.spawn(|| open(&folder))).collect();
            opened.into_iter().map(|opened| opened.join().expect("a store")).collect()
        });
        assert_eq!(opened.len(), 8);
        assert!(SqliteStore::exists_in(folder.path()));
    }
}
