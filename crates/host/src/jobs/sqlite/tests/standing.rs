//! Whose a job is, beyond a name.

use toolgate_contract::{Caller, CallerKind};

use super::*;

#[tokio::test]
async fn a_job_remembers_how_its_caller_is_known_and_what_it_might() {
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
    let kept = store.job(id(1)).await.expect("read").expect("it is there").caller;
    assert_eq!((&kept, &kept.scopes, &kept.roles), (&caller, &caller.scopes, &caller.roles));
    for (number, caller) in [(2, Caller::local()), (3, Caller::with_key("ada"))] {
        assert_eq!(store.job(id(number)).await.expect("read").expect("it is there").caller, caller);
    }
}
