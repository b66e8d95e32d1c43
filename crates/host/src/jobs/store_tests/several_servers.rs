//! Tests that servers with a shared store see, change and take over each other's jobs only as
//! allowed, and that no job is lost when a server ends.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use toolgate_contract::{
    Caller, CallerKind, ClientAnswer, ClientQuestion, ClientQuestions, JobId, JobState,
    QuestionSupport,
};

use super::{TestStoreLocation, adopt_all, at, end, given, id, job, printed, shut_down};
use crate::jobs::store::{JobQuestionState, JobStore, NewJob, RequestToJobOwner, TakeoverFilter};

/// Returns one open question for a test.
fn open_question() -> ClientQuestions {
    ClientQuestions::from([("q".to_owned(), ClientQuestion::Roots)])
}

async fn requests(store: &dyn JobStore) -> Vec<RequestToJobOwner> {
    store.take_requests().await.expect("an answer")
}

async fn questions(store: &dyn JobStore) -> ClientQuestions {
    store.job(id(1)).await.expect("an answer").expect("it is there").questions
}

pub(in crate::jobs) async fn each_job_of_a_dead_server_is_adopted_by_one_server(
    place: &impl TestStoreLocation,
) {
    for round in 0..20 {
        let dead = place.open().await;
        let numbers = round * 10 + 1..=round * 10 + 10;
        for number in numbers.clone() {
            dead.accept(job(number)).await.expect("it is accepted");
        }
        let left = place.open().await;
        let right = place.open().await;
        shut_down(dead).await;
        let (one, two) = tokio::join!(adopt_all(&*left), adopt_all(&*right));
        let mut ids: Vec<JobId> = [one, two]
            .into_iter()
            .flat_map(|adopted| adopted.expect("it adopts").jobs)
            .map(|orphan| orphan.id)
            .collect();
        ids.sort_unstable();
        assert_eq!(ids, numbers.clone().map(id).collect::<Vec<_>>());
        for number in numbers {
            let ends = [&left, &right].map(|store| store.finish(id(number), end(1, vec![])));
            join_all(ends).await;
        }
    }
}

pub(in crate::jobs) async fn jobs_of_a_live_server_are_not_adopted(place: &impl TestStoreLocation) {
    let one = place.open().await;
    let two = place.open().await;
    one.accept(job(1)).await.expect("it is accepted");
    let adopted = adopt_all(&*two).await.expect("it adopts");
    assert!(adopted.jobs.is_empty() && adopted.marks.is_empty());
    assert!(
        two.begin(id(1), at(1)).await.expect("an answer").is_none(),
        "the job belongs to the other server"
    );
    assert!(one.begin(id(1), at(1)).await.expect("an answer").is_some());
    two.requeue(id(1), at(2)).await.expect("nothing");
    assert!(one.begin(id(1), at(3)).await.expect("an answer").is_none(), "it is still running");
    one.requeue(id(1), at(2)).await.expect("it is put back");
    assert_eq!(one.begin(id(1), at(3)).await.expect("an answer").expect("it").attempt, 2);
    shut_down(one).await;
    assert_eq!(adopt_all(&*two).await.expect("it adopts").jobs.len(), 1);
}

pub(in crate::jobs) async fn a_job_that_one_server_may_not_adopt_is_left_for_another(
    place: &impl TestStoreLocation,
) {
    let one = place.open().await;
    for number in 1..=2 {
        one.accept(job(number)).await.expect("it is accepted");
    }
    shut_down(one).await;
    let two = place.open().await;
    let may: TakeoverFilter = Arc::new(|orphan| orphan.id == id(2));
    let adopted = two.adopt(may).await.expect("it adopts");
    assert_eq!(adopted.jobs.iter().map(|job| job.id).collect::<Vec<_>>(), [id(2)]);
    (adopted.forget_servers)();
    // The server knows its own job.
    let may: TakeoverFilter = Arc::new(|orphan| orphan.id != id(2));
    let adopted = two.adopt(may).await.expect("it adopts");
    assert_eq!(adopted.jobs.iter().map(|job| job.id).collect::<Vec<_>>(), [id(1)]);
}

pub(in crate::jobs) async fn answers_survive_a_restart_and_the_first_answer_wins(
    place: &impl TestStoreLocation,
) {
    let can = QuestionSupport { form: true, ..QuestionSupport::default() };
    let store = place.open().await;
    let asking = JobQuestionState { can, given: given(&["one"]), has_begun_work: true };
    store.accept(NewJob { answers: asking, ..job(1) }).await.expect("accepted");
    store.begin(id(1), at(1)).await.expect("begun").expect("it is there");
    let mut later = given(&["two"]);
    later.insert("one".to_owned(), ClientAnswer::Roots(Vec::new()));
    store.add_answers(id(1), later).await.expect("answered");
    store.add_answers(id(2), given(&["x"])).await.expect("nothing is done for a missing job");
    shut_down(store).await;

    let store = place.open().await;
    assert_eq!(adopt_all(&*store).await.expect("adopted").jobs.len(), 1);
    store.requeue(id(1), at(2)).await.expect("requeued");
    let begun = store.begin(id(1), at(3)).await.expect("begun").expect("it is there");
    let expected = JobQuestionState { can, given: given(&["one", "two"]), has_begun_work: true };
    assert_eq!(begun.answers, expected);
}

pub(in crate::jobs) async fn a_job_keeps_the_kind_scopes_and_roles_of_its_caller(
    place: &impl TestStoreLocation,
) {
    let store = place.open().await;
    let list = |words: &[&str]| words.iter().map(|word| (*word).into()).collect();
    let caller = Caller {
        scopes: list(&["files:read"]),
        roles: list(&["ops", "ci"]),
        ..Caller::new("okta:ada", CallerKind::Token)
    };
    for (number, caller) in
        [(1, caller.clone()), (2, Caller::local()), (3, Caller::with_key("ada"))]
    {
        store.accept(NewJob { caller, ..job(number) }).await.expect("accepted");
    }
    shut_down(store).await;
    let store = place.open().await;
    assert_eq!(adopt_all(&*store).await.expect("adopted").jobs.len(), 3);
    let begun = store.begin(id(1), at(1)).await.expect("begun").expect("it is there").caller;
    assert_eq!((&begun, &begun.scopes, &begun.roles), (&caller, &caller.scopes, &caller.roles));
    let stored = store.job(id(1)).await.expect("read").expect("it is there").caller;
    assert_eq!((&stored, &stored.scopes, &stored.roles), (&caller, &caller.scopes, &caller.roles));
    for (number, caller) in [(2, Caller::local()), (3, Caller::with_key("ada"))] {
        assert_eq!(store.job(id(number)).await.expect("read").expect("it is there").caller, caller);
    }
}

pub(in crate::jobs) async fn requests_reach_the_owner_of_a_job_and_cancellations_stay_until_its_end(
    place: &impl TestStoreLocation,
) {
    let [one, two] = [place.open().await, place.open().await];
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
    assert_eq!(requests(&*two).await, []);
    let cancel = RequestToJobOwner::Cancel(id(2));
    let answer = RequestToJobOwner::Answer(id(1), given(&["a"]));
    assert_eq!(requests(&*one).await, [answer, cancel.clone()]);
    assert_eq!(requests(&*one).await, [cancel]);
    one.finish(id(2), end(2, vec![])).await.expect("an answer").expect("it ends");
    two.request_cancel(id(2)).await.expect("nothing is done for an ended job");
    two.request_cancel(id(9)).await.expect("nothing is done for a missing job");
    assert_eq!(requests(&*one).await, []);
}

pub(in crate::jobs) async fn requests_about_a_job_go_to_the_server_that_took_it_over(
    place: &impl TestStoreLocation,
) {
    let [one, two] = [place.open().await, place.open().await];
    for number in 1..=2 {
        one.accept(job(number)).await.expect("it is accepted");
    }
    two.request_cancel(id(2)).await.expect("requested");
    shut_down(one).await;
    let adopted = adopt_all(&*two).await.expect("it adopts").jobs;
    let requested: Vec<bool> = adopted.iter().map(|orphan| orphan.cancel_requested).collect();
    assert_eq!(requested, [false, true]);
    assert_eq!(requests(&*two).await, [RequestToJobOwner::Cancel(id(2))]);
}

pub(in crate::jobs) async fn only_the_owner_of_a_job_writes_about_its_run(
    place: &impl TestStoreLocation,
) {
    let [one, two] = [place.open().await, place.open().await];
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

pub(in crate::jobs) async fn every_server_sees_the_open_questions_of_a_running_job(
    place: &impl TestStoreLocation,
) {
    let [one, two] = [place.open().await, place.open().await];
    one.accept(job(1)).await.expect("it is accepted");
    one.begin(id(1), at(1)).await.expect("begun").expect("it is there");
    one.set_questions(id(1), open_question()).await.expect("stored");
    assert_eq!(questions(&*two).await, open_question());
    let listed = two.list(None, None, 10).await.expect("an answer");
    assert_eq!(listed.jobs[0].questions, open_question());
    one.requeue(id(1), at(2)).await.expect("requeued");
    one.begin(id(1), at(3)).await.expect("begun").expect("it is there");
    assert!(questions(&*two).await.is_empty(), "the next run asks again");
    for open in [open_question(), ClientQuestions::new()] {
        one.set_questions(id(1), open.clone()).await.expect("stored");
        assert_eq!(questions(&*two).await, open);
    }
    one.set_questions(id(1), open_question()).await.expect("stored");
    one.finish(id(1), end(4, vec![])).await.expect("an answer").expect("it ends");
    assert!(questions(&*two).await.is_empty());
}

pub(in crate::jobs) async fn a_confirmation_is_used_once_by_all_servers_until_its_record_expires(
    place: &impl TestStoreLocation,
) {
    let [one, two] = [place.open().await, place.open().await];
    let minute = Duration::from_secs(60);
    let uses = async |store: &dyn JobStore, code: u8, second| {
        store.use_confirmation([code; 32], at(second), minute).await.expect("an answer")
    };
    assert!(uses(&*one, 1, 0).await);
    assert!(!uses(&*one, 1, 1).await);
    assert!(!uses(&*two, 1, 2).await);
    assert!(uses(&*two, 2, 3).await);
    shut_down(one).await;
    shut_down(two).await;
    let store = place.open().await;
    assert!(!uses(&*store, 1, 59).await);
    assert!(uses(&*store, 1, 61).await, "the request state has expired");
}
