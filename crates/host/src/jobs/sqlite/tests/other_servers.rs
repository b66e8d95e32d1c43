//! Tests that servers that share a store see and change each other's jobs only as they may.

use toolgate_contract::{ClientQuestion, ClientQuestions};

use super::asking::given;
use super::*;

/// Returns one open question.
fn open_question() -> ClientQuestions {
    ClientQuestions::from([("q".to_owned(), ClientQuestion::Roots)])
}

async fn requests(store: &SqliteStore) -> Vec<OwnerRequest> {
    store.take_requests().await.expect("an answer")
}

async fn questions(store: &SqliteStore) -> ClientQuestions {
    store.job(id(1)).await.expect("an answer").expect("it is there").questions
}

#[tokio::test]
async fn requests_reach_the_owner_of_a_job_and_cancellations_stay_until_its_end() {
    let folder = folder();
    let [one, two] = [(); 2].map(|()| open(&folder));
    for number in 1..=2 {
        one.accept(job(number)).await.expect("it is accepted");
    }
    one.begin(id(1), at(1)).await.expect("begun").expect("it is there");
    two.add_answers(id(1), given(&["a"])).await.expect("answered");
    two.add_answers(id(1), given(&["a"])).await.expect("nothing is new");
    one.add_answers(id(1), given(&["b"])).await.expect("the owner needs no request");
    for _ in 0..2 {
        two.request_cancel(id(2)).await.expect("requested");
    }
    assert_eq!(requests(&two).await, []);
    let cancel = OwnerRequest::Cancel(id(2));
    let answer = OwnerRequest::Answer(id(1), given(&["a"]));
    assert_eq!(requests(&one).await, [answer, cancel.clone()]);
    assert_eq!(requests(&one).await, [cancel]);
    one.finish(id(2), end(2, vec![])).await.expect("an answer").expect("it ends");
    two.request_cancel(id(2)).await.expect("nothing is done for an ended job");
    two.request_cancel(id(9)).await.expect("nothing is done for a missing job");
    assert_eq!(requests(&one).await, []);
}

#[tokio::test]
async fn requests_about_a_job_go_to_the_server_that_took_it_over() {
    let folder = folder();
    let [one, two] = [(); 2].map(|()| open(&folder));
    for number in 1..=2 {
        one.accept(job(number)).await.expect("it is accepted");
    }
    two.request_cancel(id(2)).await.expect("requested");
    drop(one);
    let adopted = two.adopt_all().await.expect("it adopts").jobs;
    let requested: Vec<bool> = adopted.iter().map(|orphan| orphan.cancel_requested).collect();
    assert_eq!(requested, [false, true]);
    assert_eq!(requests(&two).await, [OwnerRequest::Cancel(id(2))]);
}

#[tokio::test]
async fn only_the_owner_of_a_job_writes_about_its_run() {
    let folder = folder();
    let [one, two] = [(); 2].map(|()| open(&folder));
    one.accept(job(1)).await.expect("it is accepted");
    one.begin(id(1), at(1)).await.expect("begun").expect("it is there");
    let refused = two.append_events(id(1), vec![(at(2), printed("x"))]).await;
    let refused = refused.expect_err("it is fenced").to_string();
    assert!(refused.contains("does not run it"), "{refused}");
    two.set_questions(id(1), open_question()).await.expect("nothing");
    assert!(two.finish(id(1), end(2, vec![])).await.expect("an answer").is_none());
    let job = one.job(id(1)).await.expect("an answer").expect("it is there");
    assert_eq!((job.state, job.last_event), (JobState::Running, 2));
    assert!(job.questions.is_empty());
    assert!(one.finish(id(1), end(3, vec![])).await.expect("an answer").is_some());
}

#[tokio::test]
async fn every_server_sees_the_open_questions_of_a_running_job() {
    let folder = folder();
    let [one, two] = [(); 2].map(|()| open(&folder));
    one.accept(job(1)).await.expect("it is accepted");
    one.begin(id(1), at(1)).await.expect("begun").expect("it is there");
    one.set_questions(id(1), open_question()).await.expect("stored");
    assert_eq!(questions(&two).await, open_question());
    one.requeue(id(1), at(2)).await.expect("requeued");
    one.begin(id(1), at(3)).await.expect("begun").expect("it is there");
    assert!(questions(&two).await.is_empty(), "the next run asks again");
    for open in [open_question(), ClientQuestions::new()] {
        one.set_questions(id(1), open.clone()).await.expect("stored");
        assert_eq!(questions(&two).await, open);
    }
    one.set_questions(id(1), open_question()).await.expect("stored");
    one.finish(id(1), end(4, vec![])).await.expect("an answer").expect("it ends");
    assert!(questions(&two).await.is_empty());
}

#[tokio::test]
async fn a_confirmation_is_used_once_by_all_servers_until_its_record_expires() {
    let folder = folder();
    let [one, two] = [(); 2].map(|()| open(&folder));
    let minute = Duration::from_secs(60);
    let uses = async |store: &SqliteStore, code: u8, second| {
        store.use_confirmation([code; 32], at(second), minute).await.expect("an answer")
    };
    assert!(uses(&one, 1, 0).await);
    assert!(!uses(&one, 1, 1).await);
    assert!(!uses(&two, 1, 2).await);
    assert!(uses(&two, 2, 3).await);
    drop((one, two));
    let store = open(&folder);
    assert!(!uses(&store, 1, 59).await);
    assert!(uses(&store, 1, 61).await, "the request state has expired");
}
