//! Tests that question support and answers are stored with a job, and that old files are migrated.

use toolgate_contract::{ClientAnswer, ClientAnswers, PersonChoice, QuestionSupport};

use super::*;
use crate::jobs::store::CallerAnswers;

pub(super) fn given(keys: &[&str]) -> ClientAnswers {
    keys.iter()
        .map(|key| ((*key).to_owned(), ClientAnswer::Choice(PersonChoice::Declined)))
        .collect()
}

#[tokio::test]
async fn answers_survive_a_restart_and_the_first_answer_wins() {
    let folder = folder();
    let can = QuestionSupport { form: true, ..QuestionSupport::default() };
    let store = open(&folder);
    let asking = CallerAnswers { can, given: given(&["one"]) };
    store.accept(NewJob { answers: asking, ..job(1) }).await.expect("accepted");
    store.begin(id(1), at(1)).await.expect("begun").expect("it is there");
    let mut later = given(&["two"]);
    later.insert("one".to_owned(), ClientAnswer::Roots(Vec::new()));
    store.add_answers(id(1), later).await.expect("answered");
    store.add_answers(id(2), given(&["x"])).await.expect("nothing is done for a missing job");
    drop(store);

    let store = open(&folder);
    assert_eq!(store.adopt_all().await.expect("adopted").jobs.len(), 1);
    store.requeue(id(1), at(2)).await.expect("requeued");
    let begun = store.begin(id(1), at(3)).await.expect("begun").expect("it is there");
    assert_eq!(begun.answers, CallerAnswers { can, given: given(&["one", "two"]) });
}

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
    assert_eq!((begun.input, begun.answers), (json!({}), CallerAnswers::default()));
}
