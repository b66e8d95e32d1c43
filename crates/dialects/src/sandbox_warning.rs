//! Warnings about an incomplete sandbox, for dialects that have no field for them.

use std::borrow::Cow;

use serde_json::Value;

/// Returns a line that warns about the sandbox layers that were missing, according to `value`, the
/// result of a program. Returns `None` if no layer was missing.
fn warning_line(value: &Value) -> Option<String> {
    let sandbox = value.get("sandbox")?;
    let missing = sandbox.get("missing")?.as_array()?;
    let layers = missing.iter().filter_map(|it| it.get("layer")?.as_str());
    // Control groups usually need root. Their limits are then set per process, so no warning is
    // needed.
    let layers: Vec<&str> = layers.filter(|layer| *layer != "groups").collect();
    if layers.is_empty() {
        return None;
    }
    let profile = sandbox.get("profile").and_then(Value::as_str).unwrap_or_default();
    Some(format!("toolgate: the sandbox `{profile}` lacks {} on this system\n", layers.join(", ")))
}

/// Appends the sandbox warning, if any, to a program's standard error.
pub(crate) fn with_sandbox_warning<'p>(printed: Cow<'p, str>, value: &Value) -> Cow<'p, str> {
    let Some(line) = warning_line(value) else { return printed };
    let end = if printed.is_empty() || printed.ends_with('\n') { "" } else { "\n" };
    format!("{printed}{end}{line}").into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_missing_layers_are_reported() {
        let whole = json!({ "sandbox": "workspace" });
        assert_eq!(with_sandbox_warning("out".into(), &whole), "out");
        assert_eq!(with_sandbox_warning("out".into(), &json!({})), "out");
        let groups =
            json!({ "profile": "workspace", "missing": [{ "layer": "groups", "why": "" }] });
        assert_eq!(with_sandbox_warning("out".into(), &json!({ "sandbox": groups })), "out");
        let missing = json!([{ "layer": "view", "why": "a" }, { "layer": "network", "why": "b" }]);
        let partly = json!({ "sandbox": { "profile": "workspace", "missing": missing } });
        let line = "toolgate: the sandbox `workspace` lacks view, network on this system\n";
        assert_eq!(with_sandbox_warning("out".into(), &partly), format!("out\n{line}"));
    }
}
