//! Computes a JSON Patch (RFC 6902) between two JSON documents.
//!
//! Objects are compared key by key. Any other changed value, such as an array, is replaced
//! completely. No path of a patch lies below another path of this patch, so its operations can be
//! applied in any order. Numbers are compared as written: `1` differs from `1.0` and from `true`.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};
use toolgate_budget::json_value_bytes;
use toolgate_contract::{ToolError, ToolErrorKind, json_len};

use super::pointer::push_step;
use toolgate_world::root::DiskWorkMonitor;

/// The maximum size of a JSON Patch, in bytes. Each operation contains its full path, so long keys
/// with many children can make a patch far larger than both documents.
const PATCH_BYTES_MAX: usize = 4 << 20;
/// The maximum memory of the values in a JSON Patch, in bytes. A small object takes about 50 times
/// the memory of its text, and a result contains several copies of the patch.
const VALUES_BYTES_MAX: usize = 32 << 20;
/// The number of compared fields between two checks for cancellation.
const CHECK_INTERVAL: usize = 1_000;

/// One operation of a JSON Patch.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub(super) struct JsonPatchOperation {
    op: JsonPatchOperationKind,
    /// JSON Pointer to the changed value (RFC 6901).
    path: String,
    /// New value; absent for `remove`.
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<Value>,
}

/// The type of a patch operation. Operations at the same path are sorted in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum JsonPatchOperationKind {
    Remove,
    Add,
    Replace,
}

/// Returns the JSON Patch that turns `base` into `new`, with its operations sorted by path.
pub(super) fn patch_between(
    base: &Value,
    new: Value,
    watch: &DiskWorkMonitor,
) -> Result<Vec<JsonPatchOperation>, ToolError> {
    let mut patch =
        JsonPatchBuilder { operations: Vec::new(), bytes: 0, values_bytes: 0, compared: 0, watch };
    patch.compare(&mut String::new(), base, new)?;
    let mut operations = patch.operations;
    operations.sort_by(|a, b| (&a.path, a.op).cmp(&(&b.path, b.op)));
    Ok(operations)
}

/// JSON Patch under construction.
struct JsonPatchBuilder<'w> {
    operations: Vec<JsonPatchOperation>,
    /// The size of the patch as JSON, in bytes, without the escaping of its paths.
    bytes: usize,
    /// The memory of the values in the patch, in bytes.
    values_bytes: usize,
    compared: usize,
    watch: &'w DiskWorkMonitor,
}

impl JsonPatchBuilder<'_> {
    fn compare(&mut self, path: &mut String, base: &Value, new: Value) -> Result<(), ToolError> {
        match (base, new) {
            (Value::Object(base), Value::Object(new)) => self.compare_fields(path, base, new),
            (base, new) if *base == new => Ok(()),
            (_, new) => self.add(JsonPatchOperationKind::Replace, path, Some(new)),
        }
    }

    fn compare_fields(
        &mut self,
        path: &mut String,
        base: &Map<String, Value>,
        new: Map<String, Value>,
    ) -> Result<(), ToolError> {
        let above = path.len();
        for key in base.keys().filter(|key| !new.contains_key(*key)) {
            self.check_cancelled()?;
            push_step(path, key);
            self.add(JsonPatchOperationKind::Remove, path, None)?;
            path.truncate(above);
        }
        for (key, new) in new {
            self.check_cancelled()?;
            push_step(path, &key);
            match base.get(&key) {
                Some(base) => self.compare(path, base, new)?,
                None => self.add(JsonPatchOperationKind::Add, path, Some(new))?,
            }
            path.truncate(above);
        }
        Ok(())
    }

    fn add(
        &mut self,
        op: JsonPatchOperationKind,
        path: &str,
        value: Option<Value>,
    ) -> Result<(), ToolError> {
        let mut value_bytes = 0;
        if let Some(value) = &value {
            self.values_bytes = self.values_bytes.saturating_add(json_value_bytes(value));
            if self.values_bytes > VALUES_BYTES_MAX {
                let message = format!(
                    "the values of the patch take more than {VALUES_BYTES_MAX} bytes of memory; \
                     compare the assets in parts, or use the whole new asset"
                );
                return Err(ToolError::new(ToolErrorKind::TooLarge, message));
            }
            value_bytes = json_len(value);
        }
        self.bytes += r#"{"op":"replace","path":"","value":},"#.len() + path.len() + value_bytes;
        if self.bytes > PATCH_BYTES_MAX {
            let message = format!(
                "the patch has more than {PATCH_BYTES_MAX} bytes; compare the assets in parts, or use \
                 the whole new asset"
            );
            return Err(ToolError::new(ToolErrorKind::TooLarge, message));
        }
        self.operations.push(JsonPatchOperation { op, path: path.to_owned(), value });
        Ok(())
    }

    fn check_cancelled(&mut self) -> Result<(), ToolError> {
        if self.compared.is_multiple_of(CHECK_INTERVAL) {
            self.watch.check_cancelled()?;
        }
        self.compared += 1;
        Ok(())
    }
}

/// Panics unless the patch between two fuzzed documents turns the first into the second. The byte
/// 0x1f in `bytes` separates the documents.
#[cfg(any(fuzzing, test))]
pub(crate) fn check(bytes: &[u8]) {
    let mut parts = bytes.split(|byte| *byte == 0x1f);
    let mut next = || serde_json::from_slice::<Value>(parts.next()?).ok();
    let (Some(base), Some(new)) = (next(), next()) else { return };
    let patch =
        patch_between(&base, new.clone(), &DiskWorkMonitor::default()).expect("the patch is short");
    // The result must not depend on the order of operations.
    for operations in [patch.iter().collect::<Vec<_>>(), patch.iter().rev().collect()] {
        let mut patched = base.clone();
        for JsonPatchOperation { op, path, value } in operations {
            match path.rsplit_once('/') {
                None => patched = value.clone().expect("a whole document is replaced, not removed"),
                Some((above, key)) => {
                    let key = key.replace("~1", "/").replace("~0", "~");
                    let above = patched.pointer_mut(above).and_then(Value::as_object_mut);
                    let above = above.expect("the parent is an object");
                    let before = match value {
                        Some(value) => above.insert(key, value.clone()),
                        None => above.remove(&key),
                    };
                    assert_eq!(before.is_none(), *op == JsonPatchOperationKind::Add, "{path}");
                }
            }
        }
        assert_eq!(patched, new);
    }
    assert_eq!(patch.is_empty(), base == new);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn patch_of(base: &Value, new: Value) -> Vec<JsonPatchOperation> {
        patch_between(base, new, &DiskWorkMonitor::default()).unwrap()
    }

    #[track_caller]
    fn check(base: &Value, new: Value, patch: &Value) {
        assert_eq!(serde_json::to_value(patch_of(base, new)).unwrap(), *patch);
    }

    #[test]
    fn a_patch_far_longer_than_its_documents_is_refused() {
        let long = "k".repeat(100_000);
        let many = 1_000;
        let inner = |count: usize, value: usize| -> Map<String, Value> {
            (0..count).map(|at| (at.to_string(), json!(value))).collect()
        };
        let none = json!({ &long: {} });
        let some = json!({ &long: inner(many, 0) });
        let others = json!({ &long: inner(many, 1) });
        for (base, new) in [(&none, &some), (&some, &none), (&some, &others)] {
            let err = patch_between(base, new.clone(), &DiskWorkMonitor::default()).unwrap_err();
            assert_eq!(err.fault, ToolErrorKind::TooLarge);
            assert!(err.message.contains("more than 4194304 bytes"), "{}", err.message);
        }
        let few = json!({ &long: inner(40, 0) });
        assert_eq!(patch_of(&none, few).len(), 40);
        check(&some, some.clone(), &json!([]));
    }

    #[test]
    fn a_patch_with_a_too_long_value_is_refused() {
        let value = |bytes: usize| json!({ "a": "x".repeat(bytes) });
        assert_eq!(patch_of(&json!({}), value(4_000_000)).len(), 1);
        let err = patch_between(&json!({}), value(PATCH_BYTES_MAX), &DiskWorkMonitor::default())
            .unwrap_err();
        assert_eq!(err.fault, ToolErrorKind::TooLarge);
    }

    #[test]
    fn a_patch_whose_values_take_too_much_memory_is_refused() {
        let list = |count: usize| json!(vec![json!({ "n": 1 }); count]);
        assert_eq!(patch_of(&json!(1), list(30_000)).len(), 1);
        let err = patch_between(&json!(1), list(100_000), &DiskWorkMonitor::default()).unwrap_err();
        assert_eq!(err.fault, ToolErrorKind::TooLarge);
        assert!(err.message.contains("bytes of memory"), "{}", err.message);
    }

    #[test]
    fn keys_are_removed_added_and_replaced_in_order_of_path() {
        check(
            &json!({ "b": 1, "a": { "x": 1, "y": [1] }, "same": null }),
            json!({ "same": null, "c": null, "a": { "y": [1, 2], "x": 1 } }),
            &json!([
                { "op": "replace", "path": "/a/y", "value": [1, 2] },
                { "op": "remove", "path": "/b" },
                { "op": "add", "path": "/c", "value": null },
            ]),
        );
    }

    #[test]
    fn paths_are_ordered_by_code_points() {
        let new =
            json!({ "a0": 1, "a": { "b": 2 }, "é": 1, "a!": 1, "\u{1f600}": 1, "\u{ffff}": 1 });
        let patch = patch_of(&json!({ "a": {} }), new);
        let paths: Vec<&str> = patch.iter().map(|it| it.path.as_str()).collect();
        assert_eq!(paths, ["/a!", "/a/b", "/a0", "/é", "/\u{ffff}", "/\u{1f600}"]);
    }

    #[test]
    fn a_value_that_is_not_an_object_is_replaced_whole() {
        let whole = |new: Value| json!([{ "op": "replace", "path": "", "value": new }]);
        for (base, new) in [
            (json!([1]), json!([1, 2])),
            (json!({}), json!([])),
            (json!(true), json!(1)),
            (json!(1), json!(1.0)),
            (json!(0), json!(null)),
        ] {
            check(&base, new.clone(), &whole(new));
        }
    }

    #[test]
    fn a_key_is_escaped_and_may_be_empty() {
        check(
            &json!({ "": 1, "a/b": { "~": 1 } }),
            json!({ "": { "": 1 }, "a/b": {} }),
            &json!([
                { "op": "replace", "path": "/", "value": { "": 1 } },
                { "op": "remove", "path": "/a~1b/~0" },
            ]),
        );
    }

    #[test]
    fn equal_documents_give_an_empty_patch() {
        let same = json!({ "a": [1, { "b": 1.5 }] });
        check(&same, same.clone(), &json!([]));
    }
}
