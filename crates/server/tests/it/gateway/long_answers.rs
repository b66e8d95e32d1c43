//! Tests of results of upstreams that are too long to return at once.

use serde_json::{Value, json};

use super::{launch, stdio, text, with_odd};
use crate::search_engines::server::PostgresServerProcess as Database;
use crate::support::{MODERN, TestMcpClient};

/// Returns a JSON list of about 400 KB, which is more than one result may show.
fn rows() -> Value {
    let row = |at| json!({ "id": at, "name": format!("row {at} of many") });
    json!({ "rows": (0..10_000).map(row).collect::<Vec<_>>() })
}

/// Returns a result with the structured value `value`, and with its JSON as the text, as most
/// servers send it.
fn structured(value: &Value) -> Value {
    let text = json!({ "type": "text", "text": value.to_string() });
    json!({ "content": [text], "structuredContent": value })
}

/// Returns the URIs and media types of the links in an answer.
#[track_caller]
fn links(answer: &Value) -> Vec<(String, String)> {
    let content = answer["result"]["content"].as_array().unwrap_or_else(|| panic!("{answer}"));
    let links = content.iter().filter(|block| block["type"] == "resource_link");
    let word = |block: &Value, name: &str| block[name].as_str().unwrap().to_owned();
    links.map(|block| (word(block, "uri"), word(block, "mimeType"))).collect()
}

fn read_stored(client: &mut TestMcpClient, uri: &str) -> Value {
    client.ask("resources/read", json!({ "uri": uri }))["result"]["contents"][0].clone()
}

#[test]
fn a_long_result_is_stored_and_can_be_read_on() {
    let workspace = with_odd("");
    let mut client = stdio(&workspace);
    let cut = client.call("odd_huge", json!({}));
    assert!(cut.to_string().len() < 20_000);
    let content = cut["result"]["content"].as_array().unwrap();
    let uri = content.iter().find_map(|block| block["uri"].as_str()).unwrap().to_owned();
    let read = client.ask("resources/read", json!({ "uri": uri }));
    let full = read["result"]["contents"][0]["text"].as_str().unwrap();
    assert_eq!(full.len(), 3 << 20);
    let part = client.call("results_read", json!({ "id": uri, "offset": (3 << 20) - 5 }));
    assert_eq!(text(&part), "xxxxx");
}

#[test]
fn a_long_structured_value_without_a_promised_schema_is_stored_as_json() {
    let workspace = with_odd("");
    let mut client = stdio(&workspace);
    let cut = client.call("odd_say", structured(&rows()));
    assert!(cut["result"].get("structuredContent").is_none() && cut.to_string().len() < 20_000);
    assert!(text(&cut).starts_with("{\"rows\":[{\"id\":0,"), "{cut}");
    let [(uri, media_type)] = &links(&cut)[..] else { panic!("{cut}") };
    let full = read_stored(&mut client, uri);
    assert_eq!((media_type.as_str(), &full["mimeType"]), ("application/json", &json!(media_type)));
    let full: Value = serde_json::from_str(full["text"].as_str().unwrap()).unwrap();
    assert_eq!(full, rows());
    let found = client.call("results_read", json!({ "id": uri, "find": "row 777 of" }));
    assert!(text(&found).contains("{\"id\":777,"), "{found}");
    let found = client.call("results_read", json!({ "id": uri, "find": "row of nothing" }));
    assert!(text(&found).contains("Not found from"), "{found}");
    let input = json!({ "id": uri, "fields": ["rows.name"], "find": "row 777 of" });
    let found = client.call("results_read", input);
    assert!(text(&found).contains("{\"name\":\"row 777 of many\"}"), "{found}");
    let picked = client.call("results_read", json!({ "id": uri, "fields": ["rows.777", "id"] }));
    let row = "{\"rows\":[{\"id\":777,\"name\":\"row 777 of many\"}]}";
    assert_eq!(text(&picked), row);
    let refused = client.call("results_read", json!({ "id": uri, "fields": ["name"] }));
    assert!(refused.to_string().contains("it has: `rows.id`, `rows.name`"), "{refused}");
    let beyond = client.call("results_read", json!({ "id": uri, "offset": 1_000_000_000 }));
    assert!(text(&beyond).contains("No more: the result has"), "{beyond}");
    // A short result is unchanged.
    let short = json!({ "rows": [1] });
    let full = client.call("odd_say", structured(&short));
    assert_eq!(full["result"]["structuredContent"], short);
}

#[test]
fn a_value_with_a_promised_schema_stays_structured_at_any_length() {
    let workspace = with_odd("");
    let mut client = stdio(&workspace);
    let tools = client.tools();
    let tool = tools.iter().find(|tool| tool["name"] == "odd_promise");
    assert!(tool.unwrap_or_else(|| panic!("{tools:?}")).get("outputSchema").is_some());
    let full = client.call("odd_promise", structured(&rows()));
    assert_eq!(full["result"]["structuredContent"], rows());
}

#[test]
fn a_value_that_violates_its_schema_is_refused_at_any_length() {
    let workspace = with_odd("");
    let mut client = stdio(&workspace);
    for invalid in [json!({ "lines": [] }), json!({ "lines": rows() })] {
        let refused = client.call("odd_promise", structured(&invalid));
        assert!(text(&refused).contains("`rows` is missing"), "{refused}");
        assert!(refused["result"]["isError"] == true && links(&refused).is_empty(), "{refused}");
    }
}

#[test]
fn the_largest_media_are_replaced_by_links_and_read_unchanged() {
    let workspace = with_odd("");
    let mut client = stdio(&workspace);
    // Three bytes each. The two large ones together exceed twice the limit of a result.
    let [small, large, file] = [("AAEC", 6000), ("////", 1_600_000), ("QUJD", 1_500_000)]
        .map(|(three, times)| three.repeat(times));
    let picture = |data: &str| json!({ "type": "image", "mimeType": "image/png", "data": data });
    let held = json!({ "uri": "odd://report", "mimeType": "application/pdf", "blob": file });
    let csv =
        json!({ "uri": "odd://table", "mimeType": "text/csv", "text": "a,b\n".repeat(90_000) });
    let answer = json!({ "content": [
        { "type": "text", "text": "Here they are." },
        picture(&large),
        picture(&small),
        { "type": "resource", "resource": held },
        { "type": "resource", "resource": csv },
    ] });
    let cut = client.call("odd_say", answer);
    assert_eq!(text(&cut), "Here they are.");
    let content = cut["result"]["content"].as_array().unwrap();
    assert!(content.contains(&picture(&small)), "{cut}");
    let note = content[1]["text"].as_str().unwrap();
    assert!(note.contains("odd://report") && note.contains("odd://table"), "{note}");
    let expected = [("image/png", "blob", large), ("application/pdf", "blob", file)];
    let expected = expected.into_iter().chain([("text/csv", "text", "a,b\n".repeat(90_000))]);
    let links = links(&cut);
    assert_eq!(links.len(), 3, "{note}");
    for ((uri, is), (media_type, name, full)) in links.iter().zip(expected) {
        let read = read_stored(&mut client, uri);
        assert_eq!((is.as_str(), read["mimeType"].as_str()), (media_type, Some(media_type)));
        assert!(read[name] == json!(full), "{uri}");
    }
    let refused = client.call("results_read", json!({ "id": links[0].0 }));
    assert!(refused.to_string().contains("read the resource result://"), "{refused}");
}

#[test]
fn a_secret_at_a_cut_is_redacted_in_every_piece() {
    let settings = "[secrets]\nvalues_from = [\"PASSWORD\"]";
    let workspace = with_odd(settings);
    let launch = launch(&workspace).env("PASSWORD", "correct-horse-battery");
    let mut client = TestMcpClient::stdio(launch, MODERN);
    // The shown beginning ends within the secret.
    let long_text = format!("{}correct-horse-battery{}", "x".repeat(4090), "y".repeat(300_000));
    let cut = client.call("odd_say", json!({ "content": [{ "type": "text", "text": long_text }] }));
    assert!(!text(&cut).contains("correct") && text(&cut).contains("xxx[reda"), "{cut}");
    let [(uri, _)] = &links(&cut)[..] else { panic!("{cut}") };
    let full = read_stored(&mut client, uri)["text"].as_str().unwrap().to_owned();
    assert!(full.contains("x[redacted]y") && !full.contains("correct"));
}

#[test]
fn a_long_result_is_read_at_another_server_of_a_fleet_as_long_as_the_database_answers() {
    let mut database = Database::start();
    let workspace = with_odd("");
    let client =
        || TestMcpClient::http(launch(&workspace).set("fleet_url", database.url()), MODERN);
    let [mut first, mut second] = [client(), client()];
    let cut = first.call("odd_huge", json!({}));
    let [(uri, _)] = &links(&cut)[..] else { panic!("{cut}") };
    let part = json!({ "id": uri, "offset": 1_000_000, "bytes": 100 });
    let read = second.call("results_read", part.clone());
    assert!(text(&read).contains(&"x".repeat(100)), "{read}");
    let whole = read_stored(&mut second, uri);
    assert_eq!(whole["text"].as_str().map(str::len), Some(3 << 20));
    let unknown = json!({ "id": "0123456789abcdef" });
    let refused = second.call("results_read", unknown.clone());
    assert!(refused.to_string().contains("unknown result `0123456789abcdef`"), "{refused}");
    database.stop();
    let refused = second.call("results_read", unknown);
    let why = "`0123456789abcdef` is not in the memory of this server, and";
    assert!(refused.to_string().contains(why), "{refused}");
    let read = first.call("results_read", part);
    assert!(text(&read).contains(&"x".repeat(100)), "{read}");
}
