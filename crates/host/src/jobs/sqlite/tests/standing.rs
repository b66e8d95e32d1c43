//! Tests that the caller of a stored job is restored.

use toolgate_contract::{Caller, CallerKind};

use super::*;

#[tokio::test]
async fn a_job_keeps_the_kind_scopes_and_roles_of_its_caller() {
    let folder = folder();
    let store = open(&folder);
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
    drop(store);
    let store = open(&folder);
    assert_eq!(store.adopt_all().await.expect("adopted").jobs.len(), 3);
    let begun = store.begin(id(1), at(1)).await.expect("begun").expect("it is there").caller;
    assert_eq!((&begun, &begun.scopes, &begun.roles), (&caller, &caller.scopes, &caller.roles));
    let stored = store.job(id(1)).await.expect("read").expect("it is there").caller;
    assert_eq!((&stored, &stored.scopes, &stored.roles), (&caller, &caller.scopes, &caller.roles));
    for (number, caller) in [(2, Caller::local()), (3, Caller::with_key("ada"))] {
        assert_eq!(store.job(id(number)).await.expect("read").expect("it is there").caller, caller);
    }
}
