//! Tests of jobs of several callers.

use super::*;

#[tokio::test]
async fn beyond_the_limit_the_oldest_jobs_of_the_caller_with_most_are_removed() {
    let folder = folder();
    let store = open(&folder);
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
