//! Tests of shortening long results, and of reading the stored complete results.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use toolgate_contract::{
    BoxFuture, Caller, ContentBlock, ContentBody, MetaFields, ResourceContents, ResourceData,
    ResourceSpec, ResultText, SharedLongResult, SharedResultStore, Tool, ToolContext, ToolError,
    ToolErrorKind, ToolId, ToolOutput, ToolRunStatus,
};

use super::reading::{
    LINE_BYTES, ReadStoredResult, ReadStoredResultInput, StoredResultPart, find_matches,
};
use super::{ResultSizeBudget, SCHEME, STORE_BYTES_MAX, UpstreamResultStore};

const BUDGET: ResultSizeBudget =
    ResultSizeBudget { text_bytes: 10_000, media_bytes: 1000, is_schema_promised: false };
const ALL: ResultSizeBudget =
    ResultSizeBudget { text_bytes: 0, media_bytes: 0, is_schema_promised: false };

fn ctx(name: &str) -> ToolContext {
    ToolContext::detached(Caller::with_key(name), Instant::now() + Duration::from_secs(5))
}

/// Shortens the result `output` for the caller Ann, so that it fits into `budget`.
fn cut(results: &UpstreamResultStore, output: ToolOutput, budget: ResultSizeBudget) -> ToolOutput {
    let tool = ToolId::new("a.b").expect("an id");
    let Ok(cut) = results.cut(&ctx("ann"), &tool, output, budget) else {
        panic!("it is not stored");
    };
    cut.output
}

/// Returns a result without a structured value.
fn unstructured(body: impl Into<String>, content: Vec<ContentBlock>) -> ToolOutput {
    let output = ToolOutput::new(Value::Null, ResultText::from_body(body), ToolRunStatus::Done);
    ToolOutput { structured: false, content, ..output }
}

fn structured(value: Value, body: impl Into<String>) -> ToolOutput {
    ToolOutput::new(value, ResultText::from_body(body), ToolRunStatus::Done)
}

fn long() -> ToolOutput {
    let lines: Vec<_> = (0..5000).map(|at| format!("line {at} é")).collect();
    unstructured(lines.join("\n"), Vec::new())
}

fn rows(count: usize) -> Value {
    (0..count).map(|at| json!({ "name": format!("row {at}"), "is": [at, null] })).collect()
}

/// Returns the URIs that a result links to.
fn links(output: &ToolOutput) -> Vec<String> {
    let link = |one: &ContentBlock| match &one.shown {
        ContentBody::Link(spec) => Some(spec.uri.clone()),
        _ => None,
    };
    output.content.iter().filter_map(link).collect()
}

/// Reads the result that is stored for Ann at `uri`.
async fn stored(results: &UpstreamResultStore, uri: &str) -> ResourceContents {
    let resources = results.resources();
    let ctx = ctx("ann");
    let mut read = resources.read(&ctx, uri).await.expect("it is stored");
    read.remove(0)
}

/// Reads the text that is stored for Ann at `uri`, with its media type.
async fn text(results: &UpstreamResultStore, uri: &str) -> (String, String) {
    let ResourceContents { media_type, held, .. } = stored(results, uri).await;
    let ResourceData::Text(text) = held else { panic!("{held:?}") };
    (text, media_type.expect("a type"))
}

async fn read(results: &UpstreamResultStore, input: Value) -> Result<StoredResultPart, ToolError> {
    let input: ReadStoredResultInput = serde_json::from_value(input).expect("input");
    ReadStoredResult(results.clone()).run(&ctx("ann"), input).await
}

#[tokio::test]
async fn a_long_result_is_cut_and_can_be_read_to_its_end() {
    let results = UpstreamResultStore::default();
    let whole = long().text.body;
    let output = cut(&results, long(), BUDGET);
    assert!(output.text.body.len() < 10_000);
    let [id] = &links(&output)[..] else { panic!("{output:?}") };
    let mut all = String::new();
    let mut offset = 0;
    loop {
        let input = json!({ "id": id, "offset": offset, "bytes": 7001 });
        let part = read(&results, input).await.expect("a part");
        all.push_str(&part.text.expect("text"));
        match part.next {
            Some(next) => offset = next,
            None => break,
        }
    }
    assert_eq!(all, whole);
}

#[tokio::test]
async fn a_search_ignores_case_and_returns_the_offset() {
    let results = UpstreamResultStore::default();
    let output = cut(&results, long(), BUDGET);
    let input = json!({ "id": links(&output)[0], "find": "LINE 4321" });
    let found = read(&results, input).await.expect("places").found.expect("places");
    assert_eq!(found.len(), 1);
    assert!(long().text.body[found[0].offset..].starts_with("line 4321 "));
}

#[tokio::test]
async fn each_match_in_a_long_line_is_returned_with_the_text_around_it() {
    let results = UpstreamResultStore::default();
    let items: Vec<_> = (0..2000).map(|at| json!({ "name": format!("Äpfel {at}é") })).collect();
    let whole = json!(items).to_string();
    let output = cut(&results, unstructured(whole.clone(), Vec::new()), BUDGET);
    let mut offset = 0;
    let mut all = Vec::new();
    loop {
        let input = json!({ "id": links(&output)[0], "offset": offset, "find": "äPFEL 19" });
        let part = read(&results, input).await.expect("places");
        for found in part.found.expect("places") {
            assert!(whole[found.offset..].starts_with("Äpfel 19"));
            let piece = &whole[found.offset..found.offset + 9];
            assert!(found.line.contains(piece) && found.line.len() <= LINE_BYTES, "{}", found.line);
            all.push(found.offset);
        }
        match part.next {
            Some(next) => offset = next,
            None => break,
        }
    }
    // 19, 190 to 199, 1900 to 1999.
    assert_eq!((all.len(), all.is_sorted()), (111, true));
    assert_eq!(find_matches("aabaaabaaaab", 0, "AAAB"), [(3, 7), (8, 12)]);
}

#[tokio::test]
async fn a_result_is_visible_to_its_own_caller_only() {
    let results = UpstreamResultStore::default();
    let picture = vec![ContentBlock::image("image/png", vec![7; 2000])];
    let output = cut(&results, ToolOutput { content: picture, ..long() }, BUDGET);
    let resources = results.resources();
    let bob = ctx("bob");
    assert_eq!(links(&output).len(), 2);
    for uri in links(&output) {
        assert!(resources.read(&bob, &uri).await.is_err());
    }
    assert!(resources.list(&bob, None, 10).await.expect("a list").is_empty());
    assert_eq!(resources.list(&ctx("ann"), None, 10).await.expect("a list").len(), 2);
}

#[tokio::test]
async fn a_long_structured_value_without_a_promised_schema_is_stored_as_json() {
    let results = UpstreamResultStore::default();
    let value = json!({ "rows": rows(400), "count": 400 });
    let pretty = serde_json::to_string_pretty(&value).expect("JSON");
    // The text is the value as JSON, or empty.
    for (body, expected) in [(pretty.as_str(), pretty.clone()), ("", value.to_string())] {
        let output = cut(&results, structured(value.clone(), body), BUDGET);
        assert_eq!((output.structured, &output.value), (false, &Value::Null));
        assert!(output.text.body.starts_with(&expected[..4000]) && output.text.body.len() < 7000);
        let [uri] = &links(&output)[..] else { panic!("{output:?}") };
        assert_eq!(text(&results, uri).await, (expected, "application/json".to_owned()));
        assert!(output.text.note.is_some_and(|note| note.contains(uri.as_str())));
    }
}

#[tokio::test]
async fn a_text_that_is_the_only_field_of_the_value_is_stored_once() {
    let results = UpstreamResultStore::default();
    let lines = long().text.body;
    let list = rows(400);
    for (value, body, media_type) in [
        (json!({ "result": lines }), lines.clone(), "text/plain"),
        (json!({ "result": list }), list.to_string(), "application/json"),
    ] {
        let output = cut(&results, structured(value, body.clone()), BUDGET);
        assert!(!output.structured && output.text.body.len() < 7000);
        let [uri] = &links(&output)[..] else { panic!("{output:?}") };
        assert_eq!(text(&results, uri).await, (body, media_type.to_owned()));
    }
}

#[tokio::test]
async fn the_longer_part_is_cut_when_text_and_value_differ() {
    let results = UpstreamResultStore::default();
    let value = json!({ "rows": rows(400) });
    let output = cut(&results, structured(value.clone(), "400 rows."), BUDGET);
    assert!(!output.structured && output.text.body.starts_with("400 rows.\n{\"rows\":"));
    let json = text(&results, &links(&output)[0]).await;
    assert_eq!(json, (value.to_string(), "application/json".to_owned()));
    let long_text = structured(json!({ "count": 5000 }), long().text.body);
    let output = cut(&results, long_text, BUDGET);
    assert_eq!((output.structured, output.value), (true, json!({ "count": 5000 })));
    assert!(output.text.body.len() < 7000);
}

#[test]
fn a_value_with_a_promised_schema_is_not_cut() {
    let results = UpstreamResultStore::default();
    let promised = ResultSizeBudget { is_schema_promised: true, ..BUDGET };
    let value = json!({ "rows": rows(400) });
    let output = cut(&results, structured(value.clone(), "400 rows."), promised);
    assert_eq!((output.structured, output.value), (true, value.clone()));
    assert_eq!((output.text, output.content), (ResultText::from_body("400 rows."), Vec::new()));
    // Its text is cut like any other.
    let output = cut(&results, structured(value.clone(), value.to_string()), promised);
    assert_eq!((output.structured, output.value), (true, value));
    assert!(output.text.body.len() < 7000);
}

#[tokio::test]
async fn the_largest_embedded_text_is_stored_with_its_media_type() {
    let results = UpstreamResultStore::default();
    let embedded = |name: &str, bytes| {
        let text = name.repeat(bytes);
        ContentBlock::resource(ResourceContents::text(format!("x:{name}"), "text/csv", text))
    };
    let content = vec![embedded("a", 7000), embedded("b", 9000), embedded("c", 100)];
    let output = cut(&results, unstructured("three files", content.clone()), BUDGET);
    assert_eq!(output.text.body, "three files");
    assert_eq!((&output.content[0], &output.content[2]), (&content[0], &content[2]));
    let ContentBody::Link(link) = &output.content[1].shown else { panic!("{output:?}") };
    assert_eq!(link.media_type.as_deref(), Some("text/csv"));
    let note = output.text.note.expect("a note");
    assert!(note.contains("`x:b`") && note.contains(&link.uri), "{note}");
    assert_eq!(text(&results, &link.uri).await, ("b".repeat(9000), "text/csv".to_owned()));
}

#[tokio::test]
async fn many_short_embedded_texts_are_merged_into_the_text() {
    let results = UpstreamResultStore::default();
    let row =
        |at| ResourceContents::text(format!("x:{at}"), "text/plain", format!("row {at} is here"));
    let content = (0..1000).map(|at| ContentBlock::resource(row(at))).collect();
    let output = cut(&results, unstructured("A thousand:", content), BUDGET);
    let [uri] = &links(&output)[..] else { panic!("{output:?}") };
    assert_eq!(output.content.len(), 1);
    let (whole, _) = text(&results, uri).await;
    assert!(whole.starts_with("A thousand:\nx:0\nrow 0 is here\nx:1\n"), "{whole}");
    assert!(whole.ends_with("x:999\nrow 999 is here"));
}

#[tokio::test]
async fn the_largest_media_are_replaced_by_links_until_the_rest_fits() {
    let results = UpstreamResultStore::default();
    let file = ResourceContents::bytes("x:it", "application/pdf", vec![3; 7000]);
    let content = vec![
        ContentBlock::image("image/png", vec![1; 6000]),
        ContentBlock::audio("audio/wav", vec![2; 8000]),
        ContentBlock::resource(file),
        ContentBlock::text("and a text"),
        ContentBlock::image("image/gif", vec![4; 3000]),
    ];
    let budget = ResultSizeBudget { media_bytes: 10_100, ..BUDGET };
    let output = cut(&results, unstructured("", content.clone()), budget);
    for at in [0, 3, 4] {
        assert_eq!(output.content[at], content[at]);
    }
    let [sound, file] = &links(&output)[..] else { panic!("{output:?}") };
    for (uri, media_type, data) in
        [(sound, "audio/wav", vec![2; 8000]), (file, "application/pdf", vec![3; 7000])]
    {
        assert_eq!(stored(&results, uri).await, ResourceContents::bytes(uri, media_type, data));
        let why = read(&results, json!({ "id": uri })).await.err().expect("no text").message;
        assert!(why.contains(media_type) && why.contains(uri.as_str()), "{why}");
    }
    let note = output.text.note.expect("a note");
    assert!(note.contains("`x:it` has 7000 bytes") && note.contains(sound.as_str()), "{note}");
}

#[test]
fn a_result_that_is_short_or_unlimited_is_unchanged() {
    let results = UpstreamResultStore::default();
    let picture = || vec![ContentBlock::image("image/png", vec![1; 2000])];
    let value = json!({ "rows": rows(20) });
    let short = ToolOutput { content: picture(), ..structured(value.clone(), value.to_string()) };
    let wide = ResultSizeBudget { media_bytes: 2000, ..BUDGET };
    for (output, budget) in [(ToolOutput { content: picture(), ..long() }, ALL), (short, wide)] {
        let body = output.text.body.clone();
        let content = output.content.clone();
        let structured = output.structured;
        let cut = cut(&results, output, budget);
        assert_eq!((cut.text, cut.content), (ResultText::from_body(body), content));
        assert_eq!(cut.structured, structured);
    }
}

#[test]
fn stored_images_replace_older_results() {
    let results = UpstreamResultStore::default();
    let bytes = STORE_BYTES_MAX / 2 - 1024;
    let picture = || unstructured("", vec![ContentBlock::image("image/png", vec![0; bytes])]);
    let uris = [0; 3].map(|_| links(&cut(&results, picture(), BUDGET)).remove(0));
    let is_there = |uri: &String| {
        let id = uri.strip_prefix(SCHEME).expect("a result");
        results.find_here(&Caller::with_key("ann"), id).is_some()
    };
    assert_eq!(uris.each_ref().map(is_there), [false, true, true]);
}

#[test]
fn a_result_of_very_many_parts_is_short_once_it_is_cut() {
    let embedded = |at: usize| {
        let uri = format!("file:///{at}/{}", "x".repeat(4000));
        let text = "y".repeat(7000);
        ContentBlock::resource(ResourceContents::text(uri, "text/plain", text))
    };
    let results = UpstreamResultStore::default();
    let many = unstructured("", (0..2000).map(embedded).collect());
    let cut = cut(&results, many, BUDGET);
    let size = |one: &ContentBlock| match &one.shown {
        ContentBody::Link(spec) => spec.uri.len() + spec.about.as_ref().map_or(0, String::len),
        ContentBody::Resource(ResourceContents { uri, held: ResourceData::Text(text), .. }) => {
            uri.len() + text.len()
        }
        other => panic!("{other:?}"),
    };
    let note = cut.text.note.as_ref().map_or(0, String::len);
    let all = cut.text.body.len() + note + cut.content.iter().map(size).sum::<usize>();
    assert!(all < 64 << 10, "{all} bytes are left");
}

#[test]
fn names_and_media_types_count_towards_the_store_limit() {
    let results = UpstreamResultStore::default();
    for _ in 0..100 {
        let uri = "u".repeat(1 << 20);
        let media_type = Some("m".repeat(1 << 20));
        let data = ResourceData::Text("y".repeat(20_000));
        let one = ContentBlock::resource(ResourceContents {
            uri,
            media_type,
            held: data,
            meta: MetaFields::new(),
        });
        drop(cut(&results, unstructured("", vec![one]), BUDGET));
    }
    let all = results.lock();
    let size = |one: &super::StoredResult| one.spec.media_type.as_ref().map_or(0, String::len);
    assert!(all.kept.iter().map(size).sum::<usize>() < 10_000);
    assert_eq!(all.bytes, all.kept.iter().map(super::StoredResult::bytes).sum::<usize>());
}

/// Result store in memory that several servers share, and that may be unavailable.
#[derive(Default)]
struct InMemorySharedResultStore {
    results: Mutex<Vec<(Caller, SharedLongResult)>>,
    is_away: Mutex<bool>,
}

impl SharedResultStore for InMemorySharedResultStore {
    fn share<'a>(&'a self, caller: &'a Caller, result: SharedLongResult) -> BoxFuture<'a, ()> {
        self.results.lock().expect("no panic").push((caller.clone(), result));
        Box::pin(async {})
    }

    fn find<'a>(
        &'a self,
        caller: &'a Caller,
        uri: &'a str,
    ) -> BoxFuture<'a, Result<Option<SharedLongResult>, String>> {
        if *self.is_away.lock().expect("no panic") {
            return Box::pin(async { Err("the database is away".to_owned()) });
        }
        let all = self.results.lock().expect("no panic");
        let found = all.iter().find(|(owner, one)| owner == caller && one.spec.uri == uri);
        let found = found.map(|(_, one)| one.clone());
        Box::pin(async { Ok(found) })
    }

    fn list<'a>(&'a self, caller: &'a Caller) -> BoxFuture<'a, Vec<ResourceSpec>> {
        let all = self.results.lock().expect("no panic");
        let own = all.iter().filter(|(owner, _)| owner == caller);
        let own: Vec<_> = own.map(|(_, one)| one.spec.clone()).collect();
        Box::pin(async { own })
    }
}

#[tokio::test]
async fn a_shared_result_is_found_at_another_server_and_an_outage_is_reported() {
    let shared = Arc::new(InMemorySharedResultStore::default());
    let [first, second] = [(); 2].map(|()| {
        let results = UpstreamResultStore::default();
        results.share_through(shared.clone());
        results
    });
    let whole = long().text.body;
    let picture = vec![ContentBlock::image("image/png", vec![7; 2000])];
    let output = ToolOutput { content: picture, ..long() };
    let Ok(cut) = first.cut(&ctx("ann"), &ToolId::new("a.b").expect("an id"), output, BUDGET)
    else {
        panic!("it is not stored");
    };
    first.share(&ctx("ann").caller, cut.stored).await;
    let uris = links(&cut.output);
    assert_eq!(uris.len(), 2);
    let entries = second.resources().list(&ctx("ann"), None, 10).await.expect("a list");
    assert_eq!(entries.len(), 2);
    let texts = entries.iter().find(|entry| entry.media_type.as_deref() == Some("text/plain"));
    let uri = &texts.expect("a text").uri;
    assert_eq!(text(&second, uri).await.0, whole);
    let media = uris.iter().find(|one| *one != uri).expect("a picture");
    let ResourceContents { held, .. } = stored(&second, media).await;
    assert!(matches!(&held, ResourceData::Bytes(bytes) if bytes.0 == vec![7; 2000]), "{held:?}");
    assert!(second.resources().read(&ctx("bob"), uri).await.is_err());

    *shared.is_away.lock().expect("no panic") = true;
    assert_eq!(text(&second, uri).await.0, whole, "it is in memory now");
    let refused = read(&second, json!({ "id": "another" })).await.err().expect("it is away");
    assert!(matches!(refused.fault, ToolErrorKind::Unavailable), "{refused:?}");
    assert_eq!(
        refused.message,
        "the result `another` is not in the memory of this server, and the database is away"
    );
}
