//! Tests that a server claims the right jobs, in the right order.

use super::*;

#[tokio::test]
async fn only_jobs_in_a_lane_of_the_server_and_of_callers_with_room_are_claimed() {
    let place = TestDatabaseLocation::start();
    let one = place.open_long().await;
    one.accept(NewJob { lane: None, ..job(1) }).await.expect("it is accepted");
    let lane = Some("exec.run@2".to_owned());
    one.accept(NewJob { lane, ..job(2) }).await.expect("it is accepted");
    let caller = Caller::with_key("bob");
    one.accept(NewJob { caller: caller.clone(), ..job(3) }).await.expect("it is accepted");
    one.accept(job(4)).await.expect("it is accepted");
    let two = open_steady(&place).await;
    let full =
        ClaimableJobQueue { name: "exec.run@1".to_owned(), idempotent: false, has_room: false };
    assert_eq!(claimed(&two, JobClaim { lanes: vec![full], ..places(9) }).await, []);
    let claim = JobClaim { busy_callers: vec![caller], ..places(9) };
    assert_eq!(claimed(&two, claim).await, [id(4)]);
    let claim = JobClaim { may_claim: Arc::new(|job| job.id != id(3)), ..places(9) };
    assert_eq!(claimed(&two, claim).await, []);
    assert_eq!(claimed(&two, places(9)).await, [id(3)]);
}

#[tokio::test]
async fn jobs_are_claimed_by_priority_and_then_in_turn_among_their_callers() {
    let place = TestDatabaseLocation::start();
    let one = place.open_long().await;
    for number in 1..=3 {
        one.accept(job(number)).await.expect("it is accepted");
    }
    for number in 4..=5 {
        let caller = Caller::with_key("bob");
        one.accept(NewJob { caller, ..job(number) }).await.expect("it is accepted");
    }
    one.accept(NewJob { priority: 4, ..job(6) }).await.expect("it is accepted");
    let two = open_steady(&place).await;
    let order = claimed(&two, places(9)).await;
    // The jobs of a caller who comes later come between those that wait already.
    assert_eq!(order, [6, 1, 2, 4, 3, 5].map(id));
}

#[tokio::test]
async fn a_job_behind_many_that_a_server_may_not_claim_is_claimed_later() {
    let place = TestDatabaseLocation::start();
    let one = place.open_long().await;
    for number in 1..=70 {
        one.accept(job(number)).await.expect("it is accepted");
    }
    let two = open_steady(&place).await;
    let claim = || JobClaim { may_claim: Arc::new(|job| job.id == id(70)), ..places(9) };
    assert_eq!(claimed(&two, claim()).await, [], "the first candidates are all refused");
    assert_eq!(claimed(&two, claim()).await, [id(70)]);
    assert_eq!(claimed(&two, places(1)).await, [id(1)], "it begins anew");
}

#[tokio::test]
async fn a_job_that_a_server_has_just_claimed_is_claimed_by_another_only_if_it_does_not_begin() {
    let place = TestDatabaseLocation::start();
    let one = place.open_long().await;
    one.accept(job(1)).await.expect("it is accepted");
    let [two, three] = [open_steady(&place).await, open_steady(&place).await];
    assert_eq!(claimed(&two, places(9)).await, [id(1)]);
    assert_eq!(claimed(&three, places(9)).await, []);
    // As after a while, and then as after the clock was set back.
    for (server, at) in [(&three, "now() - interval '3 s'"), (&two, "now() + interval '1 h'")] {
        place.server.run(&format!("update toolgate_fleet.jobs set claimed = {at}"));
        assert_eq!(claimed(server, places(9)).await, [id(1)], "{at}");
    }
    two.begin(id(1), at(1)).await.expect("an answer").expect("it begins");
    two.requeue(id(1), at(2)).await.expect("it is put back");
    assert_eq!(claimed(&three, places(9)).await, [id(1)], "it was put back");
}
