//! Tests of servers that are silent for a while: their open transactions, and writes of an earlier
//! attempt that reach the database after another server has restarted the job.

use super::*;

#[tokio::test]
async fn a_late_write_of_an_earlier_start_of_a_job_changes_nothing() {
    let place = TestDatabaseLocation::start();
    let store = place.open_long().await;
    store.accept(job(1)).await.expect("it is accepted");
    store.begin(id(1), at(1)).await.expect("an answer").expect("it begins");
    // As if the job had returned to this server and begun there again.
    place.server.run("update toolgate_fleet.jobs set attempts = 2");
    let refused = store.append_events(id(1), vec![(at(2), printed("late"))]).await;
    let refused = refused.expect_err("it is fenced").to_string();
    assert!(refused.contains("does not run it"), "{refused}");
    assert!(store.finish(id(1), end(3, vec![])).await.expect("an answer").is_none());
    let stored = store.job(id(1)).await.expect("an answer").expect("it is there");
    assert_eq!((stored.state, stored.last_event), (JobState::Running, 2));
}

#[tokio::test]
async fn a_job_whose_start_the_database_forgot_can_end() {
    let place = TestDatabaseLocation::start();
    let store = place.open_long().await;
    store.accept(job(1)).await.expect("it is accepted");
    store.begin(id(1), at(1)).await.expect("an answer").expect("it begins");
    // As after a failover to a standby that had not received the start.
    place.server.run("update toolgate_fleet.jobs set state = 'queued', attempts = 0");
    store.append_events(id(1), vec![(at(2), printed("x"))]).await.expect("it is added");
    store.finish(id(1), end(3, vec![])).await.expect("an answer").expect("it ends");
}

#[tokio::test]
async fn jobs_of_a_server_that_froze_in_a_transaction_are_taken_over() {
    let place = TestDatabaseLocation::start();
    let short = Duration::from_secs(3);
    let one = place.open_with(short, short).await;
    let two = place.open_with(short, short).await;
    one.accept(job(1)).await.expect("it is accepted");
    let (pool, lease) = (one.pool.clone(), one.lease.clone());
    let mut lent = pool.acquire().await.expect("a connection");
    let work = lent.connection.client.transaction().await.expect("a transaction");
    claims::lock_live_server(&work, &lease).await.expect("its lease is valid");
    drop(one);
    assert_eq!(adopt_some(&two, &[]).await, [id(1)]);
    let err = PostgresError::from(work.commit().await.expect_err("the transaction has ended"));
    assert!(!err.keeps_connection(), "{err:?}");
}
