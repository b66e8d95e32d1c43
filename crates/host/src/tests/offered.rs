//! Tests of tools that appear and disappear while a host runs.

use toolgate_contract::{ServerChange, ToolFuture, ToolId, ToolOutput, ToolSpec};

use super::*;

/// Tool that is listed but cannot be called.
struct UncallableTool(ToolSpec);

impl AnyTool for UncallableTool {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    fn run<'a>(&'a self, _: &'a ToolContext, _: Value) -> ToolFuture<'a, ToolOutput> {
        Box::pin(async { Err(ToolError::failed("it is only listed")) })
    }
}

fn called(id: &str, title: &str) -> Arc<dyn AnyTool> {
    let id = ToolId::foreign(id).expect("an id");
    Arc::new(UncallableTool(ToolSpec::new(id, title, "", Effects::Reads)))
}

fn titles(test_host: &TestHost) -> Vec<String> {
    let tools = test_host.host.tools(&Caller::local()).tools;
    let titles = tools.iter().map(|tool| tool.spec().title.clone());
    titles.filter(|title| title.starts_with("of ")).collect()
}

#[tokio::test]
async fn a_tool_name_offered_by_several_owners_is_not_served_until_one_remains() {
    let of = |owner: &str, id| called(id, &format!("of {owner}"));
    for order in [["a", "b"], ["b", "a"]] {
        let test_host = TestHostParts::new().build();
        assert!(test_host.host.offer_tools(order[0], vec![of(order[0], "x.y-z")]).is_empty());
        let refused = test_host.host.offer_tools(order[1], vec![of(order[1], "x.y_z")]);
        assert!(titles(&test_host).is_empty(), "{order:?}");
        let owners: Vec<_> = refused.iter().map(|one| &*one.owner).collect();
        assert_eq!(owners, ["a", "b"]);
        assert!(refused[0].reason.to_string().contains("also used by `b`"), "{refused:?}");
        // Each tool is reported once.
        assert!(test_host.host.offer_tools("c", Vec::new()).is_empty());
        assert!(test_host.host.offer_tools("a", Vec::new()).is_empty());
        assert_eq!(titles(&test_host), ["of b"], "{order:?}");
    }
}

#[tokio::test]
async fn a_later_tool_of_this_server_wins_over_those_of_other_owners() {
    for order in [["a", ".results"], [".results", "a"]] {
        let test_host = TestHostParts::new().build();
        let mut refused = Vec::new();
        for owner in order {
            refused.extend(
                test_host.host.offer_tools(owner, vec![called("x.y", &format!("of {owner}"))]),
            );
        }
        assert_eq!(titles(&test_host), ["of .results"], "{order:?}");
        let owners: Vec<_> = refused.iter().map(|one| &*one.owner).collect();
        assert_eq!(owners, ["a"]);
    }
}

#[tokio::test]
async fn a_tool_of_this_server_wins_over_those_of_other_owners() {
    let test_host = TestHostParts::new().build();
    let own = test_host.host.tools(&Caller::local()).tools[0].spec().id.clone();
    let refused = test_host.host.offer_tools("a", vec![called(own.as_str(), "of a")]);
    assert_eq!((refused.len(), titles(&test_host)), (1, Vec::<String>::new()));
}

#[tokio::test]
async fn offering_the_same_tools_again_notifies_nobody() {
    let library = ContentLibrary::default();
    let test_host = TestHostParts { library, ..TestHostParts::new() }.build();
    let mut told = test_host.host.subscribe();
    let own = test_host.host.tools(&Caller::local()).tools[0].spec().id.clone();
    let tool = called("x.y", "of a");
    let other = called(own.as_str(), "of b");
    test_host.host.offer_tools("a", vec![tool.clone()]);
    test_host.host.offer_tools("b", vec![other.clone()]);
    assert_eq!(told.try_recv(), Ok(ServerChange::Tools));
    test_host.host.offer_tools("a", vec![tool]);
    assert!(test_host.host.offer_tools("b", vec![other]).is_empty(), "it was reported before");
    assert!(told.try_recv().is_err());
}
