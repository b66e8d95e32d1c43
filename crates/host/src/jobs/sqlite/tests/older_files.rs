//! Tests that database files of older toolgate versions are migrated.

use super::*;
use crate::jobs::store::JobQuestionState;

#[tokio::test]
async fn a_version_1_file_is_migrated_with_its_jobs() {
    let folder = folder();
    let db = Connection::open(folder.path().join(FILE_NAME)).expect("a file");
    db.execute_batch(&format!(
        "PRAGMA journal_mode = WAL; {} PRAGMA user_version = 1; PRAGMA application_id = {}; \
         INSERT INTO jobs (n, id, tool, caller, dialect, priority, state, owner, created, updated, \
         keep, last_event) VALUES (1, x'{:032x}', 'exec.run', 'ada', 'test', 0, 'queued', 99, 0, 0, \
         60, 0); INSERT INTO inputs (job, input) VALUES (1, '{{}}')",
        include_str!("../schema/1.sql"),
        0x7467_4a31,
        id(1).bits(),
    ))
    .expect("an old file");
    drop(db);
    let store = open(&folder);
    assert_eq!(store.adopt_all().await.expect("adopted").jobs.len(), 1);
    let begun = store.begin(id(1), at(1)).await.expect("begun").expect("it is there");
    assert_eq!((begun.input, begun.answers), (json!({}), JobQuestionState::default()));
}
