//! Tests of the limits of JSON schemas: which sizes are measured, and which schemas are refused.

use std::time::{Duration, Instant};

use serde_json::json;

use super::*;
use crate::work::run_until;

fn compile(schema: &Value) -> Result<BoundedSchemaValidator, String> {
    let size = SchemaSize::measure(schema)?;
    let account = MemoryBudget::new(64 << 20);
    BoundedSchemaValidator::compile(schema, &size, jsonschema::options(), &account)
}

/// Returns a memory account that is large enough for 100,000 validation errors.
fn errors_account() -> MemoryBudget {
    MemoryBudget::new(100_000 * ERROR_BYTES)
}

fn check(schema: &Value, value: &Value) -> Result<bool, String> {
    compile(schema)?.check(value)
}

#[test]
fn ordinary_patterns_match_as_the_standard_says() {
    for (pattern, text, matches) in [
        ("^[a-z]+$", "abc", true),
        ("^[a-z]+$", "aBc", false),
        ("b", "abc", true),
        ("^\\p{L}{1,20}$", "Ünïcode", true),
        ("^(?!\\s*$).+", "  x", true),
        ("^(?!\\s*$).+", "   ", false),
        ("(a)\\1", "baab", true),
        ("(?<=a)b", "cb", false),
    ] {
        let schema = json!({ "pattern": pattern });
        assert_eq!(check(&schema, &json!(text)), Ok(matches), "{pattern} {text}");
        assert_eq!(check(&schema, &json!(7)), Ok(true));
    }
}

#[test]
fn a_failed_match_is_described_with_its_pattern() {
    let compiled = compile(&json!({ "pattern": "^a" })).expect("a schema");
    let value = json!("b");
    let errors: Vec<_> = compiled
        .errors(&value, &errors_account())
        .expect("it is cheap")
        .map(|error| error.to_string())
        .collect();
    assert_eq!(errors, ["\"b\" does not match \"^a\""]);
}

#[test]
fn patterns_that_take_too_much_memory_are_refused_before_they_are_compiled() {
    let started = Instant::now();
    let many: Vec<_> =
        (0..300).map(|at| json!({ "pattern": format!("[\\p{{Lu}}{at}]{{90}}") })).collect();
    for (schema, problem) in [
        (json!({ "pattern": "(\\p{L}{50}){9}x" }), "takes more than 8388608 bytes"),
        (json!({ "pattern": "((a{1000}){1000}){1000}" }), "takes more than"),
        (json!({ "patternProperties": { "(\\p{Ll}{99}){9}": {} } }), "takes more than"),
        (json!({ "anyOf": many }), "the patterns of the schema take more than 16777216 bytes"),
        (json!({ "pattern": "(?=a)".repeat(300) }), "longer than 1000 bytes"),
        (json!({ "pattern": "(" }), "is not a regular expression"),
    ] {
        let why = SchemaSize::measure(&schema).expect_err("it is refused");
        assert!(why.contains(problem), "{why}");
    }
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
}

#[test]
fn a_match_with_look_around_takes_a_bounded_number_of_steps() {
    let text = "a".repeat(300_000);
    for pattern in ["(?<=(b|a|ab)*)c", "(?=(a|aa)+$)c", "^(?:(a+)+)\\1b$", "(?<!a*)b"] {
        let started = Instant::now();
        let checked = check(&json!({ "pattern": pattern }), &json!(text));
        assert!(checked.is_err() || checked == Ok(false), "{pattern}: {checked:?}");
        // Without the limit, it takes hours. Unoptimized dependencies are slow.
        assert!(started.elapsed() < Duration::from_secs(20), "{pattern}: {:?}", started.elapsed());
    }
}

#[test]
fn a_match_that_is_not_finished_never_counts_as_a_success() {
    let schema = json!({ "not": { "pattern": "(?<=(b|a)*)c" } });
    let compiled = compile(&schema).expect("a schema");
    let value = json!("a".repeat(300_000));
    assert_eq!(compiled.check(&value), Ok(false));
    assert_eq!(compiled.errors(&value, &errors_account()).expect("it is cheap").count(), 0);
}

#[test]
fn many_matches_end_at_the_deadline() {
    let schema = json!({ "items": { "pattern": "(?<=(b|a)*)c" } });
    let compiled = compile(&schema).expect("a schema");
    let value = json!(vec!["a".repeat(20_000); 500]);
    let started = Instant::now();
    let deadline = started + Duration::from_millis(100);
    assert_eq!(run_until(deadline, || compiled.check(&value)), Ok(false));
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
}

#[test]
fn long_property_names_are_refused_if_their_patterns_look_around() {
    let schema = json!({ "patternProperties": { "(?<=(a|b)*)c": {} } });
    assert_eq!(check(&schema, &json!({ "abc": 1 })), Ok(true));
    assert!(check(&schema, &json!({ "a".repeat(100_000): 1 })).is_err());
}

#[test]
fn the_errors_of_a_large_value_are_not_collected() {
    let names: Vec<_> = (0..20).map(|at| format!("n{at}")).collect();
    let value = json!(vec![json!({}); 300_000]);
    let items = json!({ "items": { "required": names } });
    let compiled = compile(&items).expect("a schema");
    assert_eq!(compiled.check(&value), Ok(false));
    assert_eq!(compiled.errors(&value, &errors_account()).expect("the first is found").count(), 1);
    let choice = compile(&json!({ "anyOf": [items, { "type": "null" }] })).expect("a schema");
    assert_eq!(choice.check(&value), Ok(false));
    assert!(choice.errors(&value, &errors_account()).is_none());
}

#[test]
fn a_value_with_too_many_parts_for_its_schema_is_refused() {
    let choices: Vec<_> = (0..5000).map(|at| json!({ "const": at })).collect();
    let compiled = compile(&json!({ "items": { "anyOf": choices } })).expect("a schema");
    assert_eq!(compiled.check(&json!([1, 2])), Ok(true));
    assert!(compiled.check(&json!(vec![-1; 400_000])).is_err());
    assert!(compiled.is_cheap_for(&json!([1, 2]), 100_000));
    assert!(!compiled.is_cheap_for(&json!(vec![-1; 400]), 100_000));
}

#[test]
fn a_compiled_schema_keeps_its_memory_until_it_is_dropped() {
    let account = MemoryBudget::new(4 << 10);
    let schema = json!({ "properties": { "a": {}, "b": {} } });
    let size = SchemaSize::measure(&schema).expect("a size");
    let build = || BoundedSchemaValidator::compile(&schema, &size, jsonschema::options(), &account);
    let first = build().expect("there is room");
    assert!(build().expect_err("there is no room").contains("no memory left"));
    drop(first);
    build().expect("there is room again");
}
