//! Answers of upstreams that are longer than is given at once.

use serde_json::{Value, json};

use super::{stdio, text, with_odd, with_odds};
use crate::support::Client;

/// Rows that come to some 40 KB as JSON.
fn rows() -> Value {
    let row = |at| json!({ "id": at, "name": format!("row {at} of many") });
    json!({ "rows": (0..1000).map(row).collect::<Vec<_>>() })
}

/// An answer whose text is the JSON of its structured value, as most servers have it.
fn structured(value: &Value) -> Value {
    let text = json!({ "type": "text", "text": value.to_string() });
    json!({ "content": [text], "structuredContent": value })
}

/// The links that an answer has: their URIs and media types.
#[track_caller]
fn links(answer: &Value) -> Vec<(String, String)> {
    let content = answer["result"]["content"].as_array().unwrap_or_else(|| panic!("{answer}"));
    let links = content.iter().filter(|block| block["type"] == "resource_link");
    let word = |block: &Value, name: &str| block[name].as_str().unwrap().to_owned();
    links.map(|block| (word(block, "uri"), word(block, "mimeType"))).collect()
}

fn kept(client: &mut Client, uri: &str) -> Value {
    client.ask("resources/read", json!({ "uri": uri }))["result"]["contents"][0].clone()
}

#[test]
fn a_long_answer_is_kept_and_read_on() {
    let workspace = with_odd("answer_bytes = 20000");
    let mut client = stdio(&workspace);
    let cut = client.call("odd_huge", json!({}));
    assert!(cut.to_string().len() < 20_000);
    let content = cut["result"]["content"].as_array().unwrap();
    let uri = content.iter().find_map(|block| block["uri"].as_str()).unwrap().to_owned();
    let read = client.ask("resources/read", json!({ "uri": uri }));
    let whole = read["result"]["contents"][0]["text"].as_str().unwrap();
    assert_eq!(whole.len(), 3 << 20);
    let part = client.call("results_read", json!({ "id": uri, "offset": (3 << 20) - 5 }));
    assert_eq!(text(&part), "xxxxx");
}

#[test]
fn a_long_structured_answer_that_nobody_promised_is_kept_as_json_and_read_on() {
    let workspace = with_odd("answer_bytes = 20000");
    let mut client = stdio(&workspace);
    let cut = client.call("odd_say", structured(&rows()));
    assert!(cut["result"].get("structuredContent").is_none() && cut.to_string().len() < 20_000);
    assert!(text(&cut).starts_with("{\"rows\":[{\"id\":0,"), "{cut}");
    let [(uri, media_type)] = &links(&cut)[..] else { panic!("{cut}") };
    let whole = kept(&mut client, uri);
    assert_eq!((media_type.as_str(), &whole["mimeType"]), ("application/json", &json!(media_type)));
    let whole: Value = serde_json::from_str(whole["text"].as_str().unwrap()).unwrap();
    assert_eq!(whole, rows());
    let found = client.call("results_read", json!({ "id": uri, "find": "row 777 of" }));
    assert!(text(&found).contains("{\"id\":777,"), "{found}");
    let found = client.call("results_read", json!({ "id": uri, "find": "row of nothing" }));
    assert!(text(&found).contains("That is not in it"), "{found}");
    let beyond = client.call("results_read", json!({ "id": uri, "offset": 1_000_000_000 }));
    assert!(text(&beyond).contains("Nothing more: it has"), "{beyond}");
    // What is short is as it was.
    let short = json!({ "rows": [1] });
    let whole = client.call("odd_say", structured(&short));
    assert_eq!(whole["result"]["structuredContent"], short);
}

#[test]
fn what_was_promised_is_structured_however_long_and_is_not_promised_where_settings_say_so() {
    let settings = "answer_bytes = 20000\n";
    let unpromised = format!("{settings}promise_outputs = false");
    let workspace = with_odds(&[("odd", "", settings), ("free", "", &unpromised)]);
    let mut client = stdio(&workspace);
    let tools = client.tools();
    let promises = |name: &str| {
        let tool = tools.iter().find(|tool| tool["name"] == name);
        tool.unwrap_or_else(|| panic!("{tools:?}")).get("outputSchema").is_some()
    };
    assert_eq!((promises("odd_promise"), promises("free_promise")), (true, false));
    let whole = client.call("odd_promise", structured(&rows()));
    assert_eq!(whole["result"]["structuredContent"], rows());
    let cut = client.call("free_promise", structured(&rows()));
    assert!(cut["result"].get("structuredContent").is_none() && cut.to_string().len() < 20_000);
    assert_eq!(links(&cut)[0].1, "application/json");
    let short = json!({ "rows": [1] });
    let whole = client.call("free_promise", structured(&short));
    assert_eq!(whole["result"]["structuredContent"], short);
}

#[test]
fn what_breaks_a_schema_that_is_not_promised_is_refused_all_the_same_however_long() {
    let workspace = with_odd("answer_bytes = 20000\npromise_outputs = false");
    let mut client = stdio(&workspace);
    for odd in [json!({ "lines": [] }), json!({ "lines": rows() })] {
        let refused = client.call("odd_promise", structured(&odd));
        assert!(text(&refused).contains("`rows` is missing"), "{refused}");
        assert!(refused["result"]["isError"] == true && links(&refused).is_empty(), "{refused}");
    }
}

#[test]
fn the_largest_of_pictures_and_files_are_read_by_their_links_as_they_were() {
    let workspace = with_odd("answer_bytes = 20000\nmedia_bytes = 50000");
    let mut client = stdio(&workspace);
    // Three bytes each.
    let [small, large, file] = [("AAEC", 6000), ("////", 20_000), ("QUJD", 15_000)]
        .map(|(three, times)| three.repeat(times));
    let picture = |data: &str| json!({ "type": "image", "mimeType": "image/png", "data": data });
    let held = json!({ "uri": "odd://report", "mimeType": "application/pdf", "blob": file });
    let csv = json!({ "uri": "odd://table", "mimeType": "text/csv", "text": "a,b\n".repeat(9000) });
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
    let expected = expected.into_iter().chain([("text/csv", "text", "a,b\n".repeat(9000))]);
    let links = links(&cut);
    assert_eq!(links.len(), 3, "{note}");
    for ((uri, is), (media_type, name, whole)) in links.iter().zip(expected) {
        let read = kept(&mut client, uri);
        assert_eq!((is.as_str(), read["mimeType"].as_str()), (media_type, Some(media_type)));
        assert!(read[name] == json!(whole), "{uri}");
    }
    let refused = client.call("results_read", json!({ "id": links[0].0 }));
    assert!(refused.to_string().contains("read the resource result://"), "{refused}");
}

#[test]
fn a_secret_that_stands_where_an_answer_is_cut_is_told_in_no_piece() {
    let settings = "answer_bytes = 20000\n[secrets]\nvalues_from = [\"PASSWORD\"]";
    let workspace = with_odd(settings);
    let launch = super::launch(&workspace).env("PASSWORD", "correct-horse-battery");
    let mut client = Client::stdio(launch, crate::support::MODERN);
    // What is shown of the beginning ends within it.
    let said = format!("{}correct-horse-battery{}", "x".repeat(4090), "y".repeat(30_000));
    let cut = client.call("odd_say", json!({ "content": [{ "type": "text", "text": said }] }));
    assert!(!text(&cut).contains("correct") && text(&cut).contains("xxx[reda"), "{cut}");
    let [(uri, _)] = &links(&cut)[..] else { panic!("{cut}") };
    let whole = kept(&mut client, uri)["text"].as_str().unwrap().to_owned();
    assert!(whole.contains("x[redacted]y") && !whole.contains("correct"));
}
