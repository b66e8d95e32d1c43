//! Tools that come and go while a host serves.

use toolgate_contract::{BoxFuture, ServerChange, ToolId, ToolOutput, ToolSpec};

use super::*;

/// A tool that is called so.
struct Called(ToolSpec);

impl AnyTool for Called {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    fn run<'a>(
        &'a self,
        _: &'a ToolContext,
        _: Value,
    ) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
        Box::pin(async { Err(ToolError::failed("it is only listed")) })
    }
}

fn called(id: &str, title: &str) -> Arc<dyn AnyTool> {
    let id = ToolId::foreign(id).expect("an id");
    Arc::new(Called(ToolSpec::new(id, title, "", Effects::Reads)))
}

fn titles(house: &House) -> Vec<String> {
    let tools = house.host.tools(&Caller::local()).tools;
    let titles = tools.iter().map(|tool| tool.spec().title.clone());
    titles.filter(|title| title.starts_with("of ")).collect()
}

#[tokio::test]
async fn of_what_several_offer_that_is_spelled_alike_none_is_served_until_one_alone_offers_it() {
    let of = |owner: &str, id| called(id, &format!("of {owner}"));
    for order in [["a", "b"], ["b", "a"]] {
        let house = Plan::new().build();
        assert!(house.host.offer_tools(order[0], vec![of(order[0], "x.y-z")]).is_empty());
        let refused = house.host.offer_tools(order[1], vec![of(order[1], "x.y_z")]);
        assert!(titles(&house).is_empty(), "{order:?}");
        let owners: Vec<_> = refused.iter().map(|one| &*one.owner).collect();
        assert_eq!(owners, ["a", "b"]);
        assert!(refused[0].reason.to_string().contains("one of `b`"), "{refused:?}");
        // Each is told once.
        assert!(house.host.offer_tools("c", Vec::new()).is_empty());
        assert!(house.host.offer_tools("a", Vec::new()).is_empty());
        assert_eq!(titles(&house), ["of b"], "{order:?}");
    }
}

#[tokio::test]
async fn what_this_server_offers_later_goes_before_what_others_offer_too() {
    for order in [["a", ".results"], [".results", "a"]] {
        let house = Plan::new().build();
        let mut refused = Vec::new();
        for owner in order {
            refused
                .extend(house.host.offer_tools(owner, vec![called("x.y", &format!("of {owner}"))]));
        }
        assert_eq!(titles(&house), ["of .results"], "{order:?}");
        let owners: Vec<_> = refused.iter().map(|one| &*one.owner).collect();
        assert_eq!(owners, ["a"]);
    }
}

#[tokio::test]
async fn what_this_server_has_goes_before_what_others_offer() {
    let house = Plan::new().build();
    let own = house.host.tools(&Caller::local()).tools[0].spec().id.clone();
    let refused = house.host.offer_tools("a", vec![called(own.as_str(), "of a")]);
    assert_eq!((refused.len(), titles(&house)), (1, Vec::<String>::new()));
}

#[tokio::test]
async fn who_offers_the_same_again_tells_nobody() {
    let library = Library::default();
    let house = Plan { library, ..Plan::new() }.build();
    let mut told = house.host.subscribe();
    let own = house.host.tools(&Caller::local()).tools[0].spec().id.clone();
    let tool = called("x.y", "of a");
    let other = called(own.as_str(), "of b");
    house.host.offer_tools("a", vec![tool.clone()]);
    house.host.offer_tools("b", vec![other.clone()]);
    assert_eq!(told.try_recv(), Ok(ServerChange::Tools));
    house.host.offer_tools("a", vec![tool]);
    assert!(house.host.offer_tools("b", vec![other]).is_empty(), "it was told before");
    assert!(told.try_recv().is_err());
}
