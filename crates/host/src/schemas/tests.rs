//! Tests of the validation of envelopes and tool IO, and of the reuse of compiled schemas.

use proptest::prelude::*;
use serde_json::json;
use toolgate_contract::Effects;

use super::*;

fn spec(id: &str, input: Value) -> ToolSpec {
    let id = ToolId::new(id).expect("an id");
    let output = json!({ "type": "object", "required": ["hits"] });
    ToolSpec {
        input_schema: input.into(),
        output_schema: Some(output.into()),
        ..ToolSpec::new(id, "T", "T.", Effects::Reads)
    }
}

fn query() -> Value {
    json!({
        "type": "object",
        "additionalProperties": false,
        "required": ["query"],
        "properties": {
            "query": { "type": "string" },
            "topK": { "type": "integer", "minimum": 1, "maximum": 10 },
        },
    })
}

fn registry() -> SchemaRegistry {
    let registry = SchemaRegistry::default();
    registry.register(&spec("docs.search", query())).map_err(|(_, why)| why).expect("schemas");
    registry
}

fn meta(status: &str) -> Value {
    json!({
        "requestId": "r", "traceId": "t", "spanId": "s", "schemaVersion": "0.1.0",
        "deterministic": true, "transport": "http", "route": "tool", "method": "m",
        "durationMs": 0.5, "status": status, "attempt": 0, "inputBytes": 2, "outputBytes": 2,
    })
}

fn envelope() -> Value {
    json!({ "ok": true, "data": {}, "error": null, "meta": meta("ok") })
}

fn failure() -> Value {
    let error = json!({ "code": "NOT_FOUND", "message": "no" });
    json!({ "ok": false, "data": null, "error": error, "meta": meta("error") })
}

#[test]
fn the_builtin_schemas_are_valid() {
    let registry = SchemaRegistry::default();
    for which in SharedSchemaId::ALL {
        let schema = registry.shared(which).schema().clone();
        assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
        assert!(jsonschema::meta::is_valid(&schema), "{which:?}");
        registry.shared(which).compile().expect("a schema");
    }
    assert_eq!(registry.counts(), SchemaCounts { schemas_loaded: 3, validators_compiled: 3 });
}

#[test]
fn equal_schemas_are_compiled_once() {
    let registry = registry();
    let before = registry.counts();
    // The same schema with its keys in another order.
    let text = r#"{"required":["query"],"properties":{"topK":{"maximum":10,"minimum":1,"type":"integer"},"query":{"type":"string"}},"additionalProperties":false,"type":"object"}"#;
    let other = serde_json::from_str(text).expect("JSON");
    registry.register(&spec("docs.find", other)).map_err(|(_, why)| why).expect("schemas");
    let of = |id: &str| {
        let io = registry.load_tool_io(id).expect("a tool");
        io.input[0].compile().expect("a schema").1.clone()
    };
    let [search, find] = ["mcp.tool:docs.search", "mcp.tool:docs.find"].map(of);
    assert!(Arc::ptr_eq(&search, &find));
    let after = registry.counts();
    assert_eq!(
        after.validators_compiled,
        before.validators_compiled + 1,
        "it is compiled at its first use"
    );
    assert_eq!(after.schemas_loaded, before.schemas_loaded + 2);
}

#[test]
fn a_tool_is_found_by_its_canonical_id_only() {
    let registry = registry();
    assert!(registry.load_tool_io("mcp.tool:docs.search").is_ok());
    for id in ["", "docs.search", "mcp.tool:", "mcp.tool:Döcs", "mcp.tool:a b", "tool:a"] {
        let refused = registry.load_tool_io(id).err();
        assert_eq!(refused, Some(ToolIoError::NotCanonical(id.to_owned())));
    }
    let unknown = registry.load_tool_io("mcp.tool:web.search").err();
    assert_eq!(unknown, Some(ToolIoError::Unknown("mcp.tool:web.search".to_owned())));
}

#[test]
fn a_call_is_validated_against_the_shared_schema_and_the_tools_own() {
    let registry = registry();
    let io = registry.load_tool_io("mcp.tool:docs.search").expect("a tool");
    let tool = "mcp.tool:docs.search";
    let sound = json!({ "tool": tool, "input": { "query": "q" } });
    let noted = json!({ "tool": tool, "input": { "query": "q" }, "version": { "major": 1 }, "metadata": { "a": 1 } });
    for sound in [sound, noted] {
        assert_eq!(io.input_problems(&sound), Vec::new());
    }
    for (broken, at) in [
        (json!({}), ""),
        (json!({ "tool": tool }), ""),
        (json!({ "input": {} }), ""),
        (json!({ "tool": "mcp.tool:docs.render", "input": { "query": "q" } }), "/tool"),
        (json!({ "tool": "docs.search", "input": { "query": "q" } }), "/tool"),
        (json!({ "tool": tool, "input": { "query": "q", "topK": 0 } }), "/input/topK"),
        (json!({ "tool": tool, "input": { "query": "q" }, "version": {} }), "/version"),
        (json!({ "tool": tool, "input": { "query": "q" }, "extra": 1 }), ""),
    ] {
        let problems = io.input_problems(&broken);
        assert_eq!(problems.first().map(|one| one.pointer.as_str()), Some(at), "{broken}");
    }
    // A result is validated against the tool's own schema only.
    assert_eq!(io.output_problems(&json!({ "hits": [] })), Vec::new());
    assert_eq!(io.output_problems(&json!({})).len(), 1);
}

#[test]
fn a_schema_file_adds_restrictions_and_removes_none() {
    let file = |schema: Value| SchemaFile { path: "a.json".to_owned(), schema };
    let lax = ("docs_search".to_owned(), ToolSchemaDirection::Input, file(json!({})));
    let strict = json!({ "properties": { "query": { "maxLength": 2 } } });
    let strict = ("docs.find".to_owned(), ToolSchemaDirection::Input, file(strict));
    let files = SchemaFiles { shared: Vec::new(), tools: vec![lax, strict] };
    let registry = SchemaRegistry::new(files).expect("schemas");
    for id in ["docs.search", "docs.find"] {
        registry.register(&spec(id, query())).map_err(|(_, why)| why).expect("schemas");
    }
    let of = |id: &str| registry.load_tool_io(id).expect("a tool");
    assert_eq!(of("mcp.tool:docs.search").argument_problems(&json!({})).len(), 1);
    let long = json!({ "query": "long" });
    assert_eq!(of("mcp.tool:docs.search").argument_problems(&long), Vec::new());
    assert_eq!(of("mcp.tool:docs.find").argument_problems(&long).len(), 1);
}

#[test]
fn a_file_of_a_shared_schema_narrows_the_built_in_one() {
    let schema = json!({ "required": ["metadata"] });
    let file = SchemaFile { path: "tool_io.json".to_owned(), schema };
    let files = SchemaFiles { shared: vec![(SharedSchemaId::ToolIo, file)], tools: Vec::new() };
    let registry = SchemaRegistry::new(files).expect("schemas");
    let problems = |io: Value| registry.shared_problems(SharedSchemaId::ToolIo, &io).len();
    let tool = "mcp.tool:docs.search";
    assert_eq!(problems(json!({ "tool": tool, "input": {}, "metadata": {} })), 0);
    assert_eq!(problems(json!({ "tool": tool, "input": {} })), 1);
    assert_ne!(problems(json!({ "metadata": {} })), 0);
}

#[test]
fn an_invalid_schema_file_is_named() {
    let file = SchemaFile { path: "x/y.json".to_owned(), schema: json!({ "type": 1 }) };
    let files = SchemaFiles { shared: vec![(SharedSchemaId::Envelope, file)], tools: Vec::new() };
    let why = SchemaRegistry::new(files).expect_err("no schema").to_string();
    assert!(why.starts_with("the schema x/y.json is not usable: "), "{why}");
}

/// Generates shallow JSON values of all types.
fn anything() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 8, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map("[a-z]{1,6}", inner, 0..4)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn s1_01_an_envelope_that_lacks_a_part_is_refused(
        which in 0..4_usize, fails in any::<bool>(), data in anything(),
    ) {
        let mut broken = if fails { failure() } else { envelope() };
        if !fails && data.is_object() { broken["data"] = data; }
        prop_assert!(SchemaRegistry::default().load_envelope().problems(&broken).is_empty());
        let part = ["ok", "data", "error", "meta"][which];
        broken.as_object_mut().expect("an object").remove(part);
        prop_assert!(!SchemaRegistry::default().load_envelope().problems(&broken).is_empty());
    }

    #[test]
    fn s1_01_a_success_with_an_error_is_refused(error in anything()) {
        prop_assume!(!error.is_null());
        let mut broken = envelope();
        broken["error"] = error;
        prop_assert!(!SchemaRegistry::default().load_envelope().problems(&broken).is_empty());
    }

    #[test]
    fn a_failure_with_data_or_without_a_reason_is_refused(data in anything(), error in anything()) {
        let registry = SchemaRegistry::default();
        let checker = registry.load_envelope();
        let mut broken = failure();
        if !data.is_null() {
            broken["data"] = data;
            prop_assert!(!checker.problems(&broken).is_empty());
        }
        let mut broken = failure();
        broken["error"] = error;
        prop_assert!(!checker.problems(&broken).is_empty());
    }

    #[test]
    fn an_additional_key_is_refused_everywhere(key in "[a-z]{1,8}", value in anything()) {
        let registry = SchemaRegistry::default();
        let checker = registry.load_envelope();
        for place in ["", "/meta", "/error"] {
            let mut broken = failure();
            let object = broken.pointer_mut(place).and_then(Value::as_object_mut);
            let object = object.expect("an object");
            prop_assume!(!object.contains_key(&key));
            prop_assume!(!["details", "code", "message"].contains(&key.as_str()));
            object.insert(key.clone(), value.clone());
            prop_assert!(!checker.problems(&broken).is_empty());
        }
    }

    #[test]
    fn a_part_of_meta_with_the_wrong_type_is_refused(which in 0..13_usize, value in anything()) {
        let registry = SchemaRegistry::default();
        let checker = registry.load_envelope();
        let mut broken = envelope();
        let object = broken["meta"].as_object_mut().expect("an object");
        let name = object.keys().nth(which).expect("13 parts").clone();
        let kind = |value: &Value| std::mem::discriminant(value);
        prop_assume!(kind(&value) != kind(&object[&name]));
        object.insert(name, value);
        prop_assert!(!checker.problems(&broken).is_empty());
    }
}

#[test]
fn removed_tools_leave_no_validators() {
    let registry = registry();
    let before = registry.counts().validators_compiled;
    for round in 0..50 {
        let mut input = query();
        input["properties"]["query"]["maxLength"] = json!(round);
        let spec = spec(&format!("docs.round_{round}"), input);
        let io = registry.register(&spec).map_err(|(_, why)| why).expect("schemas");
        SchemaRegistry::check_tool(&io).expect("schemas");
        // The first call compiles them.
        assert!(io.argument_problems(&json!({ "query": "" })).is_empty());
        assert!(registry.counts().validators_compiled > before);
        registry.unregister(&spec.id);
    }
    assert_eq!(registry.counts().validators_compiled, before);
    let gone = ToolIoError::Unknown("mcp.tool:docs.round_3".to_owned());
    assert_eq!(registry.load_tool_io("mcp.tool:docs.round_3").err(), Some(gone));
}

/// Returns the schema violations of `value`, and the time that it takes to find them.
fn timed_problems(schema: &Value, value: &Value) -> (Vec<ValidationProblem>, std::time::Duration) {
    let checker = SchemaRegistry::default().new_checker(schema.clone().into(), None);
    let begun = std::time::Instant::now();
    (checker.problems(value), begun.elapsed())
}

#[test]
fn no_accepted_schema_makes_validation_slow() {
    let doubled = |length: usize| {
        let defs = (0..length).map(|at| {
            let next = json!({ "$ref": format!("#/$defs/d{}", at + 1) });
            (format!("d{at}"), json!({ "allOf": [next, next] }))
        });
        let mut defs: serde_json::Map<_, _> = defs.collect();
        defs.insert(format!("d{length}"), json!({ "type": "string" }));
        json!({ "$ref": "#/$defs/d0", "$defs": defs })
    };
    let account = MemoryBudget::new(SCHEMA_BYTES_MAX);
    assert!(compile(&doubled(40), &account).is_err(), "it expands to a trillion subschemas");
    let nested = |depth: u32| {
        let deep = (0..depth).fold(json!({}), |deep, _| json!({ "a": deep }));
        json!({ "a": deep, "b": 1 })
    };
    let both = json!({
        "properties": { "b": { "type": "string" } },
        "allOf": [
            { "properties": { "a": { "$ref": "#" } } },
            { "properties": { "a": { "$ref": "#" } } },
        ],
    });
    let back = json!({ "items": { "pattern": "^(?=(a+)+$)(a+)+b\\1$" } });
    let long: Vec<_> = (0..100).map(|_| "a".repeat(40)).collect();
    for (schema, value, at) in [
        (doubled(15), json!(1), ""),
        (both.clone(), nested(3), "/b"),
        // Locating the problem would take too long.
        (both, nested(100), ""),
        (back, json!(long), "/0"),
    ] {
        let (problems, took) = timed_problems(&schema, &value);
        assert_eq!(problems[0].pointer, at, "{problems:?}");
        assert!(took < std::time::Duration::from_secs(5), "{took:?}: {schema}");
    }
}
