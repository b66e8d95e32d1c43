//! Tests of resources and tools with equal names that several upstreams list, or that one upstream
//! lists twice.

use serde_json::{Value, json};

use super::{launch, names, stdio, text, with_odds};
use crate::support::{MODERN, TestClientTransport, TestMcpClient, wait_until};

fn read(client: &mut TestMcpClient, uri: &str) -> Value {
    client.ask("resources/read", json!({ "uri": uri }))
}

#[test]
fn a_resource_is_read_from_the_upstream_that_lists_it_and_our_own_uris_are_reserved() {
    let one = "ODD_SAYS = \"one\", ODD_RESOURCES = \"odd://1 odd://both result://mine\",";
    let two = "ODD_SAYS = \"two\", ODD_RESOURCES = \"odd://2 odd://both file:///etc/passwd\",";
    let workspace = with_odds(&[("one", one, ""), ("two", two, "")]);
    let served = launch(&workspace).served();
    let mut client = TestMcpClient::open(TestClientTransport::Http(served), MODERN, json!({}));
    let listed = client.ask("resources/list", json!({})).to_string();
    assert!(listed.contains("odd://1") && listed.contains("odd://2"), "{listed}");
    assert_eq!(listed.matches("odd://both").count(), 2, "its name and its URI, once: {listed}");
    assert!(!listed.contains("result://mine") && !listed.contains("/etc/passwd"), "{listed}");
    for (uri, expected) in [("odd://1", "one"), ("odd://2", "two"), ("odd://both", "one")] {
        let answer = read(&mut client, uri);
        assert_eq!(answer["result"]["contents"][0]["text"], expected, "{answer}");
    }
    // A stored result is read even if an upstream lists such a URI.
    let long = client.call("two_huge", json!({}));
    let link = long["result"]["content"].as_array().unwrap().iter();
    let uri = link.filter_map(|it| it["uri"].as_str()).next().unwrap().to_owned();
    let full = read(&mut client, &uri);
    assert_eq!(full["result"]["contents"][0]["text"].as_str().map(str::len), Some(3 << 20));
    assert!(read(&mut client, "result://mine").get("error").is_some());
    assert!(!workspace.read("one.log").contains("result://"));
    let log = client.server().log();
    assert!(log.contains("odd://both") && log.contains("result://mine"), "{log}");
}

#[test]
fn an_unknown_uri_with_many_slashes_is_refused_quickly() {
    let workspace = with_odds(&[("odd", "ODD_RESOURCES = \"odd://1\",", "")]);
    let endless = read(&mut stdio(&workspace), &format!("a:/{}", "/x".repeat(1 << 20)));
    assert!(endless["error"]["message"].as_str().unwrap().contains("16384 bytes"), "{endless}");
}

#[test]
fn a_tool_that_is_listed_twice_is_not_served_and_logged() {
    let workspace = with_odds(&[("odd", "ODD_TWICE = \"Another.\",", "")]);
    let served = launch(&workspace).served();
    let mut client = TestMcpClient::open(TestClientTransport::Http(served), MODERN, json!({}));
    let names = names(&mut client);
    assert!(!names.contains(&"odd_echo".to_owned()), "{names:?}");
    assert!(names.contains(&"odd_shout".to_owned()), "{names:?}");
    assert!(client.server().log().contains("odd.echo"), "{}", client.server().log());
}

#[test]
fn a_tool_without_a_prefix_cannot_join_our_own_toolsets() {
    let workspace = with_odds(&[("odd", "", "prefix = \"\"")]);
    let mut client = stdio(&workspace);
    let names = names(&mut client);
    assert!(names.contains(&"shout".to_owned()), "{names:?}");
    assert!(!names.contains(&"files_odd".to_owned()), "{names:?}");
}

#[test]
fn a_tool_that_two_upstreams_have_is_not_served_and_both_are_logged() {
    let late = "prefix = \"\"\nstart_ms = 1000";
    let all = [("late", "ODD_LATE = \"1\",", late), ("other", "", "prefix = \"\"")];
    let workspace = with_odds(&all);
    let mut client = stdio(&workspace);
    assert!(names(&mut client).contains(&"echo".to_owned()));
    let echo = json!({ "message": "hello" });
    assert_eq!(text(&client.call("echo", echo.clone())), "hello");
    std::fs::write(workspace.path("late.log.go"), "").unwrap();
    wait_until("the other upstream has listed", || {
        !names(&mut client).contains(&"echo".to_owned())
    });
    let refused = client.call("echo", echo);
    assert!(refused.get("error").is_some() || refused["result"]["isError"] == true, "{refused}");
    assert!(!workspace.read("late.log").contains("call echo"));
    let log = client.server().log();
    for (owner, other) in [("late", "other"), ("other", "late")] {
        let warning = format!("the tool `echo` of the upstream `{owner}` is not served");
        assert!(
            log.contains(&warning) && log.contains(&format!("also used by `{other}`")),
            "{log}"
        );
    }
}
