//! Default values of tool inputs, for `#[serde(default)]`.

pub(crate) fn yes() -> bool {
    true
}

/// Returns the path of the workspace itself.
pub(crate) fn here() -> String {
    ".".into()
}
