//! Tests of patches between two assets.

use serde_json::{Map, Value, json};

use super::adapter::{SynestheticAdapterOptions, SynestheticAdapterProcess, fixture, line};

/// Returns the patch operations from `base` to `new`. Checks that RFC 6902 and the contract allow
/// each operation.
#[track_caller]
pub(super) fn patch(
    adapter: &mut SynestheticAdapterProcess,
    base: &Value,
    new: &Value,
) -> Vec<Value> {
    let result = adapter.call("diff_assets", json!({ "base": base, "new": new }));
    let keys: Vec<_> = result.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(keys, ["ok", "patch"], "{result}");
    assert_eq!(result["ok"], true);
    for op in result["patch"].as_array().unwrap() {
        let keys: Vec<_> = op.as_object().unwrap().keys().map(String::as_str).collect();
        match op["op"].as_str().unwrap() {
            "remove" => assert_eq!(keys, ["op", "path"], "{op}"),
            "add" | "replace" => assert_eq!(keys, ["op", "path", "value"], "{op}"),
            other => panic!("`{other}` is not an operation of this contract"),
        }
        assert!(op["path"].is_string(), "{op}");
    }
    result["patch"].as_array().unwrap().clone()
}

/// Returns the sort key of a patch operation: its path, then its type in the order remove, add,
/// replace.
pub(super) fn sort_key(op: &Value) -> (String, usize) {
    let rank = ["remove", "add", "replace"].iter().position(|name| op["op"] == *name).unwrap();
    (op["path"].as_str().unwrap().to_owned(), rank)
}

/// Returns pairs of assets whose patches are easy to get wrong.
pub(super) fn difficult_pairs() -> Vec<(Value, Value)> {
    vec![
        (json!({}), json!({})),
        (json!([1, 2]), json!([1, 3, 4])),
        (json!({ "a": [[1], 2] }), json!({ "a": [[1, 2], 2] })),
        (json!([]), json!({})),
        (json!({}), json!([])),
        (json!("a"), json!(7)),
        (json!(null), json!({ "a": null })),
        (json!({ "a": null }), json!({})),
        (json!({}), json!({ "a": null })),
        (json!({ "a": 1 }), json!({ "a": true })),
        (json!({ "a": 0 }), json!({ "a": false })),
        (json!({ "a": "1" }), json!({ "a": 1 })),
        (json!({ "": 1 }), json!({ "": { "": 2 } })),
        (json!({ "": { "": 1 } }), json!({ "": {} })),
        (json!({ "a/b": 1, "m~n": 2, "~1": 3 }), json!({ "a/b": 2, "~1": 4, "/": 5 })),
        (
            json!({ "a": { "b": 1 }, "a!": 1, "a0": 1, "é": 1 }),
            json!({ "a": { "b": 2, "c": 3 }, "a!": 2, "a0": 2, "é": 2 }),
        ),
        (json!({ "a": { "b": { "c": 1 } } }), json!({ "a": [1] })),
        (json!({ "a": 1, "b": 2 }), json!({ "b": 1, "c": 2 })),
        (json!({ "0": 1, "10": 1, "9": 1 }), json!({ "0": 2, "10": 2, "9": 2 })),
        (json!({ "a": 1.0 }), json!({ "a": 1.5 })),
        (json!({ "a": 9_007_199_254_740_993_u64 }), json!({ "a": 9_007_199_254_740_992_u64 })),
    ]
}

/// Random number generator whose numbers depend only on its seed.
pub(super) struct SeededTestRng(pub(super) u64);

impl SeededTestRng {
    fn next_below(&mut self, end: usize) -> usize {
        // Knuth's constants; the upper bits are random enough.
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % end
    }

    pub(super) fn value(&mut self, depth: usize) -> Value {
        match self.next_below(if depth == 0 { 6 } else { 10 }) {
            0 => Value::Null,
            1 => json!(self.next_below(2) == 0),
            2 => json!(self.next_below(3)),
            3 => json!(self.next_below(3) as f64 + 0.5),
            4 | 5 => json!(["", "a", "é"][self.next_below(3)]),
            6 => (0..self.next_below(4)).map(|_| self.value(depth - 1)).collect(),
            _ => {
                let keys = ["", "a", "b", "a/b", "a~b", "a!", "a0", "é", "~1", "0"];
                let mut fields = Map::new();
                for _ in 0..self.next_below(5) {
                    fields.insert(
                        keys[self.next_below(keys.len())].to_owned(),
                        self.value(depth - 1),
                    );
                }
                Value::Object(fields)
            }
        }
    }

    /// Returns a copy of `value` in which random members and items are changed.
    pub(super) fn change(&mut self, value: &Value, depth: usize) -> Value {
        match value {
            _ if self.next_below(4) == 0 => self.value(depth),
            Value::Object(fields) => {
                let mut changed = Map::new();
                for (key, value) in fields {
                    if self.next_below(5) > 0 {
                        changed.insert(key.clone(), self.change(value, depth.saturating_sub(1)));
                    }
                }
                if self.next_below(3) == 0 {
                    changed.insert("b".to_owned(), self.value(0));
                }
                Value::Object(changed)
            }
            other => other.clone(),
        }
    }
}

#[test]
fn s0_42_51_a_patch_lists_each_change_and_replaces_arrays_whole() {
    let mut adapter = SynestheticAdapterOptions::at(&fixture()).ready();
    for (base, new, wanted) in [
        (json!({ "a": 1 }), json!({ "a": 1 }), json!([])),
        (
            json!([1, 2]),
            json!([1, 3, 4]),
            json!([{ "op": "replace", "path": "", "value": [1, 3, 4] }]),
        ),
        (
            json!({ "a": { "b": [1, [2]] } }),
            json!({ "a": { "b": [1, [2, 3]] } }),
            json!([{ "op": "replace", "path": "/a/b", "value": [1, [2, 3]] }]),
        ),
        (
            json!({ "b": 1, "a": 1, "c": { "d": null } }),
            json!({ "e": null, "a": null, "c": {} }),
            json!([
                { "op": "replace", "path": "/a", "value": null },
                { "op": "remove", "path": "/b" },
                { "op": "remove", "path": "/c/d" },
                { "op": "add", "path": "/e", "value": null },
            ]),
        ),
        (
            json!({ "a/b": { "~": 1 } }),
            json!({ "a/b": {} }),
            json!([{ "op": "remove", "path": "/a~1b/~0" }]),
        ),
        (
            json!({ "a": 1 }),
            json!({ "a": true }),
            json!([{ "op": "replace", "path": "/a", "value": true }]),
        ),
        (json!(null), json!("x"), json!([{ "op": "replace", "path": "", "value": "x" }])),
    ] {
        assert_eq!(Value::Array(patch(&mut adapter, &base, &new)), wanted, "{base} {new}");
    }
    adapter.send(&line(1, "diff_assets", json!({ "base": { "a": [1] }, "new": { "b": null } })));
    let wanted = r#"{"jsonrpc":"2.0","id":1,"result":{"ok":true,"patch":[{"op":"remove","path":"/a"},{"op":"add","path":"/b","value":null}]}}"#;
    assert_eq!(adapter.receive(), wanted);
    // A missing parameter is an error, not null.
    for params in [json!({}), json!({ "base": {} }), json!({ "new": {} })] {
        let result = adapter.call("diff_assets", params);
        assert_eq!(result["reason"], "validation_failed", "{result}");
    }
}

#[test]
fn s0_50_key_order_does_not_affect_a_patch() {
    fn reversed(value: &Value) -> Value {
        match value {
            Value::Object(fields) => {
                fields.iter().rev().map(|(key, value)| (key.clone(), reversed(value))).collect()
            }
            Value::Array(items) => items.iter().map(reversed).collect(),
            other => other.clone(),
        }
    }
    let mut adapter = SynestheticAdapterOptions::at(&fixture()).ready();
    let mut generator = SeededTestRng(7);
    let random = std::iter::from_fn(|| {
        let base = generator.value(3);
        let new = generator.change(&base, 3);
        Some((base, new))
    });
    for (base, new) in difficult_pairs().into_iter().chain(random.take(100)) {
        let one = patch(&mut adapter, &base, &new);
        let other = patch(&mut adapter, &reversed(&base), &reversed(&new));
        assert_eq!(one, other, "{base} {new}");
        let paths = |patch: &[Value]| patch.iter().map(sort_key).collect::<Vec<_>>();
        assert_eq!(paths(&one), paths(&other));
    }
}
