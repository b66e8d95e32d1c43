//! Tests of the files and long results that the servers of a fleet share.

#![allow(clippy::disallowed_methods, reason = "a test sets up its folders itself")]

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;

use tempfile::TempDir;
use toolgate_contract::{ResourceSpec, SharedLongResult};

use super::*;

/// Length of a file that is in several chunks of the database.
const SEVERAL_CHUNKS: usize = (2 << 20) + 77;
/// Length of a file that is too large for the database.
const LARGE: usize = (16 << 20) + 1;
const HOUR: Duration = Duration::from_secs(3600);

/// Returns bytes that differ at each position of a chunk.
fn bytes(count: usize) -> Vec<u8> {
    (0..=250).cycle().take(count).collect()
}

fn file_of(content: &[u8]) -> File {
    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(content).expect("it is written");
    file
}

/// Reads the file `name` that attempt number `attempt` of job 1 produced, at the server of `store`.
async fn read(store: &PostgresStore, attempt: u32, name: &str) -> Option<Vec<u8>> {
    let opened = store.files.open_job_file(id(1), attempt, name).await.expect("an answer")?;
    let mut content = Vec::new();
    (&opened).read_to_end(&mut content).expect("it is read");
    Some(content)
}

/// Returns a database location and the job stores of two servers of a fleet, whose large files are
/// in the folder `files`.
async fn servers_with(
    files: Option<&Path>,
) -> (TestDatabaseLocation, PostgresStore, PostgresStore) {
    let place =
        TestDatabaseLocation { files: files.map(Path::to_owned), ..TestDatabaseLocation::start() };
    let (one, two) = (place.open_long().await, place.open_long().await);
    one.accept(job(1)).await.expect("it is accepted");
    (place, one, two)
}

/// Ends job 1 at the server of `store` and lets it expire.
async fn end_and_expire(store: &PostgresStore) {
    store.begin(id(1), at(1)).await.expect("an answer").expect("it begins");
    store.finish(id(1), end(2, vec![])).await.expect("an answer").expect("it ends");
    assert_eq!(store.remove_expired(at(100), 99).await.expect("an answer"), [id(1)]);
    store.files.remove_expired().await.expect("an answer");
}

fn rows_of(place: &TestDatabaseLocation, table: &str) -> String {
    place.server.run(&format!("select count(*) from toolgate_fleet.{table}")).trim().to_owned()
}

fn files_in(folder: &Path) -> usize {
    let workspaces = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry"));
    workspaces.map(|entry| fs::read_dir(entry.path()).expect("a folder").count()).sum()
}

fn result(uri: &str, content: &[u8]) -> SharedLongResult {
    SharedLongResult {
        spec: ResourceSpec::new(uri, "result of a.b").with_media_type("text/plain"),
        content: content.to_vec().into(),
        is_text: true,
        keep: HOUR,
    }
}

#[tokio::test]
async fn a_file_of_a_job_is_read_at_another_server_and_removed_with_its_job() {
    let (place, one, two) = servers_with(None).await;
    let content = bytes(SEVERAL_CHUNKS);
    for _ in 0..2 {
        // The second time is a repetition after a lost answer.
        let stored = one.files.store_job_file(id(1), 1, "a.png", file_of(&content)).await;
        stored.expect("it is stored");
    }
    one.files.store_job_file(id(1), 1, "empty", file_of(b"")).await.expect("it is stored");
    assert_eq!(read(&two, 1, "a.png").await, Some(content));
    assert_eq!(read(&two, 1, "empty").await, Some(Vec::new()));
    assert_eq!(read(&two, 2, "a.png").await, None, "another start has its own files");
    assert_eq!(read(&two, 1, "b.png").await, None);
    assert_eq!(rows_of(&place, "file_chunks"), "3");
    end_and_expire(&one).await;
    assert_eq!(read(&two, 1, "a.png").await, None);
    assert_eq!([rows_of(&place, "files"), rows_of(&place, "file_chunks")], ["0", "0"]);
}

#[tokio::test]
async fn a_large_file_is_in_the_shared_folder_until_its_job_is_removed() {
    let folder = TempDir::new().expect("a folder");
    let (place, one, two) = servers_with(Some(folder.path())).await;
    let content = bytes(LARGE);
    let stored = one.files.store_job_file(id(1), 1, "a.bin", file_of(&content)).await;
    stored.expect("it is stored");
    assert!(read(&two, 1, "a.bin").await == Some(content), "the content differs");
    assert_eq!((rows_of(&place, "file_chunks").as_str(), files_in(folder.path())), ("0", 1));
    end_and_expire(&one).await;
    assert_eq!((rows_of(&place, "files").as_str(), files_in(folder.path())), ("0", 0));
}

#[tokio::test]
async fn a_large_file_without_a_folder_is_refused_with_the_reason() {
    let (place, one, _two) = servers_with(None).await;
    let stored = one.files.store_job_file(id(1), 1, "a.bin", file_of(&bytes(LARGE))).await;
    let Err(ContentSharingError::Refused(why)) = stored else { panic!("{stored:?}") };
    assert_eq!(why, "it is larger than 16 MiB, and `fleet.files` is not set");
    assert_eq!(rows_of(&place, "files"), "0");
}

#[tokio::test]
async fn a_folder_that_is_not_mounted_refuses_a_large_file_and_keeps_rows_of_expired_ones() {
    let folder = TempDir::new().expect("a folder");
    let share = folder.path().join("share");
    fs::create_dir(&share).expect("a folder");
    let (place, one, _two) = servers_with(Some(&share)).await;
    let content = bytes(LARGE);
    let stored = one.files.store_job_file(id(1), 1, "a.bin", file_of(&content)).await;
    stored.expect("it is stored");
    let away = folder.path().join("away");
    fs::rename(&share, &away).expect("it is renamed");
    let stored = one.files.store_job_file(id(1), 1, "b.bin", file_of(&content)).await;
    let Err(ContentSharingError::Refused(why)) = stored else { panic!("{stored:?}") };
    assert!(why.starts_with("it cannot be stored in `fleet.files`: "), "{why}");
    end_and_expire(&one).await;
    assert_eq!(rows_of(&place, "files"), "2");
    fs::rename(&away, &share).expect("it is renamed");
    place.server.run("update toolgate_fleet.files set removal_until = now()");
    one.files.remove_expired().await.expect("an answer");
    assert_eq!((rows_of(&place, "files").as_str(), files_in(&share)), ("0", 0));
}

#[tokio::test]
async fn an_expired_file_is_removed_by_one_server() {
    let (place, one, two) = servers_with(None).await;
    for name in ["a", "b"] {
        one.files.store_job_file(id(1), 1, name, file_of(b"x")).await.expect("it is stored");
    }
    // As after the removal of the job by a server of an older version.
    place.server.run("delete from toolgate_fleet.jobs");
    one.files.expire_unknown().await.expect("an answer");
    place.server.run("update toolgate_fleet.files set removal_until = now() + interval '1 minute'");
    two.files.remove_expired().await.expect("an answer");
    assert_eq!(rows_of(&place, "files"), "2", "the other server removes them");
    // As if the other server had stopped meanwhile.
    place.server.run("update toolgate_fleet.files set removal_until = now()");
    two.files.remove_expired().await.expect("an answer");
    assert_eq!(rows_of(&place, "files"), "0");
}

#[tokio::test]
async fn a_long_result_is_read_at_another_server_by_its_caller_until_it_expires() {
    let (place, one, two) = servers_with(None).await;
    let [ada, bob] = ["ada", "bob"].map(Caller::with_key);
    let text = "text ".repeat(SEVERAL_CHUNKS / 5);
    let long = result("result://1", text.as_bytes());
    one.files.store_result(&ada, &long).await.expect("it is stored");
    let found = two.files.find_result(&ada, "result://1").await.expect("an answer");
    let found = found.expect("it is there");
    assert!(found.content == text.as_bytes() && found.is_text, "the content differs");
    assert_eq!(found.spec, long.spec);
    assert!(found.keep <= HOUR && found.keep > HOUR / 2, "{:?}", found.keep);
    assert_eq!(two.files.list_results(&ada).await.expect("a list"), [long.spec]);
    assert!(two.files.find_result(&bob, "result://1").await.expect("an answer").is_none());
    assert!(two.files.list_results(&bob).await.expect("a list").is_empty());
    place.server.run("update toolgate_fleet.files set until = now()");
    assert!(two.files.find_result(&ada, "result://1").await.expect("an answer").is_none());
    two.files.remove_expired().await.expect("an answer");
    assert_eq!([rows_of(&place, "results"), rows_of(&place, "files")], ["0", "0"]);
}

#[tokio::test]
async fn the_oldest_results_expire_if_all_together_have_too_many_bytes() {
    let (place, one, _two) = servers_with(None).await;
    let ada = Caller::with_key("ada");
    one.files.store_job_file(id(1), 1, "a", file_of(b"a file")).await.expect("it is stored");
    for (number, keep) in [(1, HOUR), (2, HOUR / 2), (3, HOUR / 3)] {
        let long =
            SharedLongResult { keep, ..result(&format!("result://{number}"), &[b'x'; 1000]) };
        one.files.store_result(&ada, &long).await.expect("it is stored");
    }
    let lent = one.pool.acquire().await.expect("a connection");
    let client = &lent.connection.client;
    results::expire_oldest_results(client, "first", 3500).await.expect("an answer");
    let left = one.files.list_results(&ada).await.expect("a list");
    let left: Vec<_> = left.into_iter().map(|entry| entry.uri).collect();
    assert_eq!(left, ["result://2", "result://1"]);
    one.files.remove_expired().await.expect("an answer");
    assert_eq!(rows_of(&place, "files"), "3", "files of jobs stay");
}

#[tokio::test]
async fn without_the_database_files_and_results_are_an_error_that_names_it() {
    let (mut place, one, _two) = servers_with(None).await;
    Arc::get_mut(&mut place.server).expect("one owner").stop();
    let stored = one.files.store_job_file(id(1), 1, "a", file_of(b"x")).await;
    let Err(ContentSharingError::Unavailable(why)) = stored else { panic!("{stored:?}") };
    assert!(why.to_string().contains("PostgreSQL `postgres` at"), "{why}");
    let opened = one.files.open_job_file(id(1), 1, "a").await.expect_err("it is away");
    assert!(opened.to_string().contains("PostgreSQL `postgres` at"), "{opened}");
    let ada = Caller::with_key("ada");
    let found = one.files.find_result(&ada, "result://1").await.expect_err("it is away");
    assert!(found.to_string().contains("PostgreSQL `postgres` at"), "{found}");
}
