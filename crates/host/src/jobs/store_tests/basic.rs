//! Tests of one server: jobs begin, append events and end once, and expire.

use futures_util::future::join_all;
use toolgate_contract::{Caller, JobState};

use super::{TestStoreLocation, at, end, id, job, printed};
use crate::jobs::store::{NewJob, StartedJob};

pub(in crate::jobs) async fn a_job_begins_once_and_ends_once(place: &impl TestStoreLocation) {
    let store = place.open().await;
    assert!(
        store.begin(id(1), at(1)).await.expect("an answer").is_none(),
        "the job does not exist"
    );
    assert!(store.finish(id(1), end(1, vec![])).await.expect("an answer").is_none());
    store.accept(job(1)).await.expect("it is accepted");
    let twice = store.accept(job(1)).await.expect_err("it is there").to_string();
    assert!(twice.contains("already exists"), "{twice}");

    let begun = join_all((0..8).map(|_| store.begin(id(1), at(1)))).await;
    let begun: Vec<StartedJob> =
        begun.into_iter().filter_map(|begun| begun.expect("one")).collect();
    assert_eq!(
        begun.iter().map(|begun| (begun.attempt, begun.start_event)).collect::<Vec<_>>(),
        [(1, 2)]
    );
    let ends = (0..8).map(|_| store.finish(id(1), end(2, vec![(at(2), printed("last"))])));
    let first: Vec<Option<u64>> =
        join_all(ends).await.into_iter().map(|end| end.expect("an answer")).collect();
    assert_eq!(first.iter().flatten().collect::<Vec<_>>(), [&3]);

    let ended = store.job(id(1)).await.expect("an answer").expect("it is there");
    assert_eq!((ended.state, ended.last_event, ended.updated), (JobState::Succeeded, 4, at(2)));
    assert_eq!(ended.outcome.expect("one").expect("an output").text.body, "one");
    assert_eq!(ended.artefacts, end(2, vec![]).artefacts);
    let late =
        store.append_events(id(1), vec![(at(3), printed("late"))]).await.expect_err("it ended");
    assert!(late.to_string().contains("has ended"), "{late}");
}

pub(in crate::jobs) async fn events_are_numbered_without_gaps(place: &impl TestStoreLocation) {
    let store = place.open().await;
    store.accept(job(1)).await.expect("it is accepted");
    store.accept(job(2)).await.expect("it is accepted");
    store.begin(id(1), at(1)).await.expect("it begins");
    let three =
        || vec![(at(2), printed("one")), (at(2), printed("two")), (at(2), printed("three"))];
    let added = join_all((0..20).map(|_| store.append_events(id(1), three()))).await;
    let mut first: Vec<u64> = added.into_iter().map(|first| first.expect("it is added")).collect();
    first.sort_unstable();
    assert_eq!(first, (0..20).map(|turn| 3 + 3 * turn).collect::<Vec<u64>>());
    assert_eq!(store.append_events(id(1), vec![]).await.expect("nothing"), 63);

    let mut seen = Vec::new();
    let mut after = 0;
    loop {
        let page = store.events(id(1), after, 300).await.expect("events");
        let Some(last) = page.last() else { break };
        assert!(page.len() < 20, "a page is bounded");
        after = last.seq;
        seen.extend(page.iter().map(|event| event.seq));
    }
    assert_eq!(seen, (1..=62).collect::<Vec<u64>>());
    assert_eq!(
        store.events(id(2), 0, 300).await.expect("events").len(),
        1,
        "events of other jobs are left out"
    );
    assert_eq!(store.events(id(1), u64::MAX, 300).await.expect("events"), []);
}

pub(in crate::jobs) async fn only_expired_jobs_are_removed(place: &impl TestStoreLocation) {
    let store = place.open().await;
    for number in 1..=6 {
        store.accept(job(number)).await.expect("it is accepted");
    }
    for number in 1..=4 {
        let second = i64::try_from(number).expect("small");
        store.finish(id(number), end(second, vec![(at(1), printed("x"))])).await.expect("it ends");
    }
    assert_eq!(
        store.remove_expired(at(61), 4).await.expect("an answer"),
        [],
        "one minute has not passed"
    );
    assert_eq!(store.remove_expired(at(62), 4).await.expect("an answer"), [id(1)]);
    assert_eq!(
        store.remove_expired(at(62), 2).await.expect("an answer"),
        [id(2)],
        "one job too many"
    );
    assert_eq!(store.remove_expired(at(9999), 9).await.expect("an answer").len(), 2);
    let page = store.list(None, None, 10).await.expect("a page");
    assert!(page.jobs.iter().map(|job| job.id).eq([id(6), id(5)]), "they have not ended");
    assert_eq!(store.events(id(1), 0, 100).await.expect("events"), []);
}

pub(in crate::jobs) async fn beyond_the_limit_the_oldest_jobs_of_the_caller_with_most_are_removed(
    place: &impl TestStoreLocation,
) {
    let store = place.open().await;
    for number in 1..=6 {
        let caller = Caller::with_key(if number <= 2 { "bob" } else { "ada" });
        store.accept(NewJob { caller, ..job(number) }).await.expect("it is accepted");
        let second = i64::try_from(number).expect("small");
        store.finish(id(number), end(second, vec![])).await.expect("it ends");
    }
    let beyond = async |most| store.remove_expired(at(7), most).await.expect("an answer");
    assert_eq!(beyond(6).await, []);
    assert_eq!(beyond(4).await, [id(3), id(4)]);
    assert_eq!(beyond(3).await, [id(1)], "of two that have as many");
}
