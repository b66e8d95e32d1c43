//! Tests of the tools for JSON assets, each in its own workspace.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use toolgate_contract::{
    AnyTool, Caller, CompletionRequest, CompletionTarget, Effects, ResourceContents,
    ResourceSource, ToolContext, ToolErrorKind,
};

use super::{AssetResourceSource, AssetSettings, AssetSnapshot, EnvironmentAssetSettings, tools};
use toolgate_world::{HttpFetcher, Root};

/// Test workspace with schemas, and the tools of the `assets` toolset.
struct AssetTestBench {
    dir: TempDir,
}

impl AssetTestBench {
    fn new() -> Self {
        let bench = Self { dir: TempDir::new().unwrap() };
        bench.put("schemas/shader.schema.json", "{\"version\": \"0.7.0\"}");
        bench.put("schemas/tone.json", "{\"type\": \"object\"}");
        bench.put("schemas/readme.md", "");
        bench.put("schemas/.json", "");
        bench.put("examples/sub/a b.json", "[1]");
        symlink("/etc/hostname", bench.dir.path().join("schemas/out.json")).unwrap();
        bench
    }

    fn put(&self, path: &str, text: &str) {
        let path = self.dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn open(&self, settings: &AssetSettings) -> Option<Arc<AssetSnapshot>> {
        AssetSnapshot::open(&Root::open(self.dir.path()).unwrap(), settings).unwrap()
    }

    fn source(&self, settings: &AssetSettings) -> Option<Arc<AssetResourceSource>> {
        AssetResourceSource::new(&self.open(settings)?)
    }
}

fn both() -> AssetSettings {
    let folder = |name: &str| Some(name.to_owned());
    AssetSettings {
        schemas: folder("schemas"),
        examples: folder("examples"),
        ..AssetSettings::default()
    }
}

fn ctx() -> ToolContext {
    ToolContext::detached(Caller::local(), Instant::now() + Duration::from_secs(60))
}

/// Calls the `assets` tool named `verb` with `input`. Returns the kind of its error if the call
/// fails.
async fn call(
    bench: &AssetTestBench,
    settings: &AssetSettings,
    verb: &str,
    input: Value,
) -> Result<Value, ToolErrorKind> {
    let tools = tools(&bench.open(settings).unwrap(), settings, &HttpFetcher::default());
    let is_it = |tool: &&Arc<dyn AnyTool>| tool.spec().id.as_str() == format!("assets.{verb}");
    let tool = tools.iter().find(is_it).unwrap();
    tool.run(&ctx(), input).await.map(|output| output.value).map_err(|err| err.fault)
}

#[tokio::test]
async fn a_byte_order_mark_at_the_start_of_an_asset_is_ignored() {
    let bench = AssetTestBench::new();
    bench.put("schemas/marked.json", "\u{feff}{\"version\": \"2\"}");
    bench.put("examples/marked.json", "\u{feff}{\"a\": 1}");
    let listed = call(&bench, &both(), "list_schemas", json!({})).await.unwrap();
    assert!(listed.to_string().contains("marked"), "{listed}");
    let example = json!({ "path": "marked.json" });
    let read = call(&bench, &both(), "get_example", example).await.unwrap();
    assert!(read.to_string().contains("\"a\":1"), "{read}");
}

#[tokio::test]
async fn without_settings_and_default_folders_there_are_no_assets() {
    let bench = AssetTestBench::new();
    assert!(bench.open(&AssetSettings::default()).is_none());
    let nowhere = AssetSettings { schemas: Some("nowhere".to_owned()), ..AssetSettings::default() };
    assert!(bench.source(&nowhere).unwrap().list(&ctx(), None, 10).await.unwrap().is_empty());
    let backend =
        AssetSettings { backend_url: Some("http://x".to_owned()), ..AssetSettings::default() };
    assert!(bench.open(&backend).is_some() && bench.source(&backend).is_none());
    let always = AssetSettings {
        owner: EnvironmentAssetSettings {
            always_offered: true,
            ..EnvironmentAssetSettings::default()
        },
        ..AssetSettings::default()
    };
    assert!(bench.open(&always).is_some() && bench.source(&always).is_none());
    bench.put("libs/synesthetic-schemas/jsonschema/a.schema.json", "{}");
    let list = call(&bench, &AssetSettings::default(), "list_schemas", json!({})).await.unwrap();
    assert_eq!(list["schemas"][0]["path"], "libs/synesthetic-schemas/jsonschema/a.json");
}

#[test]
fn an_invalid_setting_is_refused() {
    both().check().unwrap();
    AssetSettings::default().check().unwrap();
    let refused = |settings: AssetSettings, start: &str| {
        let message = settings.check().unwrap_err();
        assert!(message.starts_with(start), "{message}");
    };
    let some = |text: &str| Some(text.to_owned());
    refused(AssetSettings { schemas: some("../x"), ..both() }, "`assets.schemas` is `../x`");
    refused(AssetSettings { examples: some(""), ..both() }, "`assets.examples` is empty");
}

#[test]
fn an_unusable_url_of_the_backend_is_a_problem_but_no_error() {
    let some = |text: &str| Some(text.to_owned());
    let problem = |settings: AssetSettings, expected: &str| {
        settings.check().unwrap();
        let message = settings.backend_problem().unwrap();
        assert!(message.contains(expected), "{message}");
    };
    for (url, why) in [
        ("ftp://x", "does not start with"),
        ("x", "does not start with"),
        ("http://a:b@x", "contains a user name"),
        ("https://x?y=1", "has a query"),
        ("http://", "is not a URL"),
    ] {
        let expected = format!("is `{url}`, which {why}");
        problem(AssetSettings { backend_url: some(url), ..both() }, &expected);
    }
    assert_eq!(AssetSettings { backend_url: some(""), ..both() }.backend_problem(), None);
    assert_eq!(both().backend_problem(), None);
    let owner = EnvironmentAssetSettings {
        backend_assets_path: some("a b"),
        ..EnvironmentAssetSettings::default()
    };
    let odd = AssetSettings { backend_url: some("http://x/api"), owner, ..both() };
    problem(odd, "is `http://x/api`, which has an invalid path");
}

#[tokio::test]
async fn schemas_and_examples_are_listed_and_read_by_name() {
    let bench = AssetTestBench::new();
    let assets = bench.source(&both()).unwrap();
    assert_eq!(assets.guard().effects, Effects::Reads);
    assert_eq!(assets.guard().id.as_str(), "assets.get_schema");
    let list = assets.list(&ctx(), None, 10).await.unwrap();
    let uris: Vec<&str> = list.iter().map(|spec| spec.uri.as_str()).collect();
    let all = ["asset://examples/sub/a%20b", "asset://schemas/shader", "asset://schemas/tone"];
    assert_eq!(uris, all);
    let rest = assets.list(&ctx(), Some(all[0]), 1).await.unwrap();
    assert_eq!(rest, list[1..2]);
    let read = assets.read(&ctx(), all[2]).await.unwrap();
    assert_eq!(
        read,
        [ResourceContents::text(all[2], "application/schema+json", "{\"type\": \"object\"}")]
    );
    let read = assets.read(&ctx(), all[0]).await.unwrap();
    assert_eq!(read, [ResourceContents::text(all[0], "application/json", "[1]")]);
    for uri in ["asset://schemas/out", "asset://schemas/../examples/sub/a%20b", "asset://other/x"] {
        assert!(assets.owns(uri));
        assert_eq!(
            assets.read(&ctx(), uri).await.unwrap_err().fault,
            ToolErrorKind::NotFound,
            "{uri}"
        );
    }
    assert!(!assets.owns("skill://a"));
}

#[tokio::test]
async fn a_name_completes_to_assets_of_its_kind() {
    let bench = AssetTestBench::new();
    let assets = bench.source(&both()).unwrap();
    let completions = async |template: &str| {
        let request = CompletionRequest {
            target: CompletionTarget::Template(template.to_owned()),
            argument: "name".to_owned(),
            prefix: String::new(),
            other_arguments: BTreeMap::new(),
        };
        assets.complete(&ctx(), &request).await.unwrap()
    };
    let templates: Vec<String> = assets.templates().into_iter().map(|it| it.uri).collect();
    assert_eq!(templates, ["asset://examples/{+name}", "asset://schemas/{+name}"]);
    assert_eq!(completions(&templates[0]).await, ["sub/a%20b"]);
    assert_eq!(completions(&templates[1]).await, ["shader", "tone"]);
    assert!(completions("asset://other/{+name}").await.is_empty());
}

#[tokio::test]
async fn a_folder_of_the_owner_takes_precedence_and_may_be_anywhere() {
    let bench = AssetTestBench::new();
    let outside = TempDir::new().unwrap();
    fs::write(outside.path().join("x.schema.json"), "{}").unwrap();
    symlink("x.schema.json", outside.path().join("y.schema.json")).unwrap();
    symlink(bench.dir.path().join("schemas/tone.json"), outside.path().join("z.json")).unwrap();
    let folder = outside.path().to_str().unwrap().to_owned();
    let owner = EnvironmentAssetSettings {
        schemas: Some(folder.clone()),
        ..EnvironmentAssetSettings::default()
    };
    let settings = AssetSettings { owner, ..both() };
    let list = call(&bench, &settings, "list_schemas", json!({})).await.unwrap();
    let listed = |name: &str| json!({ "name": name, "version": "", "path": format!("{folder}/{name}.json") });
    assert_eq!(list["schemas"], json!([listed("x"), listed("y")]));
    let owner = EnvironmentAssetSettings {
        examples: Some(format!("{folder}/x.schema.json")),
        ..EnvironmentAssetSettings::default()
    };
    let settings = AssetSettings { owner, ..both() };
    let root = Root::open(bench.dir.path()).unwrap();
    let message = AssetSnapshot::open(&root, &settings).err().unwrap().to_string();
    assert!(message.starts_with("the folder of examples `"), "{message}");
    assert!(message.contains("x.schema.json"), "{message}");
}

#[tokio::test]
async fn changes_after_the_first_use_are_not_seen() {
    let bench = AssetTestBench::new();
    let assets = bench.open(&both()).unwrap();
    assert_eq!(assets.schemas().count(), 2);
    bench.put("schemas/shader.schema.json", "{\"version\": \"2\"}");
    bench.put("schemas/late.json", "{}");
    fs::remove_dir_all(bench.dir.path().join("examples")).unwrap();
    let versions = |assets: &AssetSnapshot| -> Vec<_> {
        assets.schemas().map(|schema| (schema.name.clone(), schema.read_version())).collect()
    };
    let pair = |name: &str, version: &str| (name.to_owned(), version.to_owned());
    assert_eq!(versions(&assets), [pair("shader", "0.7.0"), pair("tone", "")]);
    assert!(assets.example("sub/a b.json").is_some());
    let again = bench.open(&both()).unwrap();
    assert_eq!(versions(&again), [pair("late", ""), pair("shader", "2"), pair("tone", "")]);
}

#[tokio::test]
async fn a_server_for_synesthetic_reads_its_assets_at_start() {
    let bench = AssetTestBench::new();
    let owner =
        EnvironmentAssetSettings { always_offered: true, ..EnvironmentAssetSettings::default() };
    let assets = bench.open(&AssetSettings { owner, ..both() }).unwrap();
    bench.put("schemas/late.json", "{}");
    assert!(assets.schema("shader").is_some() && assets.schema("late").is_none());
}

#[tokio::test]
async fn files_beyond_the_size_limit_are_skipped() {
    let bench = AssetTestBench::new();
    let file = fs::File::create(bench.dir.path().join("examples/large.json")).unwrap();
    file.set_len(33 << 20).unwrap();
    bench.put("examples/short.json", &format!("[{}0]", "[],".repeat(1_000_000)));
    let listed = call(&bench, &both(), "list_examples", json!({})).await.unwrap();
    assert_eq!(listed["examples"].as_array().map(Vec::len), Some(1), "{listed}");
    assert!(listed.to_string().contains("a b.json"), "{listed}");
}

#[tokio::test]
async fn a_schema_that_expands_too_far_is_unusable_and_answers_at_once() {
    let bench = AssetTestBench::new();
    let below = |at: usize| json!({ "$ref": format!("#/$defs/n{}", at + 1) });
    let level = |at: usize| {
        let inner = json!({ "properties": { "a": below(at), "b": below(at) } });
        (format!("n{at}"), inner)
    };
    let mut defs: serde_json::Map<_, _> = (0..34).map(level).collect();
    defs.insert("n34".to_owned(), json!({ "type": "null" }));
    let wide = json!({ "$ref": "#/$defs/n0", "$defs": defs });
    bench.put("schemas/wide.json", &wide.to_string());
    bench.put("schemas/apart.json", &json!({ "$ref": "wide.json#/$defs/n1" }).to_string());
    let nested = (0..40).fold(
        json!({ "type": "null" }),
        |inner, _| json!({ "properties": { "a": inner }, "unevaluatedProperties": false }),
    );
    bench.put("schemas/nested.json", &nested.to_string());
    let started = Instant::now();
    for schema in ["wide", "apart", "nested"] {
        let input = json!({ "asset": { "a": {} }, "schema": schema });
        let given = call(&bench, &both(), "validate_asset", input).await.unwrap();
        let message = given["errors"][0]["msg"].as_str().unwrap();
        assert!(message.contains("the schema expands to more than"), "{message}");
    }
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
}

#[tokio::test]
async fn an_asset_with_too_many_errors_is_refused_before_they_are_collected() {
    let bench = AssetTestBench::new();
    let names: Vec<_> = (0..12).map(|at| format!("n{at}")).collect();
    let many = json!({ "items": { "required": names, "pattern": "^x" } });
    bench.put("schemas/many.json", &many.to_string());
    let check = async |asset: Value| {
        let input = json!({ "asset": asset, "schema": "many" });
        call(&bench, &both(), "validate_asset", input).await.unwrap()["errors"].clone()
    };
    assert_eq!(check(json!(["y"])).await[0]["msg"], "'y' does not match '^x'");
    assert_eq!(check(json!([{}])).await.as_array().map(Vec::len), Some(12));
    assert_eq!(check(json!(vec![json!({}); 200_000])).await.as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn an_example_is_found_by_each_of_its_paths_and_no_other() {
    let bench = AssetTestBench::new();
    bench.put("examples/Tone.json", "{\"$schemaRef\": \"x/tone.json\", \"a\": 1}");
    bench.put("examples/broken.json", "{");
    let absolute = bench.dir.path().canonicalize().unwrap().join("examples/Tone.json");
    let absolute = absolute.to_str().unwrap();
    for path in
        ["Tone.json", "./Tone.json", "examples/Tone.json", "./examples//Tone.json", absolute]
    {
        let given = call(&bench, &both(), "get_example", json!({ "path": path })).await.unwrap();
        let example = json!({ "$schemaRef": "x/tone.json", "a": 1 });
        let expected =
            json!({ "ok": true, "example": example, "schema": "tone", "validated": true });
        assert_eq!(given, expected, "{path}");
    }
    for path in ["", ".", "Tone", "../examples/Tone.json", "/etc/passwd", "broken.json", "sub"] {
        let given = call(&bench, &both(), "get_example", json!({ "path": path })).await;
        assert_eq!(given, Err(ToolErrorKind::NotFound), "{path}");
    }
}

#[tokio::test]
async fn a_schema_can_refer_to_others_by_id_by_file_and_by_published_url() {
    let bench = AssetTestBench::new();
    bench.put("version.json", "{\"schemaVersion\": \"0.7.3\"}");
    let refers = |to: &str| json!({ "properties": { "a": { "$ref": to } } }).to_string();
    bench.put("schemas/file.json", &refers("tone.json"));
    bench.put("schemas/sub/up.json", &refers("../tone.json"));
    bench.put("schemas/id.json", &refers("https://elsewhere/n"));
    bench.put("schemas/n.schema.json", "{\"$id\": \"https://elsewhere/n\", \"type\": \"object\"}");
    let published = "https://schemas.synesthetic.dev/0.7.3/tone.json";
    bench.put("schemas/published.json", &refers(published));
    bench.put("schemas/lost.json", &refers("https://elsewhere/lost"));
    bench.put("schemas/odd.json", "{\"type\": 7}");
    let assets = bench.open(&both()).unwrap();
    for name in ["file", "sub/up", "id", "published"] {
        assert_eq!(assets.validate(&json!({ "a": {} }), name), [], "{name}");
        let errors = assets.validate(&json!({ "a": [1] }), name);
        assert_eq!((errors[0].path.as_str(), errors.len()), ("/a", 1), "{name}");
        assert_eq!(errors[0].msg, "[1] is not of type 'object'", "{name}");
    }
    for (name, why) in [("lost", "https://elsewhere/lost"), ("odd", "7"), ("", "unknown schema ``")]
    {
        let errors = assets.validate(&json!({ "a": {} }), name);
        assert_eq!((errors[0].path.as_str(), errors.len()), ("", 1), "{name}");
        let msg = &errors[0].msg;
        assert!(msg.starts_with("schema_load_failed: ") && msg.contains(why), "{msg}");
    }
}

#[tokio::test]
async fn a_schema_is_always_read_as_draft_2020_12() {
    let bench = AssetTestBench::new();
    for draft in ["http://json-schema.org/draft-07/schema#", "https://nobody/knows"] {
        let schema = json!({ "$schema": draft, "prefixItems": [{ "type": "null" }] });
        bench.put("schemas/old.json", &schema.to_string());
        let errors = bench.open(&both()).unwrap().validate(&json!([1]), "old");
        assert_eq!(errors[0].msg, "1 is not of type 'null'");
        let given = call(&bench, &both(), "get_schema", json!({ "name": "old" })).await.unwrap();
        assert_eq!(given, json!({ "ok": true, "schema": schema, "version": "" }));
    }
}

#[tokio::test]
async fn numbers_keep_their_notation() {
    let bench = AssetTestBench::new();
    let input = json!({ "base": { "a": 1, "b": 2.0 }, "new": { "a": 1.0, "b": 2.0 } });
    let given = call(&bench, &both(), "diff_assets", input).await.unwrap();
    let op = json!({ "op": "replace", "path": "/a", "value": 1.0 });
    assert_eq!(given.to_string(), json!({ "ok": true, "patch": [op] }).to_string());
}

#[tokio::test]
async fn every_output_matches_its_schema() {
    let bench = AssetTestBench::new();
    bench.put("schemas/none.json", "false");
    let sent = AssetSettings { backend_url: Some("http://127.0.0.1:1".to_owned()), ..both() };
    let asset = json!({ "schema": "tone" });
    for (settings, verb, input) in [
        (both(), "list_schemas", json!({})),
        (both(), "list_examples", json!({})),
        (both(), "get_schema", json!({ "name": "tone" })),
        (both(), "get_example", json!({ "path": "sub/a b.json" })),
        (both(), "validate_asset", json!({ "asset": {}, "schema": "tone" })),
        (both(), "validate_asset", json!({ "asset": 1, "schema": "tone" })),
        (
            both(),
            "diff_assets",
            json!({ "base": { "a": 1, "b": 1 }, "new": { "b": 2, "c": null } }),
        ),
        (both(), "populate_backend", json!({ "asset": asset })),
        (sent.clone(), "populate_backend", json!({ "asset": asset })),
        (sent, "populate_backend", json!({ "asset": {}, "validate_first": true })),
    ] {
        let output = call(&bench, &settings, verb, input).await.unwrap();
        assert_eq!(output.as_object().unwrap().keys().next().unwrap(), "ok", "{verb}");
        let tools = tools(&bench.open(&settings).unwrap(), &settings, &HttpFetcher::default());
        let tool = tools.iter().find(|tool| tool.spec().id.as_str().ends_with(verb)).unwrap();
        let schema = tool.spec().output_schema.clone().unwrap();
        let error = jsonschema::validate(&schema, &output).err().map(|err| err.to_string());
        assert_eq!(error, None, "{verb}: {output}");
    }
}

/// Returns the `assets` tool named `verb` for the workspace of `bench`.
fn tool(bench: &AssetTestBench, verb: &str) -> Arc<dyn AnyTool> {
    let tools = tools(&bench.open(&both()).unwrap(), &both(), &HttpFetcher::default());
    let is_it = |tool: &Arc<dyn AnyTool>| tool.spec().id.as_str() == format!("assets.{verb}");
    tools.into_iter().find(is_it).unwrap()
}

/// Returns input that takes long to process, for each tool that processes an asset. Each pair is a
/// tool name and its input.
fn slow_inputs() -> [(&'static str, Value); 3] {
    let many: Vec<Value> = (0..20_000).map(|at| json!({ "a": at })).collect();
    [
        ("validate_asset", json!({ "asset": many, "schema": "tone" })),
        ("diff_assets", json!({ "base": { "a": many }, "new": { "a": many } })),
        ("get_example", json!({ "path": "large.json" })),
    ]
}

#[test]
fn long_work_runs_on_a_blocking_thread_and_ends_when_cancelled() {
    let bench = AssetTestBench::new();
    bench
        .put("examples/large.json", &json!({ "schema": "tone", "a": vec![0; 20_000] }).to_string());
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().max_blocking_threads(1).build().unwrap().block_on(async {
        for (verb, input) in slow_inputs() {
            let tool = tool(&bench, verb);
            let ctx = ctx();
            // The work waits, because the only blocking thread is busy.
            let (release, taken) = std::sync::mpsc::channel::<()>();
            let busy = tokio::task::spawn_blocking(move || taken.recv());
            tokio::select! {
                biased;
                _ = tool.run(&ctx, input.clone()) => panic!("{verb} blocked the async thread"),
                () = std::future::ready(()) => {}
            }
            drop(release);
            busy.await.unwrap().unwrap_err();
            ctx.cancel.cancel();
            let err = tool.run(&ctx, input).await.expect_err("the call is cancelled");
            assert_eq!(err.fault, ToolErrorKind::Canceled, "{verb}");
        }
    });
}

#[tokio::test]
async fn a_large_asset_is_processed_unless_its_call_is_cancelled() {
    let bench = AssetTestBench::new();
    let many = vec![0; 120_000];
    let input = json!({ "base": many, "new": many });
    let given = call(&bench, &both(), "diff_assets", input.clone()).await.unwrap();
    assert_eq!(given, json!({ "ok": true, "patch": [] }));
    let ctx = ctx();
    ctx.cancel.cancel();
    let tool = tool(&bench, "diff_assets");
    let err = tool.run(&ctx, input).await.expect_err("the call is cancelled");
    assert_eq!(err.fault, ToolErrorKind::Canceled);
}

#[tokio::test]
async fn a_patch_that_is_too_long_is_refused() {
    let bench = AssetTestBench::new();
    let new: BTreeMap<String, u8> = (0..1_000).map(|at| (at.to_string(), 0)).collect();
    let long = "k".repeat(200_000);
    let input = json!({ "base": { &long: {} }, "new": { &long: new } });
    assert!(input.to_string().len() < 500_000);
    assert_eq!(call(&bench, &both(), "diff_assets", input).await, Err(ToolErrorKind::TooLarge));
}

#[tokio::test]
async fn the_number_of_listed_errors_is_limited() {
    let bench = AssetTestBench::new();
    bench.put("schemas/nulls.json", &json!({ "items": { "type": "null" } }).to_string());
    let lengthy = json!({ "items": { "allOf": vec![json!({ "type": "null" }); 20] } });
    bench.put("schemas/lengthy.json", &lengthy.to_string());
    bench.put("schemas/nameless.json", &json!({ "propertyNames": false }).to_string());
    let names: BTreeMap<String, u8> = (0..10_001).map(|at| (at.to_string(), 0)).collect();
    let errors_of = async |asset: Value, schema: &str| -> Vec<(String, String)> {
        let input = json!({ "asset": asset, "schema": schema });
        let given = call(&bench, &both(), "validate_asset", input).await.unwrap();
        assert_eq!((&given["ok"], &given["reason"]), (&json!(false), &json!("validation_failed")));
        let text = |error: &Value, key: &str| error[key].as_str().unwrap().to_owned();
        let errors = given["errors"].as_array().unwrap();
        let errors: Vec<_> = errors.iter().map(|it| (text(it, "path"), text(it, "msg"))).collect();
        assert!(errors.is_sorted());
        errors
    };
    // Exactly as many errors as the limit are listed, without a note about more.
    let all = errors_of(json!(vec![0; 10_000]), "nulls").await;
    assert_eq!((all.len(), all[0].0.as_str()), (10_000, "/0"));
    assert!(all.iter().all(|(_, msg)| msg == "0 is not of type 'null'"));
    let long = vec!["x".repeat(10_000); 100];
    for (asset, schema) in [
        (json!(vec![0; 10_001]), "nulls"),
        (json!(vec![0; 50_000]), "nulls"),
        (json!(names), "nameless"),
        (json!(long), "lengthy"),
    ] {
        let some = errors_of(asset, schema).await;
        assert!(some.len() > 400 && some.len() <= 10_001, "{schema}: {}", some.len());
        let more = ("", "there are more errors than listed here");
        assert_eq!(some.iter().filter(|it| it.0 == more.0 && it.1.starts_with(more.1)).count(), 1);
        let bytes: usize = some.iter().map(|(path, msg)| path.len() + msg.len()).sum();
        assert!(bytes < 5 << 20, "{bytes}");
    }
}

#[tokio::test]
async fn an_asset_with_too_long_pointers_is_refused() {
    let bench = AssetTestBench::new();
    let asset = |parts: usize| json!({ "k".repeat(100_000): vec![0; parts] });
    let input = json!({ "asset": asset(1_000), "schema": "tone" });
    let given = call(&bench, &both(), "validate_asset", input).await;
    assert_eq!(given, Err(ToolErrorKind::TooLarge));
    let input = json!({ "asset": asset(100), "schema": "tone" });
    assert_eq!(call(&bench, &both(), "validate_asset", input).await.unwrap()["ok"], true);
}
