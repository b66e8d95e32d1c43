//! Fuzzes expressions, paths and patterns from rule authors and callers. The byte 0x1f separates
//! the parts of an input.

use serde_json::{Value, json};
use toolgate_contract::{Caller, Effects, ToolId, ToolSpec, fold_name};

use super::expression::{ExpressionSettings, PolicyCondition};
use super::pattern::{CallerNamePattern, KnownToolSet, ToolPattern};
use super::plain_path::{normalize_path, under};
use super::{PolicyRequest, PolicyRequestKind};

/// Evaluates a policy expression for an input, and checks that repeated evaluation and plain CEL
/// give the same result.
pub(crate) fn fuzz_when(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let (source, input) = text.split_once('\u{1f}').unwrap_or((text, "{}"));
    let Ok(when) = PolicyCondition::new(source, &ExpressionSettings { root: Some("/ws".into()) })
    else {
        return;
    };
    let input: Value = serde_json::from_str(input).unwrap_or_else(|_| json!({ "path": input }));
    let spec = ToolSpec {
        paths: vec!["path".to_owned()],
        ..ToolSpec::new(ToolId::new("files.read").expect("an id"), "", "", Effects::Reads)
    };
    let caller = Caller::with_key("ada");
    let request = PolicyRequest {
        caller: &caller,
        spec: &spec,
        input: &input,
        kind: PolicyRequestKind::Tool,
    };
    assert_eq!(when.evaluate(&request), when.evaluate(&request));
    assert_eq!(when.evaluate(&request), when.evaluate_cel(&request));
}

/// Compares the results of the path functions with those of a simple model.
pub(crate) fn fuzz_paths(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let (path, folder) = text.split_once('\u{1f}').unwrap_or((text, "a"));
    for root in [None, Some("/ws")] {
        let once = normalize_path(path, root);
        assert_eq!(normalize_path(&once, None), once, "of {path:?}");
        assert!(!once.is_empty() && (once == "/" || !once.ends_with('/')), "{once:?}");
    }
    assert_eq!(normalize_path(path, None), resolve_names(path).0);
    let ((path, up, names), (_, folder_up, folder_names)) =
        (resolve_names(path), resolve_names(folder));
    let rooted = |path: &str| path.starts_with('/');
    let expected = rooted(&path) == rooted(folder)
        && if folder_up == 0 && folder_names.is_empty() && !rooted(folder) {
            up == 0
        } else {
            up == folder_up && names.starts_with(&folder_names)
        };
    // Names beneath a folder outside of the workspace are unknown.
    if up == 0 && folder_up == 0 {
        assert_eq!(under(&path, folder, None), expected, "{path:?} under {folder:?}");
    }
}

/// Resolves `path` by its names alone. Returns its normalized form, the number of leading `..`, and
/// the names after them.
fn resolve_names(path: &str) -> (String, usize, Vec<&str>) {
    let mut up = 0;
    let mut names = Vec::new();
    for name in path.split('/') {
        match name {
            "" | "." => {}
            ".." if names.pop().is_none() => up += 1,
            ".." => {}
            name => names.push(name),
        }
    }
    let all: Vec<&str> = std::iter::repeat_n("..", up).chain(names.iter().copied()).collect();
    let slash = if path.starts_with('/') { "/" } else { "" };
    let written = match (slash, all.is_empty()) {
        ("", true) => ".".to_owned(),
        _ => format!("{slash}{}", all.join("/")),
    };
    (written, up, names)
}

/// Compares the results of patterns with those of a simple matcher, as far as it supports them.
pub(crate) fn fuzz_patterns(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let (pattern, name) = text.split_once('\u{1f}').unwrap_or((text, "files.read"));
    let is_simple = |pattern: &str| !pattern.contains(['[', ']', '{', '}', '\\', '/', '!']);
    if let (Ok(found), Some(id)) = (ToolPattern::new("a test", pattern), ToolId::new(name)) {
        let matched = found.matches(&id);
        if is_simple(pattern) {
            let model = matches(&letters(&fold_name(pattern)), &letters(&fold_name(name)));
            assert_eq!(matched, model, "{pattern:?} of {name:?}");
        }
        let _ = found.check(&KnownToolSet { tools: vec![id], ..KnownToolSet::default() });
    }
    if let Ok(found) = CallerNamePattern::new(pattern) {
        let model = matches(&letters(pattern), &letters(name));
        assert_eq!(found.matches(name), model, "{pattern:?} of {name:?}");
    } else {
        assert!(pattern.len() > 1000 || pattern.contains(['[', ']', '{', '}', '\\']));
    }
}

fn letters(text: &str) -> Vec<char> {
    text.chars().collect()
}

/// Returns true if `name` matches `pattern`, in which `*` is any text and `?` any character.
fn matches(pattern: &[char], name: &[char]) -> bool {
    let mut at = (0, 0);
    let mut star = None;
    while at.1 < name.len() {
        match pattern.get(at.0) {
            Some('*') => {
                star = Some((at.0, at.1));
                at.0 += 1;
            }
            Some(c) if *c == '?' || *c == name[at.1] => at = (at.0 + 1, at.1 + 1),
            _ => match &mut star {
                Some((pattern, taken)) => {
                    *taken += 1;
                    at = (*pattern + 1, *taken);
                }
                None => return false,
            },
        }
    }
    pattern[at.0..].iter().all(|c| *c == '*')
}
